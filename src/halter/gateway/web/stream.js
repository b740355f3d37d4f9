// The events of one session, as they come, over connections that may break.
//
// Each connection continues after the last event that was received, so nothing is missed and nothing comes twice. One
// that is silent for longer than the gateway ever is counts as broken. Closing a stream stops no turn.

import { Problem } from "./api.js";

const FIRST_PAUSE = 500;
const MAX_PAUSE = 15_000;
const CONNECT_TIMEOUT = 20_000; // until the gateway answers at all
const MAX_SILENCE = 40_000; // the gateway sends a heartbeat every 15 s

export class EventStream {
  #closing = new AbortController();
  #wake = () => {};
  #connection = null;

  /**
   * `onEvents(list)` gets what has come in one piece. `onState` gets "joining"; "live" when all that had happened before
   * has come; "waiting", "gone" or "refused".
   */
  constructor(api, session, { onEvents, onState, onClock }) {
    this.api = api;
    this.session = session;
    this.last = 0;
    this.onEvents = onEvents;
    this.onState = onState;
    this.onClock = onClock;
    this.heard = performance.now();
  }

  /** Follow until close(), or until there is nothing to follow. */
  async run() {
    let pause = FIRST_PAUSE;
    while (!this.#closing.signal.aborted) {
      this.onState("joining");
      const began = performance.now();
      try {
        await this.#follow();
      } catch (error) {
        if (this.#closing.signal.aborted) return;
        if (error instanceof Problem && [401, 403, 404].includes(error.status)) {
          this.onState(error.status === 404 ? "gone" : "refused", error.message);
          return;
        }
        if (error instanceof Problem && error.retryAfter) pause = Math.max(pause, error.retryAfter * 1000);
      }
      if (this.#closing.signal.aborted) return;
      if (performance.now() - began > MAX_PAUSE) pause = FIRST_PAUSE;
      this.onState("waiting", pause);
      await this.#rest(pause * (0.75 + Math.random() / 2));
      pause = Math.min(pause * 2, MAX_PAUSE);
    }
  }

  close() {
    this.#closing.abort();
    this.#connection?.abort();
    this.#wake();
  }

  /** Try again now; and drop a connection that may have died while the tab was hidden. */
  nudge() {
    this.#wake();
    if (performance.now() - this.heard > MAX_SILENCE / 2) this.#connection?.abort();
  }

  async #follow() {
    const connection = new AbortController();
    this.#connection = connection;
    let watch = setTimeout(() => connection.abort(), CONNECT_TIMEOUT);
    try {
      const response = await this.api.events(this.session, this.last, connection.signal);
      this.onClock(Date.parse(response.headers.get("Date") ?? ""));
      const before = Number(response.headers.get("Halter-Last-Event")); // 0 if the header is missing
      let isLive = false;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new Parser();
      for (;;) {
        if (!isLive && this.last >= before) {
          isLive = true;
          this.onState("live");
        }
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(watch);
        watch = setTimeout(() => connection.abort(), MAX_SILENCE);
        this.heard = performance.now();
        const events = parser.take(value);
        if (events.length) {
          this.last = events.at(-1).seq;
          this.onEvents(events);
        }
      }
    } finally {
      clearTimeout(watch);
      connection.abort();
    }
  }

  #rest(milliseconds) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** Assembles server-sent events from pieces that are cut anywhere. */
export class Parser {
  #pieces = []; // of an event that has not ended: a large one is joined once, not with every piece

  take(piece) {
    const seam = (this.#pieces.at(-1)?.at(-1) ?? "") + piece[0];
    if (seam !== "\n\n" && !piece.includes("\n\n")) {
      if (piece) this.#pieces.push(piece);
      return [];
    }
    const blocks = (this.#pieces.join("") + piece).split("\n\n");
    const rest = blocks.pop();
    this.#pieces = rest ? [rest] : [];
    return blocks
      .map(dataOf)
      .filter(Boolean)
      .map((data) => JSON.parse(data));
  }
}

function dataOf(block) {
  const lines = block.split("\n").filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(line[5] === " " ? 6 : 5)).join("\n");
}
