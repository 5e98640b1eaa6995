// Lag as people feel it, of the last words: a bar a word, of the time that its policy waited on purpose, that its
// message queued and that its step computed; and how many words it was behind, as a line.

import { svg } from "./svg.js";

export const WORDS = 60;
const WIDTH = 360, HEIGHT = 64;

/** scale: what the top stands for, as `scales` gives it. */
export function lagPlot(words, { slowest, furthest }) {
  // stretched to the width there is
  const attributes = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "lag" };
  const picture = svg("svg", attributes);
  picture.append(svg("title", {}, summary(words)));
  if (!words.length) return picture;
  const step = WIDTH / WORDS;
  const line = [];
  for (const [place, { lag }] of words.entries()) {
    const x = place * step;
    let top = HEIGHT;
    for (const part of ["computed", "queued", "policy"]) {
      const height = (lag[part] / slowest) * (HEIGHT - 4);
      top -= height;
      if (height > 0) picture.append(svg("rect", { x, y: top, width: step * 0.8, height, class: part }));
    }
    const y = HEIGHT - 2 - (Math.max(0, lag.words) / furthest) * (HEIGHT - 6);
    line.push(`${place ? "L" : "M"} ${x + step * 0.4} ${y}`);
  }
  picture.append(svg("path", { d: line.join(" "), class: "words" }));
  return picture;
}

/** Milliseconds and words that have room for all of these. */
export function scales(words) {
  return {
    slowest: Math.max(50, ...words.map(({ lag }) => lag.policy + lag.queued + lag.computed)),
    furthest: Math.max(4, ...words.map(({ lag }) => lag.words)),
  };
}

/** Means over the last words, in a sentence. */
export function summary(words) {
  if (!words.length) return "Nothing written yet.";
  const mean = (pick) => words.reduce((sum, word) => sum + pick(word.lag), 0) / words.length;
  const behind = mean((lag) => lag.words).toFixed(1);
  const [policy, queue, compute] = ["policy", "queued", "computed"].map((part) => Math.round(mean((lag) => lag[part])));
  return `${behind} words behind: ${policy} ms by the policy, ${queue} ms in the queue, ${compute} ms of computing.`;
}
