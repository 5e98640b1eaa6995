// The page: one voice, one or two translations of it, and the pictures of the sentence a person looks at.

import { asInstances, asSrt, asText, asVtt, save } from "./export.js";
import { lagPlot, summary } from "./lag.js";
import { Pane } from "./pane.js";
import { waitedFor } from "./reading.js";
import { bleu, lags } from "./scores.js";
import { Microphone, SAMPLE, dictate, split } from "./speaker.js";
import { staircase } from "./staircase.js";

const $ = (id) => document.getElementById(id);
const names = new Intl.DisplayNames("en", { type: "language" });
const REFUSED = {
  unauthorized: "The server asks for a token. Type it below.",
  other_model: "The server has another model now, so this talk cannot go on. Begin a new one.",
  flood: "Too much text was sent at once. Begin a new talk and go slower.",
};

let panes = [];
let shown = { sentence: null, word: null, pane: null }; // what the pictures show; no sentence: the newest
let stopDictating = null, microphone = null, token = null, drawn = false;
const watched = new URLSearchParams(location.search).get("watch");

function addPane(options = {}) {
  const pane = new Pane(panes.length ? "2" : "1", { token, watch: watched, ...options });
  pane.addEventListener("state", ({ detail }) => pane === panes[0] && tellState(detail));
  pane.addEventListener("change", () => draw());
  pane.addEventListener("compare", () => comparePanes());
  pane.addEventListener("tail", ({ detail }) => ($("tail").textContent = detail.text));
  pane.addEventListener("inspect", ({ detail }) => inspect(pane, detail));
  panes.push(pane);
  $("panes").append(pane.element);
  return pane;
}

function comparePanes() {
  if (panes.length > 1) return;
  panes[0].compare.hidden = true;
  const { low, high } = panes[0].transcript.ready.delta;
  const other = panes[0].talk.delta > (low + high) / 2 ? low : high;
  addPane({ remove: removePane, delta: other });
}

function removePane(pane) {
  pane.close();
  panes = panes.filter((one) => one !== pane);
  panes[0].compare.hidden = false;
  shown = { sentence: null, word: null, pane: null };
  draw();
}

function say(text) {
  for (const pane of panes) pane.talk.say(text);
}

function endSentence() {
  for (const pane of panes) pane.talk.end();
}

function inspect(pane, { sentence, word }) {
  shown = { pane, sentence, word };
  if (word) $("why").textContent = waitedFor(sentence, word);
  draw();
}

// at most once a frame
function draw() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    render();
  });
}

function render() {
  const pane = shown.pane ?? panes[0];
  if (!pane) return;
  const { transcript } = pane;
  const newest = transcript.spoken.at(-1) ?? null;
  // what was pointed at stays until something new is said
  if (shown.sentence && !shown.word && newest && shown.sentence !== newest && !newest.ended) shown.sentence = null;
  const sentence = shown.sentence ?? newest;
  const positions = Boolean(transcript.ready?.positions);
  document.querySelector(".positions-only").hidden = !positions;
  const waiting = transcript.waiting(transcript.current);
  const picture = sentence && staircase(sentence, { positions, waiting: sentence.ended ? null : waiting, word: shown.word });
  const frame = $("staircase");
  frame.replaceChildren(...(picture ? [picture] : []));
  if (!shown.sentence) [frame.scrollTop, frame.scrollLeft] = [frame.scrollHeight, frame.scrollWidth];
  $("lag-plot").replaceChildren(lagPlot(transcript));
  $("lag-text").textContent = summary(transcript.sentences.slice(-12).flatMap((one) => one.written).slice(-60));
  if (panes[0].talk.state === "open") tellWaiting(panes[0].transcript.waiting(panes[0].transcript.current), panes[0]);
  score();
}

function tellWaiting({ kind, more }, pane) {
  const { policy } = pane.transcript.ready ?? {};
  const text = {
    you: watched ? "reading along" : "waiting for you",
    end: "waiting for the end of the sentence",
    words: `waiting for ${more} more source token${more === 1 ? "" : "s"}: the words to come decide`,
    behind: "translating",
  }[kind];
  $("state").textContent = text;
  $("state").dataset.state = kind;
  $("state").title = policy ? `policy ${policy}` : "";
}

function tellState({ state, code, message }) {
  const text = {
    connecting: "connecting …",
    reconnecting: "connecting again: nothing is lost",
    open: "waiting for you",
    gone: "the server is gone: trying again, nothing is lost",
    idle: "resting: it goes on when you do",
    refused: "refused",
    ended: "the talk has ended",
  }[state];
  $("state").textContent = text;
  $("state").dataset.state = state;
  if (state === "refused") $("notice").textContent = REFUSED[code] ?? `The server refused: ${message ?? "no reason given"}.`;
  if (state === "open") {
    $("notice").textContent = "";
    const { languages, session } = panes[0].transcript.ready;
    const [from, to] = languages.map((code) => names.of(code) ?? code);
    $("about").textContent = `${from} into ${to} while it is being said; it shows why it waits.`;
    for (const element of document.querySelectorAll(".from")) element.textContent = from;
    const link = new URL(`?watch=${session}`, location.href).href;
    Object.assign($("watch"), { href: link, textContent: link });
  }
  $("token-form").hidden = !(state === "refused" && code === "unauthorized");
}

function score() {
  const lines = $("reference").value.split("\n").map((line) => line.trim());
  const text = [];
  for (const pane of panes) {
    const done = pane.transcript.spoken.filter((one) => one.ended);
    const pairs = done.map((one, index) => [one.written.map((word) => word.word).join(" "), lines[index] ?? ""]);
    const known = pairs.filter(([, reference]) => reference);
    for (const [index, one] of done.entries()) {
      const { al, laal } = lags(one, lines[index] || null);
      const quality = lines[index] ? `BLEU ${bleu([pairs[index]])?.toFixed(1) ?? "–"} · ` : "";
      if (al !== null) pane.reading.score(one, `${quality}AL ${al.toFixed(1)} · LAAL ${laal.toFixed(1)} words`);
    }
    const mean = (pick) => done.map((one, index) => pick(lags(one, lines[index] || null))).filter(Number.isFinite);
    const average = (values) => (values.length ? (values.reduce((a, b) => a + b) / values.length).toFixed(2) : "–");
    const all = known.length ? `BLEU ${bleu(known)?.toFixed(1) ?? "–"} of ${known.length} sentences, ` : "";
    text.push(`${all}AL ${average(mean((lag) => lag.al))}, LAAL ${average(mean((lag) => lag.laal))} words`);
  }
  $("scores").textContent = text.join(" · ");
}

function begin() {
  stopDictating?.();
  microphone?.stop();
  for (const pane of panes) pane.close();
  panes = [];
  shown = { sentence: null, word: null, pane: null };
  $("tail").textContent = "";
  addPane();
  draw();
}

const typed = $("typed");
typed.addEventListener("input", (event) => {
  if (event.isComposing) return;
  const [complete, rest] = split(typed.value);
  if (!complete) return;
  say(complete);
  typed.value = rest;
});
typed.addEventListener("compositionend", () => typed.dispatchEvent(new InputEvent("input")));
typed.addEventListener("paste", (event) => {
  event.preventDefault();
  const text = typed.value + event.clipboardData.getData("text");
  typed.value = "";
  say(/\s$/.test(text) ? text : `${text} `);
});
$("typing").addEventListener("submit", (event) => {
  event.preventDefault();
  if (typed.value) say(`${typed.value} `);
  typed.value = "";
  endSentence();
});
$("sample").addEventListener("click", () => {
  if (stopDictating) return stopDictating();
  $("sample").setAttribute("aria-pressed", "true");
  stopDictating = dictate(SAMPLE, say, () => {
    stopDictating = null;
    $("sample").setAttribute("aria-pressed", "false");
    endSentence();
  });
});
$("microphone").hidden = !Microphone.isOffered;
$("microphone").addEventListener("click", () => {
  if (microphone) return microphone.stop();
  $("microphone").setAttribute("aria-pressed", "true");
  microphone = new Microphone(panes[0].transcript.ready?.languages[0] ?? "de", {
    say,
    end: endSentence,
    tail: (text) => {
      $("tail").textContent = text;
      panes[0].talk.tail(text);
    },
    contradiction: (heard, now) => {
      $("notice").textContent = `The recogniser heard “${heard}” and now says “${now}”. What was pushed stands.`;
    },
    stopped: (reason) => {
      microphone = null;
      $("microphone").setAttribute("aria-pressed", "false");
      if (reason) $("notice").textContent = `The browser gives no microphone (${reason}). Allow it, or type.`;
    },
  });
});
$("again").addEventListener("click", begin);
$("reference").addEventListener("input", score);
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  begin();
});
for (const button of document.querySelectorAll("[data-export]")) {
  button.addEventListener("click", () => {
    const { transcript } = panes[0];
    const references = $("reference").value.split("\n");
    const make = {
      text: () => ["talk.txt", asText(transcript)],
      srt: () => ["talk.srt", asSrt(transcript)],
      vtt: () => ["talk.vtt", asVtt(transcript)],
      log: () => ["instances.log", asInstances(transcript, references)],
    }[button.dataset.export];
    save(...make());
  });
}
document.body.classList.toggle("watching", Boolean(watched));
begin();
// for tests and for the curious: what the page knows
window.gma = { get panes() { return panes; } };
