// The picture of waiting: source words to the right, target words downwards. The path goes right where the translator
// reads and down where it writes. Dots are the aligned positions p of every decoder layer, bars their widths σ, and the
// tick is p + δ: how far the word had to hear.

import { svg } from "./svg.js";
import { placeOf } from "./transcript.js";

const COLUMN = 34, ROW = 22, LEFT = 96, TOP = 84, MOST_ROWS = 60;

export function staircase(sentence, { positions, waiting, word = null }) {
  const heard = sentence.heard, written = sentence.written.slice(-MOST_ROWS);
  const ahead = waiting?.kind === "words" ? Math.min(3, waiting.more) : 0;
  const width = LEFT + (heard.length + ahead + 1) * COLUMN, height = TOP + (written.length + 1) * ROW + 8;
  const across = (place) => LEFT + place * COLUMN, down = (row) => TOP + row * ROW;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  picture.append(svg("title", {}, describe(sentence)));
  for (const [place, { word: text }] of heard.entries()) {
    const x = across(place + 0.5);
    const label = { x, y: TOP - 8, transform: `rotate(-50 ${x} ${TOP - 8})`, class: "label" };
    picture.append(svg("text", label, short(text)));
  }
  for (let place = 0; place < ahead; place += 1) {
    const box = { x: across(heard.length + place) + 4, y: TOP - 12, width: COLUMN - 8, height: 6, class: "awaited" };
    picture.append(svg("rect", box));
  }
  const corners = [`M ${across(0)} ${down(0)}`];
  for (const [row, target] of written.entries()) {
    const arrived = Math.min(target.arrived, heard.length);
    const seen = Math.min(target.source_words, heard.length);
    picture.append(
      svg("rect", { x: across(0), y: down(row), width: seen * COLUMN, height: ROW, class: target === word ? "seen chosen" : "seen" }),
      svg("text", { x: LEFT - 8, y: down(row) + ROW * 0.7, class: "label target" }, short(target.word)),
    );
    corners.push(`H ${across(arrived)} V ${down(row + 1)}`);
    if (positions) drawPositions(picture, target, heard, across, down(row + 0.5));
  }
  corners.push(`H ${across(heard.length)}`);
  picture.append(svg("path", { d: corners.join(" "), class: "path" }));
  return picture;
}

function drawPositions(picture, target, heard, across, y) {
  const inside = (place) => across(Math.min(Math.max(place, 0), heard.length + 0.9));
  const at = (position) => inside(placeOf(position, heard));
  let furthest = 0;
  for (const [layer, p] of target.p.entries()) {
    const sigma = target.sigma[layer];
    furthest = Math.max(furthest, p);
    picture.append(
      svg("line", { x1: at(p - sigma), x2: at(p + sigma), y1: y, y2: y, class: "width" }),
      svg("circle", { cx: at(p), cy: y, r: 3, class: `position layer-${layer % 4}` }),
    );
  }
  if (Number.isFinite(target.delta)) {
    const x = at(furthest + target.delta);
    picture.append(svg("line", { x1: x, x2: x, y1: y - 7, y2: y + 7, class: "offset" }));
  }
}

function short(text) {
  const letters = [...text];
  return letters.length > 12 ? `${letters.slice(0, 11).join("")}…` : text;
}

function describe(sentence) {
  const parts = sentence.written.map((word) => `${word.word} after ${word.source_words}`);
  return `READ and WRITE of this sentence, source words heard before each word: ${parts.join(", ") || "nothing yet"}`;
}
