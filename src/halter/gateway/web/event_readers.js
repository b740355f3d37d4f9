// What each kind of event changes in a SessionDisplay: a function of it, the turn, the event's data and its time.

import { sum, usageOf } from "./usage.js";

const MAX_PROGRESS = 20_000; // characters of a call's progress; the latest are kept
const EXIT = /^\[(?:exit code (\d+)|was ended by (\w+))/;
const UNFINISHED = ["planned", "needs approval", "running", "stopping"];

/** How a command ended: the last line of the result of the tool `terminal` says so. */
function exitCode(outcome) {
  if (outcome.name !== "terminal" || typeof outcome.content !== "string") return null;
  const found = EXIT.exec(outcome.content.slice(outcome.content.lastIndexOf("\n") + 1));
  if (!found) return null;
  return found[1] === undefined ? found[2] : Number(found[1]);
}

/** The text of a message, and its other parts. */
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

function endRequest(state, turn, data) {
  endText(state, turn);
  Object.assign(turn, { phase: "", failedText: null });
  if (data.answer) turn.usage = sum(turn.usage, usageOf(data.answer.usage));
}

function countSummary(state, turn, { usage }) {
  if (turn === state.running) turn.usage = sum(turn.usage, usageOf(usage));
  else state.addUsage(usageOf(usage));
}

function settle(state, id, how, value, note = "") {
  const item = state.questions.get(id);
  if (!item) return;
  state.questions.delete(id);
  Object.assign(item.approval ?? item, { state: how, value, note });
  state.touched.add(item);
}

export const READERS = {
  "session.created": (state, _turn, data) => {
    state.agent = data.agent;
  },
  "session.changed": (state, _turn, data) => {
    state.title = data.title || state.title;
  },
  "message.accepted": (state, _turn, data, at) => {
    const content = contentOf(data.message);
    const voice = Boolean(data.preparing) || content.media.some((part) => part.type === "audio");
    state.title ||= content.text;
    state.queue.set(data.id, {
      kind: "queued",
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
    const message = state.queue.get(data.id);
    if (!message) return;
    if (data.prepared) Object.assign(message, { preparedAt: state.seq, voice: true });
    Object.assign(message, contentOf(data.message), { preparing: "", note: data.note || message.note });
    state.title ||= message.text;
  },
  "message.held": (state, _turn, data) => {
    const message = state.queue.get(data.id);
    if (message) message.state = "held";
  },
  "message.released": (state, _turn, data) => {
    const message = state.queue.get(data.id);
    if (message) message.state = "accepted";
  },
  "message.removed": (state, _turn, data) => {
    const message = state.queue.get(data.id);
    state.queue.delete(data.id);
    // A voice message that only said a stop phrase is removed as soon as it has its text; it is shown anyway.
    const wasStop = message?.preparedAt === state.seq - 1;
    if (wasStop && state.turns.length) state.add(state.turns.at(-1), { ...message, kind: "message", mode: "stop" });
  },
  "message.applied": (state, turn, data, at) => {
    const message = state.queue.get(data.id);
    state.queue.delete(data.id);
    if (!message || !turn) return;
    if (data.question) {
      const asked = turn.items.find((item) => item.kind === "question" && item.id === data.question);
      if (asked) Object.assign(asked, { said: message.text, voice: message.voice });
      if (asked) state.touched.add(asked);
      return;
    }
    endText(state, turn);
    const interrupted = data.mode === "steer" ? turn.interrupted.splice(0) : [];
    if (data.mode === "steer") turn.steers.push(at);
    state.add(turn, { ...message, kind: "message", mode: data.mode, note: data.note || message.note, interrupted });
  },
  "turn.started": (state, turn, data, at) => {
    Object.assign(turn, { model: data.model, started: at, phase: "waiting" });
    state.running = turn;
  },
  "turn.stopping": (_state, turn, data) => {
    turn.stopping ??= { reason: data.reason, detail: data.detail, by: data.by, at: data.asked_at };
  },
  "turn.finished": (state, turn, data, at) => {
    endText(state, turn);
    Object.assign(turn, {
      status: data.status,
      reason: data.reason ?? "",
      detail: data.detail ?? "",
      error: data.error ?? "",
      after: data.after ?? null,
      ended: at,
      phase: "",
      usage: usageOf(data.usage),
    });
    if (data.reason === "crash") turn.ended = turn.spans.lastSeen || turn.started;
    for (const item of turn.calls.values()) {
      if (UNFINISHED.includes(item.state)) item.state = "not_started";
      state.touched.add(item);
    }
    for (const [id, item] of state.questions) if (turn.items.includes(item)) settle(state, id, "withdrawn", null);
    state.addUsage(turn.usage);
    if (state.running === turn) state.running = null;
  },
  "turn.rolled_back": (_state, turn, data) => {
    turn.rolledBack = true;
    turn.restored = data.restored?.length ?? 0;
  },
  "request.started": (_state, turn) => {
    turn.phase = "waiting";
  },
  "text.delta": (state, turn, data) => {
    if (turn.failedText) {
      turn.failedText.superseded = true;
      state.touched.add(turn.failedText);
      turn.failedText = null;
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
    turn.failedText = turn.text;
    endText(state, turn);
    turn.phase = "waiting";
    const { error, model, attempt, delay } = data;
    state.add(turn, { kind: "retry", error, model, attempt, delay, hadText: Boolean(data.superseded) });
  },
  "request.cancelled": (state, turn, data) => {
    endRequest(state, turn, data);
    if (data.reason === "steer") turn.interrupted.push("the answer");
  },
  "request.finished": (state, turn, data) => {
    endRequest(state, turn, data);
    for (const call of data.answer?.calls ?? []) {
      turn.calls.delete(call.id); // a provider may use its names again
      Object.assign(state.call(turn, call.id, call.name), { arguments: call.arguments });
    }
  },
  "context.compacted": (state, turn, data) => {
    if (!turn) return;
    endText(state, turn);
    countSummary(state, turn, data);
    const { how, before, after } = data;
    state.add(turn, { kind: "compaction", how, before, after });
  },
  "context.summary_discarded": (state, turn, data) => {
    if (turn) countSummary(state, turn, data);
  },
  "tool.started": (state, turn, data, at) => {
    const item = state.call(turn, data.call_id, data.name);
    Object.assign(item, { state: "running", start: at, arguments: data.arguments });
    state.touched.add(item);
  },
  "tool.progress": (state, turn, data) => {
    const item = state.call(turn, data.call_id, data.name);
    state.touched.add(item);
    if (data.is_diff) {
      item.diff += data.text;
      return;
    }
    const between = !item.progress || item.progress.endsWith("\n") ? "" : "\n";
    item.progress = (item.progress + between + data.text).slice(-MAX_PROGRESS);
  },
  "tool.cancelling": (state, turn, data) => {
    const item = state.call(turn, data.call_id, data.name);
    Object.assign(item, { state: "stopping", reason: data.reason });
    state.touched.add(item);
  },
  "tool.finished": (state, turn, data) => {
    const outcome = data.outcome;
    const item = state.call(turn, outcome.call_id, outcome.name);
    Object.assign(item, {
      state: outcome.status,
      content: outcome.content ?? "",
      exitCode: exitCode(outcome),
      detail: outcome.detail ?? "",
      reason: outcome.reason ?? "",
      start: outcome.started_at ?? item.start,
      end: outcome.ended_at,
      after: data.after ?? null,
      rungs: outcome.rungs ?? [],
      late: outcome.late ?? null,
    });
    if (outcome.reason === "steer" && outcome.status !== "not_started") turn.interrupted.push(outcome.name);
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
    const { prefixes = [], covers = "tool" } = request;
    item.approval = { id: request.id, reason: request.reason ?? "", prefixes, covers, state: "open", note: "" };
    item.arguments ||= JSON.stringify(request.arguments ?? {});
    item.state = "needs approval";
    state.questions.set(request.id, item);
    state.touched.add(item);
  },
  "approval.answered": (state, _turn, data) => {
    const item = state.questions.get(data.request_id);
    settle(state, data.request_id, data.granted ? "granted" : "denied", data.granted, data.note);
    if (item && item.state === "needs approval") item.state = "planned";
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
    state.questions.set(data.id, turn ? state.add(turn, item) : item);
  },
  "question.answered": (state, _turn, data) => {
    settle(state, data.id, data.withdrawn ? "withdrawn" : "answered", data.value);
  },
  "child.started": (state, turn, data, at) => {
    if (!turn) return;
    const { session, agent, task = "" } = data;
    const work = { state: "running", reason: "", calls: 0, tool: "", arguments: "" };
    turn.children.set(session, state.add(turn, { kind: "child", session, agent, task, ...work, start: at, end: null }));
  },
  "child.progress": (state, turn, data) => {
    const item = turn?.children.get(data.session);
    if (!item) return;
    Object.assign(item, { calls: item.calls + 1, tool: data.tool, arguments: data.arguments ?? "" });
    state.touched.add(item);
  },
  "child.finished": (state, _turn, data, at) => {
    const turn = state.turns.findLast((each) => each.children.has(data.session));
    const item = turn?.children.get(data.session);
    if (!item) return;
    Object.assign(item, { state: data.status, reason: data.reason ?? "", end: at });
    state.touched.add(item);
  },
};
