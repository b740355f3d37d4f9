// The parts of a turn as spans of time: requests, tool calls, children and questions, from start to end.
//
// The same as `halter.views.spans`. A span without an end never ended, or its end is unknown.

export class Spans {
  #open = ""; // the key of the request that runs

  constructor() {
    this.all = new Map();
    this.lastSeen = 0; // after a crash: the time of the last event before it
    this.last = this.before = 0; // the times of the last event, and of the last one earlier than that
  }

  get list() {
    return [...this.all.values()];
  }

  take(kind, data, at) {
    if (at > this.last) [this.before, this.last] = [this.last, at];
    if (kind === "turn.finished" && data.reason === "crash") this.crash(at);
    READERS[kind]?.(this, data, at);
  }

  /** Drop the ends that were written when the session was opened again: the real ones are unknown. */
  crash(at) {
    this.lastSeen = this.last < at ? this.last : this.before;
    for (const span of this.all.values()) if (span.end !== null && span.end >= at) span.end = null;
  }

  begin(key, kind, name, start) {
    this.all.set(key, { kind, name, start, end: null, how: "running", detail: "", late: null });
  }

  end(key, at, how, detail = "") {
    const span = this.all.get(key);
    if (span) Object.assign(span, { end: at, how, detail });
  }

  beginRequest(model, at) {
    this.#open = `request ${this.all.size}`;
    this.begin(this.#open, "request", model, at);
  }

  endRequest(at, how, detail) {
    this.end(this.#open, at, how, detail);
  }

  endCall(outcome, at) {
    const key = `call ${outcome.call_id}`;
    if (!this.all.has(key)) this.begin(key, "tool", outcome.name, null);
    const span = this.all.get(key);
    span.start = outcome.started_at ?? span.start;
    span.end = outcome.status === "abandoned" ? null : (outcome.ended_at ?? at);
    span.how = outcome.status;
    span.detail = (outcome.rungs ?? []).filter((rung) => rung !== outcome.status).join(", ");
  }
}

const READERS = {
  "request.started": (spans, data, at) => spans.beginRequest(data.model, at),
  "request.retry": (spans, data, at) => spans.endRequest(at, "failed", data.error),
  "request.cancelled": (spans, data, at) => spans.endRequest(at, "cancelled", data.reason),
  "request.finished": (spans, data, at) => spans.endRequest(at, data.status, data.error),
  "tool.started": (spans, data, at) => spans.begin(`call ${data.call_id}`, "tool", data.name, at),
  "tool.finished": (spans, data, at) => spans.endCall(data.outcome, at),
  "tool.finished_late": (spans, data) => {
    const span = spans.all.get(`call ${data.outcome.call_id}`);
    if (span && data.outcome.late) span.late = data.outcome.late.ended_at;
  },
  "child.started": (spans, data, at) => spans.begin(`child ${data.session}`, "child", data.agent, at),
  "child.finished": (spans, data, at) => spans.end(`child ${data.session}`, at, data.status, data.reason),
  "approval.asked": (spans, data, at) =>
    spans.begin(`asked ${data.request.id}`, "question", `approve ${data.request.tool}`, at),
  "approval.answered": (spans, data, at) =>
    spans.end(`asked ${data.request_id}`, at, data.granted ? "granted" : "denied", data.note),
  "question.asked": (spans, data, at) => spans.begin(`asked ${data.id}`, "question", data.question, at),
  "question.answered": (spans, data, at) =>
    spans.end(`asked ${data.id}`, at, data.withdrawn ? "withdrawn" : "answered"),
};
