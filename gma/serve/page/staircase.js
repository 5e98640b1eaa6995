// The picture of waiting: source words to the right, target words downwards. The path goes right where the translator
// reads and down where it writes. Grey is what had not been heard when a row was written. Dots are the aligned positions
// p of every decoder layer, bars their widths σ, and the tick is p + δ: how far the word had to hear. The open row shows
// what the next word waits for. Once a sentence has ended its cells are its attention.

import { svg } from "./svg.js";
import { placeOf } from "./transcript.js";

const WIDEST_COLUMN = 40, NARROWEST_COLUMN = 22, ROW = 28, TOP = 84, RIGHT = 40;
const MOST_ROWS = 60, LETTERS = 12, LETTER = 8.5, LEAN = 6, FAINTEST = 0.03;

/** What is drawn of a sentence: an SVG element.
 *
 * options: positions, whether p and σ mean anything; waiting, as Transcript.waiting gives it, null once it has ended;
 * word, the one that is pointed at; room, the width there is, in which words come closer when they are many.
 */
export function staircase(sentence, { positions, waiting, word = null, room = Infinity }) {
  const { heard, attention } = sentence;
  const first = Math.max(0, sentence.written.length - MOST_ROWS);
  const written = sentence.written.slice(first);
  const ahead = waiting?.kind === "words" ? Math.min(3, waiting.more) : 0;
  const columns = heard.length + ahead, rows = written.length + (waiting ? 1 : 0);
  const left = 20 + LETTER * Math.max(3, ...written.map(({ word: text }) => [...short(text)].length));
  // room for the last labels, which lean over the edge
  const right = Math.max(RIGHT, ...heard.slice(-3).map(({ word: text }) => LEAN * [...short(text)].length));
  const column = Math.min(WIDEST_COLUMN, Math.max(NARROWEST_COLUMN, Math.floor((room - left - right) / columns)));
  const width = left + columns * column + right, height = TOP + rows * ROW + 12;
  const across = (place) => left + place * column, down = (row) => TOP + row * ROW;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  const box = (from, until, row, name) =>
    svg("rect", { x: across(from), y: down(row), width: Math.max(0, until - from) * column, height: ROW, class: name });
  picture.append(svg("title", {}, describe(sentence)));
  const corners = [`M ${across(0)} ${down(0)}`], above = svg("g");
  for (const [row, target] of written.entries()) {
    const arrived = Math.min(target.arrived, heard.length), seen = Math.min(target.source_words, heard.length);
    picture.append(box(0, seen, row, "seen"), box(arrived, columns, row, "unheard"));
    if (attention?.[first + row]) drawAttention(picture, attention[first + row].slice(0, heard.length), row, box);
    if (target === word) picture.append(box(0, seen, row, "chosen"));
    picture.append(svg("text", { x: left - 10, y: down(row + 0.5), class: "label target" }, short(target.word)));
    corners.push(`H ${across(arrived)} V ${down(row + 1)}`);
    if (positions) drawPositions(above, target, heard, across, down(row + 0.5));
  }
  if (waiting) {
    picture.append(svg("text", { x: left - 10, y: down(written.length + 0.5), class: "label target quiet" }, "…"));
    for (let place = 0; place < ahead; place += 1) {
      const x = across(heard.length + place) + 3, y = down(written.length) + 3;
      picture.append(svg("rect", { x, y, width: column - 6, height: ROW - 6, rx: 4, class: "awaited" }));
    }
  }
  corners.push(`H ${across(heard.length)}`);
  picture.append(svg("path", { d: corners.join(" "), class: "path" }), above);
  for (const [place, { word: text }] of heard.entries()) {
    const x = across(place + 0.5), y = TOP - 9;
    picture.append(svg("text", { x, y, transform: `rotate(-45 ${x} ${y})`, class: "label" }, short(text)));
  }
  return picture;
}

function drawAttention(picture, weights, row, box) {
  for (const [place, weight] of weights.entries()) {
    if (weight < FAINTEST) continue;
    const cell = box(place, place + 1, row, "weight");
    cell.setAttribute("fill-opacity", weight.toFixed(2));
    picture.append(cell);
  }
}

function drawPositions(picture, target, heard, across, y) {
  const inside = (place) => across(Math.min(Math.max(place, 0), heard.length + 0.4));
  const at = (position) => inside(placeOf(position, heard));
  for (const [layer, p] of target.p.entries()) {
    const sigma = target.sigma[layer];
    picture.append(
      svg("line", { x1: at(p - sigma), x2: at(p + sigma), y1: y, y2: y, class: "width" }),
      svg("circle", { cx: at(p), cy: y, r: 3.5, class: "position" }),
    );
  }
  if (!Number.isFinite(target.delta) || !target.p.length) return;
  const x = at(Math.max(...target.p) + target.delta);
  picture.append(svg("line", { x1: x, x2: x, y1: y - 8, y2: y + 8, class: "offset" }));
}

function short(text) {
  const letters = [...text];
  return letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}…` : text;
}

function describe(sentence) {
  const parts = sentence.written.map((word) => `${word.word} after ${word.source_words}`);
  return `READ and WRITE of this sentence, source words heard before each word: ${parts.join(", ") || "nothing yet"}`;
}
