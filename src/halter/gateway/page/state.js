// A session, as its events tell it: turns and what is in them, what waits, and what is asked.
//
// Only events change it, so every tab that has heard the same events shows the same. It knows nothing of the page: who
// shows it looks at `touched`, which collects what has changed since it was looked at last.

import { Spans } from "./spans.js";

const MOST_PROGRESS = 20_000; // characters of what a call reports; the latest are kept

export class State {
  constructor() {
    this.lives = 0; // how often it began anew: what was shown before is of another session then
    this.reset();
  }

  reset() {
    this.lives += 1;
    this.seq = 0;
    this.agent = "";
    this.title = "";
    this.turns = [];
    this.running = null;
    this.waiting = new Map(); // messages, by their ids
    this.asked = new Map(); // open approvals and questions, by their ids
    this.touched = new Set();
    this.#byId = new Map();
  }

  #byId; // turns

  /** Take one event. One that was seen is passed over; a log that begins again is another one. */
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

  /** What is told in no turn, by a child in the background, is shown with the latest. */
  #turn(event) {
    const known = this.#byId.get(event.turn) ?? (event.turn ? null : this.turns.at(-1));
    if (known || event.data.type === "session.created") return known ?? null;
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
      tokens: 0,
      stopping: null,
      rolledBack: false,
      items: [],
      calls: new Map(),
      spans: new Spans(),
      text: null,
      thought: null,
      superseded: null,
      phase: "",
      steers: [],
    });
  }
}

/** Of a message with several parts: its words, and the rest. */
function contentOf(message) {
  const parts = message?.parts ?? [];
  return {
    text: parts
      .filter((part) => part.type === "text")
      .map((part) => part.text)
      .join("\n"),
    media: parts.filter((part) => part.type !== "text"),
  };
}

function endText(state, turn) {
  for (const item of [turn.text, turn.thought]) {
    if (!item) continue;
    item.live = false;
    state.touched.add(item);
  }
  turn.text = turn.thought = null;
}

function settle(state, id, how, value, note = "") {
  const item = state.asked.get(id);
  if (!item) return;
  state.asked.delete(id);
  Object.assign(item.approval ?? item, { state: how, value, note });
  state.touched.add(item);
}

const READERS = {
  "session.created": (state, _turn, data) => {
    state.agent = data.agent;
  },
  "message.accepted": (state, _turn, data, at) => {
    const content = contentOf(data.message);
    const voice = Boolean(data.preparing) || content.media.some((part) => part.type === "audio");
    state.title ||= content.text;
    state.waiting.set(data.id, {
      kind: "letter",
      id: data.id,
      mode: data.mode,
      state: "accepted",
      note: data.note ?? "",
      preparing: data.preparing ?? "",
      voice,
      at,
      ...content,
    });
  },
  "message.edited": (state, _turn, data) => {
    const letter = state.waiting.get(data.id);
    if (!letter) return;
    if (letter.preparing) letter.preparedAt = state.seq;
    Object.assign(letter, contentOf(data.message), { preparing: "", note: data.note || letter.note });
    state.title ||= letter.text;
  },
  "message.held": (state, _turn, data) => {
    const letter = state.waiting.get(data.id);
    if (letter) letter.state = "held";
  },
  "message.released": (state, _turn, data) => {
    const letter = state.waiting.get(data.id);
    if (letter) letter.state = "accepted";
  },
  "message.removed": (state, _turn, data) => {
    const letter = state.waiting.get(data.id);
    state.waiting.delete(data.id);
    // A voice message that turned out to be an order, such as "stop", is done when it is heard, and shown all the same.
    const wasOrder = letter?.preparedAt === state.seq - 1;
    if (wasOrder && state.turns.length) state.add(state.turns.at(-1), { ...letter, kind: "message", mode: "order" });
  },
  "message.applied": (state, turn, data, at) => {
    const letter = state.waiting.get(data.id);
    state.waiting.delete(data.id);
    if (!letter || !turn) return;
    if (data.question) {
      const asked = turn.items.find((item) => item.kind === "question" && item.id === data.question);
      if (asked) Object.assign(asked, { said: letter.text, voice: letter.voice });
      if (asked) state.touched.add(asked);
      return;
    }
    endText(state, turn);
    if (data.mode === "steer") turn.steers.push(at);
    state.add(turn, { ...letter, kind: "message", mode: data.mode, note: data.note || letter.note });
  },
  "turn.started": (state, turn, data, at) => {
    Object.assign(turn, { model: data.model, started: at });
    state.running = turn;
  },
  "turn.stopping": (_state, turn, data) => {
    turn.stopping ??= { reason: data.reason, detail: data.detail, by: data.by, at: data.asked_at };
  },
  "turn.finished": (state, turn, data, at) => {
    endText(state, turn);
    const usage = data.usage ?? {};
    Object.assign(turn, {
      status: data.status,
      reason: data.reason ?? "",
      detail: data.detail ?? "",
      error: data.error ?? "",
      after: data.after ?? null,
      ended: at,
      phase: "",
      tokens: (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0),
    });
    if (data.reason === "crash") {
      turn.spans.crash(at);
      turn.ended = turn.spans.lastSeen || turn.started;
    }
    for (const item of turn.calls.values()) {
      if (["planned", "asking", "running", "cancelling"].includes(item.state)) item.state = "not_started";
      state.touched.add(item);
    }
    if (state.running === turn) state.running = null;
  },
  "turn.rolled_back": (_state, turn) => {
    turn.rolledBack = true;
  },
  "request.started": (_state, turn) => {
    turn.phase = "waiting";
  },
  "text.delta": (state, turn, data) => {
    if (turn.superseded) {
      turn.superseded.superseded = true;
      state.touched.add(turn.superseded);
      turn.superseded = null;
    }
    if (turn.phase) {
      turn.phase = "";
      state.touched.add(turn);
    }
    turn.text ??= state.add(turn, { kind: "text", text: "", live: true, superseded: false });
    turn.text.text += data.text;
    state.touched.add(turn.text);
  },
  "reasoning.delta": (state, turn, data) => {
    turn.phase = "thinking";
    turn.thought ??= state.add(turn, { kind: "thought", text: "", live: true });
    turn.thought.text += data.text;
    state.touched.add(turn.thought);
  },
  "request.retry": (state, turn, data) => {
    turn.superseded = turn.text;
    endText(state, turn);
    turn.phase = "waiting";
    const when = data.delay >= 0.1 ? ` in ${Number(data.delay.toFixed(1))} s` : "";
    state.add(turn, {
      kind: "note",
      text: `${data.error}; trying again${when} (${data.model}, attempt ${data.attempt}).`,
    });
  },
  "request.cancelled": (state, turn) => {
    endText(state, turn);
    turn.phase = "";
  },
  "request.finished": (state, turn, data) => {
    endText(state, turn);
    turn.phase = "";
    for (const call of data.answer?.calls ?? []) {
      turn.calls.delete(call.id); // a provider may use its names again
      Object.assign(state.call(turn, call.id, call.name), { arguments: call.arguments });
    }
  },
  "tool.started": (state, turn, data, at) => {
    const item = state.call(turn, data.call_id, data.name);
    Object.assign(item, { state: "running", start: at, arguments: data.arguments });
    state.touched.add(item);
  },
  "tool.progress": (state, turn, data) => {
    const item = state.call(turn, data.call_id, data.name);
    const between = !item.progress || item.progress.endsWith("\n") ? "" : "\n";
    item.progress = (item.progress + between + data.text).slice(-MOST_PROGRESS);
    state.touched.add(item);
  },
  "tool.cancelling": (state, turn, data) => {
    const item = state.call(turn, data.call_id, data.name);
    Object.assign(item, { state: "cancelling", reason: data.reason });
    state.touched.add(item);
  },
  "tool.finished": (state, turn, data) => {
    const outcome = data.outcome;
    const item = state.call(turn, outcome.call_id, outcome.name);
    Object.assign(item, {
      state: outcome.status,
      content: outcome.content ?? "",
      detail: outcome.detail ?? "",
      reason: outcome.reason ?? "",
      start: outcome.started_at ?? item.start,
      end: outcome.ended_at,
      after: data.after ?? null,
      rungs: outcome.rungs ?? [],
      late: outcome.late ?? null,
    });
    state.touched.add(item);
  },
  "tool.finished_late": (state, turn, data) => {
    const item = state.call(turn, data.outcome.call_id, data.outcome.name);
    item.late = data.outcome.late;
    state.touched.add(item);
  },
  "approval.asked": (state, turn, data) => {
    const request = data.request;
    const item = state.call(turn, request.call_id, request.tool);
    item.approval = { id: request.id, reason: request.reason ?? "", state: "open", note: "" };
    item.arguments ||= JSON.stringify(request.arguments ?? {});
    item.state = "asking";
    state.asked.set(request.id, item);
    state.touched.add(item);
  },
  "approval.answered": (state, _turn, data) => {
    const item = state.asked.get(data.request_id);
    settle(state, data.request_id, data.granted ? "granted" : "denied", data.granted, data.note);
    if (item && item.state === "asking") item.state = "planned";
  },
  "question.asked": (state, turn, data) => {
    const item = {
      kind: "question",
      id: data.id,
      question: data.question,
      choices: data.choices ?? null,
      state: "open",
      value: null,
      note: "",
      said: "",
      voice: false,
    };
    if (!turn) return;
    state.asked.set(data.id, state.add(turn, item));
  },
  "question.answered": (state, _turn, data) => {
    settle(state, data.id, data.withdrawn ? "withdrawn" : "answered", data.value);
  },
  "child.started": (state, turn, data) => {
    if (turn)
      turn.children = {
        ...turn.children,
        [data.session]: state.add(turn, { kind: "child", agent: data.agent, state: "running", reason: "" }),
      };
  },
  "child.finished": (state, turn, data) => {
    const item = turn?.children?.[data.session];
    if (!item) return;
    Object.assign(item, { state: data.status, reason: data.reason ?? "" });
    state.touched.add(item);
  },
};
