// Source and translation as they grow. A word that stands is never touched again.

import { html } from "./svg.js";

/** Shows a transcript in an element; calls `inspect(sentence, word or null)` for what a person points at. */
export class Reading {
  constructor(element, inspect) {
    this.element = element;
    this.inspect = inspect;
    this.rows = new Map(); // number of the sentence -> its elements
  }

  row(sentence, languages) {
    let row = this.rows.get(sentence.number);
    if (row) return row;
    const [source, target] = languages;
    row = {
      source: html("p", { class: "source", lang: source, dir: "auto" }),
      target: html("p", { class: "target", lang: target, dir: "auto", "aria-live": "polite", "aria-atomic": "false" }),
      score: html("p", { class: "score" }),
      heard: 0,
      written: 0,
    };
    row.whole = html("article", { class: "sentence", "data-sentence": sentence.number });
    row.whole.append(row.source, row.target, row.score);
    row.whole.addEventListener("pointerenter", () => this.inspect(sentence, null));
    this.element.append(row.whole);
    this.rows.set(sentence.number, row);
    return row;
  }

  update(sentence, languages) {
    if (!sentence.heard.length && !sentence.written.length) return;
    const row = this.row(sentence, languages);
    const atEnd = this.element.scrollHeight - this.element.scrollTop - this.element.clientHeight < 80;
    for (; row.heard < sentence.heard.length; row.heard += 1) {
      row.source.append(html("span", {}, sentence.heard[row.heard].word), " ");
    }
    for (; row.written < sentence.written.length; row.written += 1) {
      row.target.append(this.word(sentence, sentence.written[row.written], row), " ");
    }
    row.whole.classList.toggle("ended", Boolean(sentence.ended));
    if (atEnd) this.element.scrollTop = this.element.scrollHeight;
  }

  word(sentence, word, row) {
    const element = html("button", { type: "button", class: "word", title: waitedFor(sentence, word) }, word.word);
    const light = (on) => {
      for (const [place, source] of [...row.source.children].entries()) {
        source.classList.toggle("used", on && place < word.source_words);
        source.classList.toggle("awaited", on && place === word.source_words - 1);
      }
      if (on) this.inspect(sentence, word);
    };
    for (const event of ["pointerenter", "focus"]) element.addEventListener(event, () => light(true));
    for (const event of ["pointerleave", "blur"]) element.addEventListener(event, () => light(false));
    return element;
  }

  score(sentence, text) {
    const row = this.rows.get(sentence.number);
    if (row) row.score.textContent = text;
  }

  clear() {
    this.element.replaceChildren();
    this.rows.clear();
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
