// One translation of the voice: its connection, its transcript, its latency, and the pictures of what it does.

import { lagPlot, scales, summary, WORDS } from "./lag.js";
import { BEYOND, Reading, waitedFor } from "./reading.js";
import { averages, scoreOf } from "./scores.js";
import { staircase } from "./staircase.js";
import { html } from "./svg.js";
import { Talk, Watch } from "./talk.js";
import { Transcript } from "./transcript.js";

const EVENTS = ["ready", "heard", "words", "wait", "delta", "end", "attention"];
// a control for waiting without end makes no sense: this is its right side
const FURTHEST = 20;
const HINT = "Point at a word of the translation, or go there with Tab and the arrow keys, to see what it waited for.";

/** Events: "ready", "drawn", "state" {state, code, message}, "tail" {text}, "compare". */
export class Pane extends EventTarget {
  /** beside: gives all panes, this one among them, which are compared and drawn to one scale. */
  constructor(name, beside, { token = null, watch = null, remove = null, delta = null } = {}) {
    super();
    this.beside = beside;
    this.transcript = new Transcript();
    this.references = [];
    this.pointed = null; // {sentence, word} at which a person points; else the newest sentence is drawn
    this.drawing = false;
    this.done = new Map(); // what has been drawn -> what it was drawn of
    this.build(name, watch, remove);
    this.talk = watch ? new Watch(watch) : new Talk({ token, delta });
    for (const type of EVENTS) this.talk.addEventListener(type, ({ detail }) => this.take(detail));
    this.talk.addEventListener("state", ({ detail }) => this.emit("state", detail));
    this.talk.addEventListener("tail", ({ detail }) => this.emit("tail", detail));
  }

  build(name, watch, remove) {
    const why = `why-${name}`;
    this.slider = html("input", { type: "range", id: `latency-${name}`, "aria-label": `Latency of translation ${name}` });
    this.shown = html("output", { for: `latency-${name}`, "aria-live": "off" });
    this.symbol = html("span", { class: "symbol" }, "δ");
    const named = html("span", { "aria-hidden": "true" }, "Latency ", this.symbol);
    this.bar = html("div", { class: "bar", hidden: true }, named, this.slider, this.shown);
    this.compare = html("button", { type: "button" }, remove ? "Remove" : "Compare two latencies");
    this.compare.addEventListener("click", () => (remove ? remove(this) : this.emit("compare")));
    if (!watch) this.bar.append(this.compare);
    const list = html("div", { class: "reading", role: "group", "aria-label": `Translation ${name}` });
    this.reading = new Reading(list, (sentence, word) => this.point(sentence, word), why);
    this.why = html("p", { class: "why", id: why }, HINT);
    const frame = { class: "staircase", tabindex: 0, role: "group", "aria-label": `READ and WRITE of translation ${name}` };
    this.frame = html("div", frame);
    this.plot = html("div", { class: "plot" });
    this.scale = html("p", { class: "scale", "aria-hidden": "true" });
    this.lag = html("p", { class: "summary" });
    this.scores = html("p", { class: "scores" });
    this.element = html(
      "section",
      { class: "pane silent", "aria-label": `Translation ${name}, its waiting and its lag` },
      this.bar,
      html("div", { class: "words" }, list, this.why),
      html("div", { class: "pictures" }, this.frame, html("div", { class: "lag-box" }, this.scale, this.plot), this.lag, this.scores),
    );
    this.slider.addEventListener("input", () => this.choose());
    this.room = Infinity; // the picture's
    new ResizeObserver(([{ contentRect }]) => {
      this.room = contentRect.width;
      this.draw();
    }).observe(this.frame);
  }

  take(message) {
    if (message.type === "ready") this.show(message);
    const sentence = this.transcript.take(message);
    if (message.type === "ready") this.emit("ready");
    if (message.type === "delta") this.label(message.value);
    if (this.transcript.heard) this.element.classList.remove("silent");
    if (sentence) this.reading.update(sentence, this.transcript.ready?.languages ?? ["", ""]);
    // what was pointed at stays until something new is said
    if (message.type === "heard" && !this.reading.lit && this.pointed?.sentence !== sentence) this.pointed = null;
    if (message.type === "end") this.score();
    this.draw();
  }

  point(sentence, word) {
    this.pointed = { sentence, word };
    this.why.textContent = word ? waitedFor(sentence, word) : HINT;
    this.draw();
  }

  /** At most once a frame. */
  draw() {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.render();
      this.emit("drawn");
    });
  }

  render() {
    const { transcript } = this;
    const { current } = transcript;
    const waiting = transcript.waiting();
    this.reading.follow();
    this.reading.await(waiting.more ? current : null, waiting.more);
    const newest = current?.heard.length ? current : transcript.sentences.at(-2);
    const sentence = this.pointed?.sentence ?? newest;
    if (sentence) {
      const positions = Boolean(transcript.ready?.positions);
      const open = sentence === current && !sentence.ended ? waiting : null;
      const options = { positions, waiting: open, word: this.pointed?.word, room: this.room };
      this.once("staircase", [sentence, ...stateOf(sentence), open?.kind, open?.more, options.word, this.room], () => {
        this.frame.replaceChildren(staircase(sentence, options));
        if (!this.pointed) [this.frame.scrollTop, this.frame.scrollLeft] = [BEYOND, BEYOND];
      });
    }
    const words = transcript.newest(WORDS);
    this.once("lag", [words.at(-1)], () => this.drawLag(words));
  }

  /** Do something unless it was last done with the same. */
  once(what, given, act) {
    const before = this.done.get(what);
    if (before?.every((value, place) => value === given[place])) return;
    this.done.set(what, given);
    act();
  }

  drawLag(words) {
    const scale = scales(this.beside().flatMap((pane) => pane.transcript.newest(WORDS)));
    this.plot.replaceChildren(lagPlot(words, scale));
    this.lag.textContent = summary(words);
    this.scale.textContent = words.length ? `top: ${scale.furthest} words · ${(scale.slowest / 1000).toFixed(2)} s` : "";
  }

  /** AL and LAAL of every sentence that has ended, and BLEU of those with a reference. */
  score() {
    const done = this.transcript.spoken.filter((one) => one.ended);
    for (const [index, sentence] of done.entries()) {
      const reference = this.references[index] ?? "";
      if (sentence.score?.reference === reference) continue;
      const score = (sentence.score = scoreOf(sentence, reference));
      const quality = reference ? `BLEU ${score.bleu?.toFixed(1) ?? "–"} · ` : "";
      if (score.al === null) continue;
      this.reading.score(sentence, `${quality}AL ${score.al.toFixed(1)} · LAAL ${score.laal.toFixed(1)} words`);
    }
    this.scores.textContent = done.length ? `All of it: ${averages(done.map(({ score }) => score))}` : "";
  }

  show({ delta }) {
    // a policy may have no latency to choose
    if (!delta.symbol || !this.bar.hidden) return;
    this.bar.hidden = false;
    this.symbol.textContent = delta.symbol;
    const high = Number.isFinite(delta.high) ? delta.high : FURTHEST;
    const step = delta.whole ? 1 : niceStep(high - delta.low);
    Object.assign(this.slider, { min: delta.low, max: high, step, value: delta.value });
    this.label(delta.value);
  }

  choose() {
    this.talk.keep?.(Number(this.slider.value));
    this.shown.textContent = `${this.slider.value} …`; // until the server keeps it
  }

  label(value) {
    this.shown.textContent = value;
    if (document.activeElement !== this.slider) this.slider.value = value;
  }

  close() {
    this.talk.close();
    this.element.remove();
  }

  emit(type, detail = {}) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/** What changes in a sentence: in one that has been drawn nothing else does. */
function stateOf({ heard, written, ended, attention }) {
  return [heard.length, written.length, ended, attention];
}

/** The largest of 1, 2.5 and 5 times a power of ten that cuts a range into 20 steps or more. */
function niceStep(range) {
  const power = 10 ** Math.floor(Math.log10(range / 20));
  return [5, 2.5, 1].map((factor) => factor * power).find((step) => step <= range / 20) ?? power;
}
