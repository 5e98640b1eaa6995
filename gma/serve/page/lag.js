// Lag as people feel it, of the last words: words behind as a line, milliseconds of queue and computing as bars.

import { svg } from "./svg.js";

const WIDTH = 360, HEIGHT = 96, WORDS = 60, BASE = HEIGHT - 14;

export function lagPlot(transcript) {
  const words = transcript.sentences.slice(-12).flatMap((one) => one.written).slice(-WORDS);
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "lag" });
  picture.append(svg("title", {}, summary(words)));
  if (!words.length) return picture;
  const step = WIDTH / WORDS;
  const slowest = Math.max(50, ...words.map(({ lag }) => lag.queued + lag.computed));
  const furthest = Math.max(4, ...words.map(({ lag }) => lag.words));
  const line = [];
  for (const [place, { lag }] of words.entries()) {
    const x = place * step, high = (value) => (value / slowest) * (BASE - 8);
    const computed = high(lag.computed), queued = high(lag.queued);
    picture.append(
      svg("rect", { x, y: BASE - computed, width: step * 0.8, height: computed, class: "computed" }),
      svg("rect", { x, y: BASE - computed - queued, width: step * 0.8, height: queued, class: "queued" }),
    );
    line.push(`${place ? "L" : "M"} ${x + step / 2} ${BASE - (Math.max(0, lag.words) / furthest) * (BASE - 8)}`);
  }
  picture.append(
    svg("path", { d: line.join(" "), class: "words" }),
    svg("text", { x: 0, y: HEIGHT - 2, class: "label" }, `top: ${furthest} words · ${Math.round(slowest)} ms`),
  );
  return picture;
}

/** Means over the last words, in a sentence. */
export function summary(words) {
  if (!words.length) return "Lag: nothing written yet.";
  const mean = (pick) => words.reduce((sum, word) => sum + pick(word.lag), 0) / words.length;
  const policy = mean((lag) => lag.words).toFixed(1);
  const [queue, compute] = [mean((lag) => lag.queued), mean((lag) => lag.computed)].map(Math.round);
  return `Lag: ${policy} words by the policy, ${queue} ms in the queue, ${compute} ms of computing.`;
}
