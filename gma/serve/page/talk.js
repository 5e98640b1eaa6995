// One speaker's connection, which goes on by itself: it holds what a server needs to continue the talk.
// docs/protocol.md describes the messages; gma/client is the same in Python.

const WINDOW = 24; // messages on their way, below the server's limit
const LARGEST_TEXT = 1000; // characters in a message
const FIRST_PAUSE = 250, LONGEST_PAUSE = 4000; // milliseconds between tries
const FINAL = new Set([1007, 1008, 1009, 4401, 4403, 4404]);
const NUMBERED = new Set(["heard", "words", "delta", "end"]);

/** Events: "state" {state, code, message}, and one for every server message, named by its type.
 *
 * States: connecting, open, gone (no server there), full (a server that takes nobody more), reconnecting, idle (silent
 * for so long that the server hung up; goes on with the next word), refused.
 */
export class Talk extends EventTarget {
  constructor({ url = streamAddress(), delta = null, token = null } = {}) {
    super();
    this.url = url;
    this.delta = delta;
    this.token = token;
    this.text = []; // code points from the beginning of the open sentence on, sent or not
    this.source = 0; // where they begin, in characters of the talk
    this.ends = []; // where the speaker ended a sentence
    this.held = { n: 0, sentence: 0, target: 0, words: 0, heard: 0, pieces: [], changes: [] };
    this.key = this.model = null;
    this.connections = 0;
    this.closed = false;
    this.pause = FIRST_PAUSE;
    this.connect();
  }

  /** More of the source, cut anywhere. */
  say(text) {
    for (const character of text) this.text.push(character);
    this.pump();
  }

  /** The sentence ends here. */
  end() {
    this.ends.push(this.length);
    this.pump();
  }

  /** Another latency from the next word of the translation on. */
  keep(delta) {
    this.delta = delta;
    this.pump();
  }

  /** What a recogniser may still change: readers see it, nothing translates it. */
  tail(text) {
    if (this.isOpen) this.socket.send(JSON.stringify({ type: "tail", text: text.slice(-4000) }));
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.socket?.close();
  }

  /** Cut the wire, as a bad network does. */
  cut() {
    this.socket?.close();
  }

  /** Words that have been said and not been heard by the server. */
  get behind() {
    if (this.isOpen && this.sent === this.length && this.seq === this.ack) return 0;
    const complete = this.text.join("").match(/\S+(?=\s)/g) ?? [];
    return Math.max(0, complete.length - this.held.heard);
  }

  get length() {
    return this.source + this.text.length;
  }

  get isOpen() {
    return this.ready && this.socket.readyState === WebSocket.OPEN;
  }

  connect() {
    this.tell(this.key === null ? "connecting" : "reconnecting");
    this.ready = false;
    this.refusal = null;
    this.answered = false;
    const socket = (this.socket = new WebSocket(this.url));
    socket.onopen = () => {
      this.answered = true;
      const hello = { type: "hello", v: 1, attention: true };
      if (this.token) hello.token = this.token;
      if (this.delta !== null) hello.delta = this.delta;
      if (this.key !== null) {
        hello.resume = { key: this.key, model: this.model, source: this.source, ...this.held };
      }
      socket.send(JSON.stringify(hello));
    };
    socket.onmessage = (frame) => this.take(JSON.parse(frame.data));
    socket.onclose = (event) => socket === this.socket && this.lost(event.code);
  }

  take(message) {
    if (message.type === "error") {
      this.refusal = message;
      return;
    }
    if (message.type === "ready") {
      if (message.key) [this.key, this.model] = [message.key, message.model];
      if (!this.held.changes.length) this.held.changes = [[0, message.delta.value]];
      [this.sent, this.seq, this.ack, this.lastEnd] = [this.source, 0, 0, this.source - 1];
      this.asked = this.kept;
      this.delta ??= message.delta.symbol ? message.delta.value : null;
      this.ready = true;
      this.connections += 1;
      this.pause = FIRST_PAUSE;
    }
    if ("ack" in message) this.ack = message.ack;
    if (NUMBERED.has(message.type)) this.learn(message);
    this.dispatchEvent(new CustomEvent(message.type, { detail: message }));
    if (message.type === "ready") this.tell("open");
    this.pump();
  }

  /** The latency the server was last known to keep. */
  get kept() {
    return this.next ?? this.held.changes.at(-1)?.[1] ?? null;
  }

  learn(event) {
    const held = this.held;
    held.n = event.n;
    if (event.type === "heard") held.heard += event.words.length;
    if (event.type === "words") held.pieces.push(...event.words.map((word) => word.pieces));
    if (event.type === "delta") {
      if (event.sentence === held.sentence) {
        held.changes = [...held.changes.filter(([word]) => word < event.word), [event.word, event.value]];
      } else {
        this.next = event.value; // the open sentence was written already
      }
    }
    if (event.type === "end") {
      const end = event.source[1];
      this.text.splice(0, end - this.source);
      this.source = end;
      this.ends = this.ends.filter((place) => place > end);
      const target = event.target_words ? event.target[1] + 1 : held.target;
      const changes = held.changes.length ? [[0, this.kept]] : [];
      this.next = undefined;
      this.held = { n: held.n, sentence: event.sentence + 1, target, words: event.words, heard: 0, pieces: [], changes };
    }
  }

  pump() {
    if (this.state === "idle") return this.connect();
    while (this.isOpen && this.seq - this.ack < WINDOW) {
      const message = this.nextMessage();
      if (!message) return;
      this.socket.send(JSON.stringify({ ...message, seq: ++this.seq }));
    }
  }

  nextMessage() {
    if (this.delta !== null && this.delta !== this.asked) {
      this.asked = this.delta;
      return { type: "delta", value: this.delta };
    }
    const end = this.ends.find((place) => place > this.lastEnd);
    if (end !== undefined && end <= this.sent) {
      this.lastEnd = end;
      return { type: "end" };
    }
    const until = Math.min(end ?? this.length, this.sent + LARGEST_TEXT);
    if (until <= this.sent) return null;
    const text = this.text.slice(this.sent - this.source, until - this.source).join("");
    this.sent = until;
    return { type: "text", text };
  }

  lost(code) {
    this.ready = false;
    if (this.closed) return;
    if (FINAL.has(code)) {
      this.tell("refused", this.refusal?.code, this.refusal?.message);
      return;
    }
    if (code === 4408) return this.length > this.sent ? this.connect() : this.tell("idle");
    this.tell("gone");
    if (!this.answered) this.lookForReason();
    this.timer = setTimeout(() => this.connect(), this.pause * (0.5 + Math.random()));
    this.pause = Math.min(2 * this.pause, LONGEST_PAUSE);
  }

  /** A browser does not say why a socket was not opened: whether there is a server at all is another question. */
  async lookForReason() {
    const answer = await fetch(new URL("readyz", document.baseURI), { cache: "no-store" }).catch(() => null);
    if (answer && this.state === "gone") this.tell("full");
  }

  tell(state, code = null, message = null) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, code, message } }));
  }
}

/** A reader's view of somebody's talk: the same events, by server-sent events. */
export class Watch extends EventTarget {
  constructor(session) {
    super();
    this.url = `v1/watch/${encodeURIComponent(session)}`;
    this.n = 0; // of the last event: after a pause some come again
    this.open();
  }

  open() {
    const source = (this.source = new EventSource(this.url));
    source.onopen = () => this.tell("open");
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return this.tell("reconnecting");
      // nobody speaks there now; the speaker may come back
      this.tell("ended");
      this.timer = setTimeout(() => this.open(), LONGEST_PAUSE);
    };
    source.onmessage = (frame) => {
      const message = JSON.parse(frame.data);
      if (message.n <= this.n) return;
      this.n = message.n ?? this.n;
      this.dispatchEvent(new CustomEvent(message.type, { detail: message }));
    };
  }

  close() {
    clearTimeout(this.timer);
    this.source.close();
  }

  tell(state) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, code: null, message: null } }));
  }
}

function streamAddress() {
  const address = new URL("v1/stream", document.baseURI);
  address.protocol = address.protocol.replace("http", "ws");
  return address.href;
}
