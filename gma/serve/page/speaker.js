// Where words come from: the keyboard, a sample at the speed of speech, the microphone.

export const SAMPLE =
  "Ich habe gestern meinen alten Freund im Park getroffen. Ich glaube nicht, dass Tom heute kommen wird. " +
  "Wenn es morgen regnet, bleiben wir zu Hause.";
const MILLISECONDS_A_WORD = 400, MILLISECONDS_TO_RESTART = 200;
// errors of speech recognition that another try would meet again
const REFUSALS = new Set(["not-allowed", "service-not-allowed", "audio-capture", "language-not-supported", "network"]);

/** Says a text word by word; returns a function that stops it. `done` is called at the end or when stopped. */
export function dictate(text, say, done) {
  const words = text.match(/\S+\s*/g) ?? [];
  let timer = null;
  const stop = () => {
    clearTimeout(timer);
    done();
  };
  const next = () => {
    if (!words.length) return stop();
    const word = words.shift();
    say(/\s$/.test(word) ? word : `${word} `);
    timer = setTimeout(next, MILLISECONDS_A_WORD);
  };
  next();
  return stop;
}

/** Complete words of what is being typed, and the one that may still change. */
export function split(typed) {
  const end = Math.max(...[...typed.matchAll(/\s/g)].map((match) => match.index), -1) + 1;
  return [typed.slice(0, end), typed.slice(end)];
}

/** Speech recognition that pushes only what stands: words that two interim results in a row agree on, or final ones.
 *
 * Calls say(text), tail(text) for what may still change, end() at a final result, contradiction(heard, now) when a
 * word that was pushed is recognised otherwise (now is empty where it is left out), and stopped(reason).
 */
export class Microphone {
  constructor(language, { say, tail, end, contradiction, stopped }) {
    Object.assign(this, { say, tail, end, contradiction, stopped });
    const Recognition = window.SpeechRecognition ?? window.webkitSpeechRecognition;
    this.recognition = new Recognition();
    Object.assign(this.recognition, { lang: language, continuous: true, interimResults: true });
    this.recognition.onresult = (event) => this.hear(event);
    this.recognition.onerror = (event) => (this.reason = event.error);
    this.recognition.onend = () => this.pause();
    this.fresh();
    this.wanted = true;
    this.recognition.start();
  }

  static get isOffered() {
    return Boolean(window.SpeechRecognition ?? window.webkitSpeechRecognition);
  }

  fresh() {
    [this.pushed, this.before] = [[], []];
  }

  hear(event) {
    this.reason = null;
    for (let index = event.resultIndex; index < event.results.length; index += 1) {
      const result = event.results[index], { transcript, confidence } = result[0];
      // Android calls interim results final, with no confidence
      const isFinal = result.isFinal && !(confidence === 0 && /Android/.test(navigator.userAgent));
      const words = transcript.trim().split(/\s+/).filter(Boolean);
      this.push(words, isFinal ? words.length : common(words, this.before), isFinal);
      this.before = words;
      if (isFinal) {
        this.end();
        this.fresh();
      }
    }
    this.tail(this.before.slice(this.pushed.length).join(" "));
  }

  push(words, agreed, isFinal) {
    for (const [place, word] of this.pushed.entries()) {
      const now = words[place] ?? "";
      // an interim result may be shorter than the one before, and grow again
      if (bare(now) === bare(word.now) || (!now && !isFinal)) continue;
      this.contradiction(word.heard, now);
      word.now = now; // said once
    }
    for (const word of words.slice(this.pushed.length, agreed)) {
      this.pushed.push({ heard: word, now: word });
      this.say(`${word} `);
    }
  }

  /** Browsers end recognition after a silence: it begins again until the speaker stops it, or it was refused. */
  pause() {
    if (this.pushed.length) this.end();
    this.fresh();
    this.tail("");
    if (!this.wanted || REFUSALS.has(this.reason)) return this.stopped(this.wanted ? this.reason : null);
    setTimeout(() => (this.wanted ? this.recognition.start() : this.stopped(null)), MILLISECONDS_TO_RESTART);
  }

  stop() {
    this.wanted = false;
    this.recognition.stop();
  }
}

function common(one, other) {
  let length = 0;
  while (length < Math.min(one.length, other.length) && one[length] === other[length]) length += 1;
  return length;
}

/** A word without what a recogniser adds to it in the end: capitals and punctuation. */
function bare(word) {
  return word.toLowerCase().replace(/[\p{P}\p{S}]/gu, "");
}
