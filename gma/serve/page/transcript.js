// What has been heard and written, sentence by sentence. Nothing here knows of the page.

/** A sentence:
 *   number
 *   heard      source words {word, source, pieces (none: it is left out), tokens: how many stand before it, at: ms}
 *   written    target words as the server sends them, with at, delta, and lag {words, policy, queued, computed, total}
 *   ended      the server's `end`, or null
 *   wait       the server's newest `wait`, or null
 *   attention  [target word][source word, and the end], 0 to 1, the mean over layers; or null
 */
export class Transcript {
  constructor(now = () => performance.now()) {
    this.now = now;
    this.sentences = [];
    this.delta = null;
    this.ready = null;
    this.heard = 0; // words, of the whole talk
  }

  sentence(number) {
    while (this.sentences.length <= number) {
      const sentence = { number: this.sentences.length, heard: [], written: [], ended: null, wait: null, attention: null };
      this.sentences.push(sentence);
    }
    return this.sentences[number];
  }

  get current() {
    return this.sentences.at(-1) ?? null;
  }

  /** Takes in a server's message; returns the sentence it is about, or null. */
  take(message) {
    if (message.type === "ready") {
      this.ready = message;
      this.delta ??= message.delta.value;
      return null;
    }
    if (message.type === "delta") {
      this.delta = message.value;
      return this.sentence(message.sentence);
    }
    if (!("sentence" in message)) return null;
    const sentence = this.sentence(message.sentence);
    if (message.type === "heard") this.hear(sentence, message.words);
    if (message.type === "words") this.write(sentence, message);
    if (message.type === "wait") sentence.wait = message;
    if (message.type === "end") this.finish(sentence, message);
    if (message.type === "attention") sentence.attention = meanOfLayers(message.weights);
    return sentence;
  }

  hear(sentence, words) {
    for (const word of words) {
      const last = sentence.heard.at(-1);
      const tokens = last ? last.tokens + last.pieces.length : 0;
      sentence.heard.push({ ...word, tokens, at: this.now() });
    }
    this.heard += words.length;
  }

  finish(sentence, end) {
    [sentence.ended, sentence.wait] = [end, null];
    // the model may end a translation before the sentence: words behind its end are heard again, in the next one
    const before = sentence.heard.length;
    sentence.heard = sentence.heard.filter((word) => word.source[0] < end.source[1]);
    this.heard -= before - sentence.heard.length;
  }

  write(sentence, { words, ms }) {
    const { heard } = sentence;
    for (const word of words) {
      const last = heard[Math.min(word.source_words, heard.length) - 1];
      // where the word looks: what it heard beyond that, it heard because its policy wanted to
      const place = word.p.length && this.ready?.positions ? placeOf(Math.max(...word.p), heard) : word.index;
      const aligned = heard[Math.min(Math.floor(place), word.source_words - 1)];
      const policy = last && aligned ? Math.max(0, last.at - aligned.at) : 0;
      // source and translation of one step arrive together
      const total = last ? Math.max(this.now() - last.at, ms.queued + ms.computed) : 0;
      const lag = { words: word.source_words - word.index, policy, ...ms, total };
      sentence.written.push({ ...word, at: this.now(), delta: this.delta, lag });
    }
  }

  /** Sentences with something in them. */
  get spoken() {
    return this.sentences.filter((sentence) => sentence.heard.length);
  }

  /** The last words that were written. */
  newest(count) {
    const words = [];
    for (let place = this.sentences.length - 1; place >= 0 && words.length < count; place -= 1) {
      words.unshift(...this.sentences[place].written);
    }
    return words.slice(-count);
  }

  /** Why the translator waits: {kind, more: source tokens}. */
  waiting(sentence = this.current) {
    const wait = sentence?.wait;
    if (!wait || sentence.ended || !sentence.heard.length) return { kind: "you", more: 0 };
    if (wait.awaited === null) return { kind: "end", more: 0 };
    const more = wait.awaited - wait.arrived;
    return more > 0 ? { kind: "words", more } : { kind: "you", more: 0 };
  }
}

/** The place of a token position, from 1, among words: word k (from 0) covers k … k + 1. */
export function placeOf(position, heard) {
  let word = 0;
  while (word + 1 < heard.length && heard[word + 1].tokens < position) word += 1;
  const { tokens = 0, pieces = [""] } = heard[word] ?? {};
  return word + Math.max(0, position - tokens - 0.5) / Math.max(1, pieces.length);
}

function meanOfLayers(layers) {
  return layers[0].map((row, target) =>
    row.map((_, source) => layers.reduce((sum, layer) => sum + layer[target][source], 0) / (100 * layers.length)),
  );
}
