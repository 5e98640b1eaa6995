// Source and translation as they grow. A word that stands is never touched again.
// All words together are one stop of the Tab key; the arrow keys go from one to the next.

import { html } from "./svg.js";

// pixels: further down than anything, and so near to the end that it is followed
export const BEYOND = 1e9;
const NEAR = 80;

/** Shows a transcript in an element; calls `inspect(sentence, word or null)` for what a person points at. */
export class Reading {
  constructor(element, inspect, description) {
    Object.assign(this, { element, inspect, description });
    this.rows = new Map(); // number of the sentence -> its elements
    this.known = new WeakMap(); // element of a word -> {row, sentence, word}
    this.lit = null; // the word whose source is lit
    this.entry = null; // the word that Tab goes to
    this.following = true; // the newest, unless a person has scrolled back
    let before = 0;
    element.addEventListener("scroll", () => {
      const { scrollTop, scrollHeight, clientHeight } = element;
      if (scrollTop < before) this.following = false;
      if (scrollHeight - scrollTop - clientHeight < NEAR) this.following = true;
      before = scrollTop;
    });
    for (const type of ["pointerover", "focusin"]) element.addEventListener(type, ({ target }) => this.point(target));
    for (const type of ["pointerleave", "focusout"]) element.addEventListener(type, () => this.light(null));
    element.addEventListener("keydown", (event) => this.walk(event));
  }

  row(sentence, [source, target]) {
    let row = this.rows.get(sentence.number);
    if (row) return row;
    row = {
      sentence,
      source: html("p", { class: "source", lang: source, dir: "auto" }),
      target: html("p", { class: "target", lang: target, dir: "auto", "aria-live": "polite", "aria-atomic": "false" }),
      score: html("p", { class: "score" }),
      heard: 0,
      written: 0,
    };
    row.whole = html("article", { class: "sentence", "data-sentence": sentence.number });
    row.whole.append(row.source, row.target, row.score);
    this.known.set(row.whole, { row, sentence, word: null });
    this.element.append(row.whole);
    this.rows.set(sentence.number, row);
    return row;
  }

  update(sentence, languages) {
    if (!sentence.heard.length && !sentence.written.length) return;
    const row = this.row(sentence, languages);
    for (; row.heard < sentence.heard.length; row.heard += 1) {
      const { word, pieces } = sentence.heard[row.heard];
      const attributes = pieces.length ? {} : { class: "unread", title: "Nothing in this word can be read." };
      row.source.append(html("span", attributes, word), " ");
    }
    // heard again, in the next sentence
    for (; row.heard > sentence.heard.length; row.heard -= 1) row.source.lastElementChild.remove();
    for (; row.written < sentence.written.length; row.written += 1) {
      row.target.append(this.word(sentence, sentence.written[row.written], row), " ");
    }
    row.whole.classList.toggle("ended", Boolean(sentence.ended));
  }

  /** Once a frame: it makes the browser lay out. */
  follow() {
    if (this.following) this.element.scrollTop = BEYOND;
  }

  word(sentence, word, row) {
    const attributes = { type: "button", class: "word", tabindex: -1, "aria-describedby": this.description };
    const element = html("button", attributes, word.word);
    this.known.set(element, { row, sentence, word });
    if (!this.entry) this.enterAt(element);
    return element;
  }

  enterAt(element) {
    if (this.entry) this.entry.tabIndex = -1;
    this.entry = element;
    element.tabIndex = 0;
  }

  point(target) {
    const element = target.closest(".word, .sentence");
    const known = this.known.get(element);
    if (!known) return;
    this.light(known.word ? element : null);
    this.inspect(known.sentence, known.word);
  }

  /** Light the source that a word has used. */
  light(element) {
    if (element === this.lit) return;
    const change = (lit, on) => {
      const { row, word } = this.known.get(lit);
      for (const [place, source] of [...row.source.children].entries()) {
        source.classList.toggle("used", on && place < word.source_words);
        source.classList.toggle("awaited", on && place === word.source_words - 1);
      }
    };
    if (this.lit) change(this.lit, false);
    this.lit = element;
    if (element) change(element, true);
  }

  walk(event) {
    if (!event.target.matches(".word")) return;
    const words = [...this.element.querySelectorAll(".word")];
    const here = words.indexOf(event.target), last = words.length - 1;
    const goals = {
      ArrowRight: () => here + 1,
      ArrowLeft: () => here - 1,
      ArrowUp: () => this.sentenceFrom(event.target, words, -1),
      ArrowDown: () => this.sentenceFrom(event.target, words, 1),
      Home: () => 0,
      End: () => last,
    };
    if (!Object.hasOwn(goals, event.key)) return;
    event.preventDefault();
    const next = words[Math.min(Math.max(goals[event.key](), 0), last)];
    this.enterAt(next);
    next.focus();
  }

  /** The place of the first word of the sentence before or behind. */
  sentenceFrom(element, words, step) {
    let row = element.closest(".sentence");
    do row = step < 0 ? row.previousElementSibling : row.nextElementSibling;
    while (row && !row.querySelector(".word"));
    return words.indexOf(row?.querySelector(".word") ?? element);
  }

  /** Mark that a sentence waits for so many more source tokens; null for none that waits. */
  await(sentence, more) {
    const row = sentence && this.rows.get(sentence.number);
    if (this.waiting && this.waiting !== row) delete this.waiting.whole.dataset.more;
    this.waiting = row;
    if (row) row.whole.dataset.more = Math.min(more, 3);
  }

  score(sentence, text) {
    const row = this.rows.get(sentence.number);
    if (row && row.score.textContent !== text) row.score.textContent = text;
  }
}

/** In a sentence: how long a word waited, and for what. */
export function waitedFor(sentence, word) {
  const last = sentence.heard[Math.min(word.source_words, sentence.heard.length) - 1];
  const used = `“${word.word}” used ${word.source_words} source word${word.source_words === 1 ? "" : "s"}`;
  const end = word.needed_end ? " and the end of the sentence" : last ? ` and waited for “${last.word}”` : "";
  const { queued, computed, total } = word.lag;
  const time = `written ${Math.round(total)} ms after it (queue ${Math.round(queued)}, computing ${Math.round(computed)})`;
  return `${used}${end}; ${time}.`;
}
