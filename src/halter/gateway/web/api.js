// The gateway's routes. A refusal is a Problem, with the gateway's message; a request that may not have arrived is
// Unreached, and can be sent again.

const MAX_KEEPALIVE = 10_000; // characters, of up to three bytes each; browsers allow 64 KiB in all

/** The gateway has refused the request, with a reason. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the gateway answered ${status}`);
    this.status = status;
    this.field = body.field ?? "";
    this.retryAfter = body.retry_after ?? null;
  }
}

/** It is unknown whether the request arrived. */
export class Unreached extends Error {}

export class Api {
  constructor(key) {
    this.key = key;
    this.onRefused = () => {}; // the key is not accepted, or no longer
  }

  /** Whether the gateway accepts the key. */
  async isAccepted() {
    try {
      await this.sessions();
    } catch (error) {
      return error instanceof Problem && error.status !== 401;
    }
    return true;
  }

  /** The sessions, most recently used first; with `search`, those that contain these words. */
  sessions(search = "") {
    return this.#ask("GET", `/sessions${search ? `?search=${encodeURIComponent(search)}` : ""}`);
  }

  session(id) {
    return this.#ask("GET", path(id));
  }

  agents() {
    return this.#ask("GET", "/agents");
  }

  /** The text of a PDF, with the number of its `pages`, and whether it `is_cut`. */
  async pdf(file) {
    const options = { headers: { "Content-Type": "application/pdf" }, body: file };
    return (await this.#fetch("POST", "/pdf", options)).json();
  }

  /** Another `title`, or another `model`. */
  change(id, change) {
    return this.#ask("PATCH", path(id), change);
  }

  /** Remove a turn, if it is the last one, and send its message again, with another text if there is one. */
  retry(session, turn, text, files) {
    return this.#ask("POST", `${path(session)}/retry`, { expect_turn: turn, ...(text ? { text } : {}), files });
  }

  /** A new session from the conversation before a turn, or from all of it. */
  branch(session, turn, text) {
    return this.#ask("POST", `${path(session)}/branch`, { ...(turn ? { turn } : {}), ...(text ? { text } : {}) });
  }

  compact(session) {
    return this.#ask("POST", `${path(session)}/compact`);
  }

  /** Create a session; the same name twice is the same session. */
  create(id, agent = "") {
    return this.#ask("POST", "/sessions", { id, ...(agent ? { agent } : {}) });
  }

  erase(id) {
    return this.#ask("DELETE", path(id));
  }

  /** Send a message; the same id twice is the same message. `audio` and `images` are Blobs. */
  send(session, { id, text, mode, expect, audio, images = [] }) {
    const fields = { id, mode, ...(text ? { text } : {}), ...(expect ? { expect_turn: expect } : {}) };
    return this.#ask("POST", `${path(session)}/messages`, audio || images.length ? formOf(fields, audio, images) : fields);
  }

  edit(session, message, change) {
    return this.#ask("PATCH", `${path(session)}/inbox/${encodeURIComponent(message)}`, change);
  }

  remove(session, message) {
    return this.#ask("DELETE", `${path(session)}/inbox/${encodeURIComponent(message)}`);
  }

  stop(session, body = {}) {
    return this.#ask("POST", `${path(session)}/stop`, body);
  }

  /** The files that the last turn has changed, or with the scope "session" all turns. */
  changes(session, scope = "turn") {
    return this.#ask("GET", `${path(session)}/changes?scope=${scope}`);
  }

  /** Remove a turn, if it is the last one; with `files`, its file changes too. */
  rollback(session, turn, files) {
    return this.#ask("POST", `${path(session)}/rollback`, { expect_turn: turn, files });
  }

  /** Redo the file changes that the last rollback has reverted. */
  undoRollback(session) {
    return this.#ask("POST", `${path(session)}/rollback/undo`, {});
  }

  /** Stop every session. */
  stopAll() {
    return this.#ask("POST", "/stop", {});
  }

  answer(session, request, value) {
    return this.#ask("POST", `${path(session)}/answers/${encodeURIComponent(request)}`, { value });
  }

  /** An image or a recording, as a Blob, from the address in its event. */
  async media(href) {
    if (!href.startsWith("/v1/sessions/")) throw new Error(`${href} is not an address of this gateway`);
    const response = await this.#fetch("GET", href.slice("/v1".length), {});
    return response.blob();
  }

  /** The response of an event stream, open, from the event after `after` on. */
  async events(session, after, signal) {
    const headers = { Accept: "text/event-stream", ...(after ? { "Last-Event-ID": String(after) } : {}) };
    return this.#fetch("GET", `${path(session)}/events`, { headers, signal, cache: "no-store" });
  }

  async #ask(method, where, body) {
    const options = { headers: {} };
    if (body instanceof FormData) options.body = body;
    else if (body !== undefined) {
      options.body = JSON.stringify(body);
      options.headers["Content-Type"] = "application/json";
      options.keepalive = options.body.length < MAX_KEEPALIVE; // the request is sent even if the tab is closed now
    }
    const response = await this.#fetch(method, where, options);
    if (response.status === 204) return null;
    try {
      return await response.json();
    } catch (error) {
      throw new Unreached(error.message);
    }
  }

  async #fetch(method, where, options) {
    const { key } = this;
    const headers = { ...options.headers, Authorization: `Bearer ${key}` };
    let response;
    try {
      response = await fetch(`/v1${where}`, {
        ...options,
        method,
        headers,
        credentials: "omit",
        redirect: "error",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Unreached(error.message);
    }
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    if (response.status === 401 && key === this.key) this.onRefused(); // else another one is used by now
    throw new Problem(response.status, body);
  }
}

function formOf(fields, audio, images) {
  const form = new FormData();
  // In a form, text gets Windows line endings; a Blob does not.
  for (const [name, value] of Object.entries(fields)) form.set(name, name === "text" ? new Blob([value]) : value);
  for (const image of images) form.append("image", image, image.name || "picture");
  if (audio) form.set("audio", audio, "voice");
  return form;
}

/** A unique id. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(10)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function path(session) {
  return `/sessions/${encodeURIComponent(session)}`;
}
