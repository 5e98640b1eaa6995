// One translation of the voice: its connection, its transcript, its latency.

import { html } from "./svg.js";
import { Reading } from "./reading.js";
import { Talk, Watch } from "./talk.js";
import { Transcript } from "./transcript.js";

const EVENTS = ["ready", "heard", "words", "wait", "delta", "end"];
// a control for waiting without end makes no sense: this is its right side
const FURTHEST = 20, STEPS = 40;

/** Events: "change" {sentence}, "state" {state, code, message}, "inspect" {sentence, word}. */
export class Pane extends EventTarget {
  constructor(name, { token = null, watch = null, remove = null, delta = null } = {}) {
    super();
    this.transcript = new Transcript();
    this.slider = html("input", { type: "range", "aria-label": `Latency of translation ${name}` });
    this.shown = html("output");
    this.symbol = html("label", {}, "δ");
    const bar = html("div", { class: "bar" }, this.symbol, this.slider, this.shown);
    this.compare = html("button", { type: "button" }, remove ? "Remove" : "Two latencies side by side");
    this.compare.addEventListener("click", () => (remove ? remove(this) : this.emit("compare")));
    if (!watch) bar.append(html("div", { class: "controls" }, this.compare));
    const reading = html("div", { class: "reading" });
    this.reading = new Reading(reading, (sentence, word) => this.emit("inspect", { sentence, word }));
    this.element = html("div", { class: "pane" }, bar, reading);
    this.slider.addEventListener("input", () => this.choose());
    this.open(watch, token, delta);
  }

  open(watch, token, delta) {
    this.talk = watch ? new Watch(watch) : new Talk({ token, delta });
    for (const type of EVENTS) this.talk.addEventListener(type, ({ detail }) => this.take(detail));
    this.talk.addEventListener("state", ({ detail }) => this.emit("state", detail));
    this.talk.addEventListener("tail", ({ detail }) => this.emit("tail", detail));
  }

  take(message) {
    if (message.type === "ready") this.show(message);
    const sentence = this.transcript.take(message);
    if (message.type === "delta") this.label(message.value);
    if (sentence) this.reading.update(sentence, this.transcript.ready?.languages ?? ["", ""]);
    this.emit("change", { sentence });
  }

  show({ delta }) {
    for (const part of [this.symbol, this.slider, this.shown]) part.hidden = !delta.symbol;
    if (!delta.symbol || this.configured) return;
    this.configured = true;
    this.symbol.textContent = delta.symbol;
    const high = Number.isFinite(delta.high) ? delta.high : FURTHEST;
    const step = Number.isInteger(delta.low) && Number.isInteger(delta.value) && high - delta.low >= 4 ? 0.5 : (high - delta.low) / STEPS;
    Object.assign(this.slider, { min: delta.low, max: high, step, value: delta.value });
    this.label(delta.value);
  }

  choose() {
    this.talk.keep?.(Number(this.slider.value));
    this.shown.textContent = `${this.slider.value} …`; // until the server keeps it
  }

  label(value) {
    this.shown.textContent = value;
    if (this.transcript.ready?.delta.symbol && document.activeElement !== this.slider) this.slider.value = value;
  }

  close() {
    this.talk.close?.();
    this.element.remove();
  }

  emit(type, detail = {}) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
