// What has been heard and written, sentence by sentence. Nothing here knows of the page.

/** A sentence:
 *   number
 *   heard    source words {word, source, pieces, tokens: how many stand before it, at: milliseconds}
 *   written  target words as the server sends them, with at, delta, and lag {words, queued, computed, total}
 *   ended    the server's `end`, or null
 *   wait     the server's newest `wait`, or null
 */
export class Transcript {
  constructor(now = () => performance.now()) {
    this.now = now;
    this.sentences = [];
    this.delta = null;
    this.ready = null;
  }

  sentence(number) {
    while (this.sentences.length <= number) {
      this.sentences.push({ number: this.sentences.length, heard: [], written: [], ended: null, wait: null });
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
    if (message.type === "end") [sentence.ended, sentence.wait] = [message, null];
    return sentence;
  }

  hear(sentence, words) {
    for (const word of words) {
      const last = sentence.heard.at(-1);
      const tokens = last ? last.tokens + last.pieces.length : 0;
      sentence.heard.push({ ...word, tokens, at: this.now() });
    }
  }

  write(sentence, { words, ms }) {
    for (const word of words) {
      const waitedFor = sentence.heard[Math.min(word.source_words, sentence.heard.length) - 1];
      const total = waitedFor ? this.now() - waitedFor.at : 0;
      const lag = { words: word.source_words - word.index, ...ms, total };
      sentence.written.push({ ...word, at: this.now(), delta: this.delta, lag });
    }
  }

  /** Sentences with something in them. */
  get spoken() {
    return this.sentences.filter((sentence) => sentence.heard.length);
  }

  /** Why the translator waits: {kind, word, more}. */
  waiting(sentence) {
    const wait = sentence?.wait;
    if (!wait || sentence.ended || !sentence.heard.length) return { kind: "you" };
    if (wait.awaited === null) return { kind: "end" };
    const more = wait.awaited - wait.arrived;
    return more > 0 ? { kind: "words", more, token: wait.awaited } : { kind: "behind" };
  }
}

/** The place of a token position, from 1, among words: word k (from 0) covers k … k + 1. */
export function placeOf(position, heard) {
  let word = 0;
  while (word + 1 < heard.length && heard[word + 1].tokens < position) word += 1;
  const { tokens = 0, pieces = [""] } = heard[word] ?? {};
  return word + Math.max(0, position - tokens - 0.5) / pieces.length;
}
