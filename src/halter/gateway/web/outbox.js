// Messages on their way to the gateway. Each is sent until it is known to have arrived: with the same id, so it is
// there once; one after the other, so the order stays. What the gateway refuses is kept and shown, never dropped.

import { Problem } from "./api.js";

const FIRST_PAUSE = 500;
const MAX_PAUSE = 10_000;
const STORED = "halter.outbox";

export class Outbox {
  #working = new Set(); // sessions whose messages are being sent
  #wake = new Set();
  #held = new Map(); // from a session to what its messages wait for

  /** `onMade(session)` is called for each new session that the gateway has created for its first message. */
  constructor(api, { onChange, onMade }) {
    this.api = api;
    this.onChange = onChange;
    this.onMade = onMade;
    this.all = []; // as they were added, with a `state` ("sending", "waiting" or "refused"), an `error`, and `since`
  }

  /** Resume messages that were being sent when the page was closed, except recordings and images. */
  restore() {
    for (const entry of JSON.parse(sessionStorage.getItem(STORED) ?? "[]")) this.add(entry);
  }

  of(session) {
    return this.all.filter((entry) => entry.session === session);
  }

  add(entry) {
    this.all.push({ ...entry, state: "sending", error: "", since: Date.now() });
    this.#changed();
    this.#work(entry.session);
  }

  /** Remove one; returns it. */
  take(id) {
    const found = this.all.find((entry) => entry.id === id);
    this.all = this.all.filter((entry) => entry !== found);
    this.#changed();
    return found;
  }

  retry(id) {
    const entry = this.all.find((each) => each.id === id);
    if (!entry) return;
    Object.assign(entry, { state: "sending", error: "" });
    this.#changed();
    this.#work(entry.session);
  }

  /** Send messages of a session only after `done`, which never fails: a request may overtake the one before. */
  hold(session, done) {
    this.#held.set(session, Promise.all([this.#held.get(session), done]));
  }

  /** Try again now, as the network may be back. */
  nudge() {
    for (const wake of this.#wake) wake();
  }

  async #work(session) {
    if (this.#working.has(session)) return;
    this.#working.add(session);
    let pause = FIRST_PAUSE;
    try {
      for (;;) {
        const entry = this.of(session).find((each) => each.state !== "refused");
        if (!entry) return;
        try {
          await this.#send(entry);
          pause = FIRST_PAUSE;
        } catch (error) {
          if (error instanceof Problem && !isPassing(error)) {
            Object.assign(entry, { state: "refused", error: error.message });
            this.#changed();
            continue;
          }
          Object.assign(entry, { state: "waiting", error: error instanceof Problem ? error.message : "" });
          this.#changed();
          await this.#rest(Math.max(pause, (error.retryAfter ?? 0) * 1000));
          pause = Math.min(pause * 2, MAX_PAUSE);
        }
      }
    } finally {
      this.#working.delete(session);
    }
  }

  async #send(entry) {
    if (entry.isNew) {
      await this.api.create(entry.session, entry.agent);
      if (entry.model) await this.api.change(entry.session, { model: entry.model });
      for (const each of this.of(entry.session)) each.isNew = false;
      this.onMade(entry.session);
    }
    await this.#held.get(entry.session);
    await this.api.send(entry.session, entry);
    this.take(entry.id);
  }

  #rest(milliseconds) {
    return new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        this.#wake.delete(wake);
        resolve();
      };
      const timer = setTimeout(wake, milliseconds);
      this.#wake.add(wake);
    });
  }

  #changed() {
    const kept = this.all
      .filter((entry) => !entry.audio && !entry.images?.length)
      .map(({ session, isNew, agent, model, id, text, mode, expect }) => ({ session, isNew, agent, model, id, text, mode, expect }));
    if (kept.length) sessionStorage.setItem(STORED, JSON.stringify(kept));
    else sessionStorage.removeItem(STORED);
    this.onChange();
  }
}

/** Whether the same request may succeed later. */
function isPassing(problem) {
  return problem.status === 429 || problem.status >= 502;
}
