// The page: one voice, one or two translations of it, and what a person is told about them.

import { asInstances, asSrt, asText, asVtt, save } from "./export.js";
import { Pane } from "./pane.js";
import { Microphone, SAMPLE, dictate, split } from "./speaker.js";

const $ = (id) => document.getElementById(id);
const names = new Intl.DisplayNames("en", { type: "language" });
const STATES = {
  connecting: "connecting …",
  reconnecting: "connecting again …",
  open: "waiting for you",
  gone: "the server is gone: trying again",
  full: "the server takes nobody more: trying again",
  idle: "resting: it goes on when you do",
  refused: "refused",
  ended: "nobody speaks here now: looking again",
};
const REFUSED = {
  other_model: "The server has another model now, so this talk cannot go on. Begin a new one.",
  flood: "Too much text was sent at once. Begin a new talk and go slower.",
};
// milliseconds that good news stands
const GOOD_NEWS = 6000;

let panes = [];
let stopDictating = null, microphone = null, token = null, goodNews = null, lost = false;
const watched = new URLSearchParams(location.search).get("watch");

function addPane(options = {}) {
  const pane = new Pane(panes.length ? "2" : "1", () => panes, { token, watch: watched, ...options });
  const isFirst = () => pane === panes[0];
  pane.addEventListener("state", ({ detail }) => isFirst() && tellState(detail));
  pane.addEventListener("ready", () => isFirst() && greet());
  pane.addEventListener("drawn", () => isFirst() && tellWaiting());
  pane.addEventListener("compare", comparePanes);
  pane.addEventListener("tail", ({ detail }) => ($("tail").textContent = detail.text));
  panes.push(pane);
  $("panes").append(pane.element);
  $("panes").classList.toggle("two", panes.length > 1);
}

function comparePanes() {
  if (panes.length > 1) return;
  panes[0].compare.hidden = true;
  const { low, high } = panes[0].transcript.ready.delta;
  addPane({ remove: removePane, delta: panes[0].transcript.delta > (low + high) / 2 ? low : high });
  refer();
}

function removePane(pane) {
  pane.close();
  panes = panes.filter((one) => one !== pane);
  $("panes").classList.remove("two");
  panes[0].compare.hidden = false;
  panes[0].compare.focus();
}

function say(text) {
  for (const pane of panes) pane.talk.say(text);
}

function endSentence() {
  for (const pane of panes) pane.talk.end();
}

/** A sentence for the person: news that is good goes away by itself. */
function notify(text, good = false) {
  clearTimeout(goodNews);
  $("notice").textContent = text;
  $("notice").classList.toggle("good", good);
  if (good) goodNews = setTimeout(() => notify(""), GOOD_NEWS);
}

function showState(kind, text) {
  const state = $("state");
  if (state.textContent !== text) state.textContent = text;
  state.dataset.state = kind;
}

function tellWaiting() {
  const { talk, transcript } = panes[0];
  if (talk.state !== "open" || !transcript.ready) return;
  const { kind, more } = transcript.waiting();
  const behind = talk.behind ?? 0;
  if (behind > 1) return showState("behind", `behind: ${behind} words to go`);
  const [from] = languages(transcript.ready);
  const text = {
    you: watched ? "reading along" : "waiting for you",
    end: "waiting for the end of the sentence",
    words: `waiting for more ${from}: ${more} token${more === 1 ? "" : "s"}`,
  }[kind];
  showState(kind, text);
}

function tellState({ state, code, message }) {
  showState(state, watched && state === "open" ? "reading along" : STATES[state]);
  const { connections } = panes[0].talk;
  if (state === "gone") {
    lost = true;
    const [what, until] = connections ? ["The connection broke", "it is back"] : ["No server answers", "one does"];
    notify(`${what}. What you say is kept until ${until}.`);
  }
  if (state === "full") notify("The server has no place left, or is closing. What you say is kept until there is one.");
  const needsToken = state === "refused" && code === "unauthorized";
  if (needsToken) {
    notify(token === null ? "This server asks for a token." : "That token is not the right one.");
  } else if (state === "refused") {
    notify(REFUSED[code] ?? `The server refused: ${message ?? "it gave no reason"}. Begin a new talk.`);
  } else if (state === "open" && lost) {
    notify(connections > 1 ? "Connected again: nothing was lost." : "Connected.", true);
    lost = false;
  }
  $("token-form").hidden = !needsToken;
  if (needsToken) $("token").focus();
}

function greet() {
  const { ready } = panes[0].transcript;
  const [from, to] = languages(ready);
  $("about").textContent = `${from} into ${to}, while it is being said.`;
  for (const element of document.querySelectorAll(".from")) element.textContent = from;
  document.querySelector(".legend .positions").hidden = !ready.positions;
  const link = new URL(`?watch=${ready.session}`, location.href).href;
  Object.assign($("watch"), { href: link, textContent: link });
}

function languages(ready) {
  return ready.languages.map((code) => names.of(code) ?? code);
}

function refer() {
  const lines = $("reference").value.split("\n").map((line) => line.trim());
  for (const pane of panes) {
    pane.references = lines;
    pane.score();
  }
}

function begin() {
  stopDictating?.();
  microphone?.stop();
  for (const pane of panes) pane.close();
  panes = [];
  lost = false;
  $("tail").textContent = "";
  notify("");
  addPane();
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
      const instead = now ? `now says “${now}”` : "now leaves it out";
      notify(`The recogniser heard “${heard}” and ${instead}. What has been translated stands.`);
    },
    stopped: (reason) => {
      microphone = null;
      $("microphone").setAttribute("aria-pressed", "false");
      if (reason) notify(`The browser gives no speech (${reason}). Allow the microphone, or type.`);
    },
  });
});
$("again").addEventListener("click", begin);
$("reference").addEventListener("input", refer);
$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  begin();
});
for (const button of document.querySelectorAll("[data-export]")) {
  button.addEventListener("click", () => {
    const { transcript, references } = panes[0];
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
