// Reads /events with fetch: unlike EventSource it can send a token. Comes back by itself, from where it was.

const PAUSE_MIN_MS = 500;
const PAUSE_MAX_MS = 5_000;
/** The server says something at least every 15 seconds. */
const SILENCE_MAX_MS = 40_000;
const TOKEN = "forkpoint-token";

export class Stream {
  #lastId = null;
  #pause = PAUSE_MIN_MS;
  #token = null;
  #wake = null;

  /** Calls `onEvent(name, data)` for each event, and `onState("live" | "lost" | "token" | "full" | "unreadable", detail)`. */
  constructor(onEvent, onState) {
    this.onEvent = onEvent;
    this.onState = onState;
    try {
      this.#token = sessionStorage.getItem(TOKEN);
    } catch {
      // Without storage the token is asked for again after a reload.
    }
  }

  /** Takes a token that the reader typed, and tries again at once. */
  useToken(token) {
    this.#token = token;
    try {
      sessionStorage.setItem(TOKEN, token);
    } catch {
      // See above.
    }
    this.retry();
  }

  /** Ends the pause before the next attempt. */
  retry() {
    this.#wake?.();
  }

  async run() {
    for (;;) {
      const outcome = await this.#read();
      this.onState(...outcome);
      await this.#wait(outcome[0] === "token" ? null : this.#pause);
      this.#pause = Math.min(2 * this.#pause, PAUSE_MAX_MS);
    }
  }

  async #wait(ms) {
    await new Promise((resolve) => {
      this.#wake = resolve;
      if (ms !== null) setTimeout(resolve, ms * (0.75 + Math.random() / 2));
    });
    this.#wake = null;
  }

  /** Reads until the stream ends, and returns why. */
  async #read() {
    const abort = new AbortController();
    const headers = { accept: "text/event-stream" };
    // No header takes such a token: forkpoint has another.
    if (this.#token && /[^\x20-\x7e]/.test(this.#token)) return ["token", true];
    if (this.#token) headers.authorization = `Bearer ${this.#token}`;
    if (this.#lastId) headers["last-event-id"] = this.#lastId;
    let silence = null;
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => abort.abort(), SILENCE_MAX_MS);
    };
    heard();
    try {
      const answer = await fetch("/events", { headers, signal: abort.signal, cache: "no-store" }).catch(() => null);
      if (answer?.status === 401) return ["token", this.#token !== null];
      if (answer?.status === 503) return ["full"];
      if (!answer?.ok || !answer.body) return ["lost"];
      this.onState("live");
      const parser = new Parser();
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read().catch(() => ({ done: true }));
        if (done) return ["lost"];
        heard();
        if (!parser.push(value).every((event) => this.#take(event))) return ["unreadable"];
      }
    } finally {
      clearTimeout(silence);
      abort.abort();
    }
  }

  /** Hands an event on. Returns false if it cannot be taken: then everything is asked for again. */
  #take({ id, event, data }) {
    try {
      if (data) this.onEvent(event, JSON.parse(data));
    } catch (error) {
      reportError(error);
      this.#lastId = null;
      return false;
    }
    this.#pause = PAUSE_MIN_MS;
    if (id) this.#lastId = id;
    return true;
  }
}

/** Splits a text into server-sent events, however it is cut. */
class Parser {
  #parts = [];
  #event = {};
  #whole = [];

  /** Takes a piece of the text, and returns the events that end in it. */
  push(text) {
    let start = 0;
    for (;;) {
      const end = text.indexOf("\n", start);
      if (end < 0) break;
      this.#parts.push(text.slice(start, end));
      this.#line(this.#parts.length === 1 ? this.#parts[0] : this.#parts.join(""));
      this.#parts = [];
      start = end + 1;
    }
    if (start < text.length) this.#parts.push(text.slice(start));
    return this.#whole.splice(0);
  }

  #line(line) {
    if (line === "") {
      if (this.#event.event) this.#whole.push(this.#event);
      this.#event = {};
      return;
    }
    const colon = line.indexOf(": ");
    if (colon > 0) this.#event[line.slice(0, colon)] = line.slice(colon + 2);
  }
}
