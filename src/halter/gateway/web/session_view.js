// The state of a session as it is shown to users, computed from its events: turns with their items, queued messages, open questions.
//
// The same reducer as `halter.views.session_view`; both pass `tests/views/fixture.json`. Only events change the state,
// so all tabs that got the same events show the same. `touched` collects what has changed since it was last drawn.

import { READERS } from "./event_readers.js";
import { Spans } from "./spans.js";
import { NO_USAGE, sum } from "./usage.js";

export class SessionDisplay {
  constructor() {
    this.lives = 0; // number of resets: what was drawn before one belongs to another session
    this.reset();
  }

  reset() {
    this.lives += 1;
    this.seq = 0;
    this.agent = "";
    this.title = "";
    this.turns = [];
    this.running = null;
    this.queue = new Map(); // messages, by id
    this.questions = new Map(); // open approvals and questions, by id: their items
    this.touched = new Set();
    this.#pastUsage = NO_USAGE;
    this.#byId = new Map();
  }

  /** "idle", "running", "needs you" or "stopping". */
  get state() {
    if (this.running?.stopping) return "stopping";
    if (this.questions.size) return "needs you";
    return this.running ? "running" : "idle";
  }

  /** The tokens and the cost of all turns. */
  get usage() {
    return this.running ? sum(this.#pastUsage, this.running.usage) : this.#pastUsage;
  }

  get tokens() {
    return this.usage.tokens;
  }

  addUsage(usage) {
    this.#pastUsage = sum(this.#pastUsage, usage);
  }

  #byId; // turns
  #pastUsage; // of all turns but the running one

  /** Apply one event. Earlier events are ignored; a log that starts again is that of a new session. */
  apply(event) {
    if (event.seq === 1 && this.seq > 0) this.reset();
    if (event.seq <= this.seq) return;
    this.seq = event.seq;
    const reader = READERS[event.data.type];
    if (!reader) return; // of a newer gateway
    const turn = event.data.type.startsWith("message.") ? this.#byId.get(event.turn) : this.#turn(event);
    if (turn && turn.id === event.turn) {
      turn.spans.take(event.data.type, event.data, event.time);
      if (event.data.type !== "text.delta") this.touched.add(turn);
    }
    reader(this, turn, event.data, event.time);
  }

  /** The turn of an event. Events of background children have none, and are shown with the last turn. */
  #turn(event) {
    const known = this.#byId.get(event.turn) ?? (event.turn ? null : this.turns.at(-1));
    if (known || event.data.type.startsWith("session.")) return known ?? null;
    const turn = new Turn(event.turn, event.time);
    this.turns.push(turn);
    this.#byId.set(event.turn, turn);
    this.touched.add(turn);
    return turn;
  }

  add(turn, item) {
    turn.items.push(item);
    this.touched.add(turn);
    return item;
  }

  call(turn, id, name) {
    const known = turn.calls.get(id);
    if (known) return known;
    const item = this.add(turn, {
      kind: "call",
      id,
      name,
      turn: turn.id,
      arguments: "",
      state: "planned",
      start: null,
      end: null,
      progress: "",
      diff: "", // what it has changed in files, as a unified diff
      exitCode: null, // of a command; the name of the signal if one has ended it
      content: "",
      detail: "",
      reason: "",
      after: null,
      late: null,
      rungs: [],
      approval: null,
    });
    turn.calls.set(id, item);
    return item;
  }
}

class Turn {
  constructor(id, at) {
    Object.assign(this, {
      kind: "turn",
      id,
      started: at,
      ended: null,
      model: "",
      status: "running",
      reason: "",
      detail: "",
      error: "",
      after: null,
      usage: NO_USAGE,
      stopping: null,
      rolledBack: false,
      restored: 0, // files
      items: [],
      calls: new Map(),
      children: new Map(),
      spans: new Spans(),
      text: null,
      thought: null,
      failedText: null,
      interrupted: [], // what a steer interrupted, until its message is shown
      phase: "",
      steers: [],
    });
  }

  get tokens() {
    return this.usage.tokens;
  }
}
