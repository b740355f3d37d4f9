// The timeline of a turn: requests, tools, children and questions on one axis of time, the stop as a line across it,
// and after each bar how it ended and how long after the stop.

import { button, el, svg } from "./dom.js";
import { outcome, seconds } from "./text.js";

const NARROW_WIDTH = 560; // pixels; below that, names are above their bars
const GAP = 10;
const FLAG_WIDTH = 36; // pixels, of the word "stop"
const MIN_SPAN = 1e-4; // seconds from one end of the axis to the other

export class TimelineView {
  #size = new ResizeObserver(() => this.draw());
  #near = null; // whether only what is around the stop is shown; null until the user has chosen

  constructor(turn, clock) {
    this.turn = turn;
    this.clock = clock;
    this.title = el("p", { class: "story" });
    this.zoom = button(
      "",
      () => {
        this.#near = !this.#isNear;
        this.draw();
      },
      { class: "small" },
    );
    this.zoom.append(el("span"));
    this.drawing = el("div", { class: "drawing" });
    this.node = el(
      "section",
      { class: "timeline", "aria-label": "Timeline of this turn", hidden: true },
      el("div", { class: "top" }, this.title, this.zoom),
      this.drawing,
    );
  }

  get isOpen() {
    return !this.node.hidden;
  }

  toggle(open = !this.isOpen) {
    this.node.hidden = !open;
    if (open) this.#size.observe(this.drawing);
    else this.#size.disconnect();
    this.draw();
  }

  /** A stop of some milliseconds is invisible in a turn of minutes: then only the time around it is shown. */
  get #isNear() {
    const { turn } = this;
    if (!turn.stopping) return false;
    const end = lastOf(turn, this.clock());
    return this.#near ?? end - turn.stopping.at < (end - turn.started) / 15;
  }

  draw() {
    if (!this.isOpen) return;
    const width = Math.floor(this.drawing.clientWidth);
    if (!width) return;
    const axis = new Axis(this.turn, this.clock(), width, this.#isNear);
    this.title.textContent = story(this.turn);
    this.zoom.hidden = !this.turn.stopping;
    this.zoom.lastChild.textContent = this.#isNear ? "Whole turn" : "Around the stop";
    this.drawing.replaceChildren(axis.draw());
  }
}

function story(turn) {
  const { stopping } = turn;
  if (!stopping)
    return turn.ended === null ? "Running." : `${outcome(turn.status)} after ${seconds(turn.ended - turn.started)}.`;
  const took = turn.after === null ? "" : ` in ${seconds(turn.after)}`;
  const back = turn.ended === null ? "not ended yet" : `stopped${took}`;
  const why = [stopping.reason === "stop" ? "" : stopping.reason, stopping.detail].filter(Boolean).join(": ");
  return `Stop requested ${seconds(stopping.at - turn.started)} into the turn${why ? ` (${why})` : ""}; ${back}.`;
}

function lastOf(turn, now) {
  const ends = turn.spans.list.flatMap((span) => [span.start, span.end, span.late]).filter((each) => each !== null);
  return Math.max(turn.started, turn.ended ?? now, turn.stopping?.at ?? 0, ...ends);
}

class Axis {
  constructor(turn, now, width, isNear) {
    this.turn = turn;
    this.stop = turn.stopping?.at ?? null;
    this.isNarrow = width < NARROW_WIDTH;
    this.width = width;
    this.left = this.isNarrow ? 0 : Math.min(190, width * 0.26);
    this.right = width - (this.isNarrow ? 0 : 150);
    const last = lastOf(turn, now);
    this.begin = isNear
      ? Math.min(this.stop, Math.max(turn.started, this.stop - 1.5 * Math.max(last - this.stop, MIN_SPAN)))
      : turn.started;
    this.end = Math.max(last, this.begin + MIN_SPAN);
  }

  x(time) {
    const share = (time - this.begin) / (this.end - this.begin);
    return this.left + Math.min(1, Math.max(0, share)) * (this.right - this.left - GAP) + GAP / 2;
  }

  draw() {
    const { turn } = this;
    const whole = {
      kind: "turn",
      name: "turn",
      start: turn.started,
      end: turn.ended,
      how: turn.status,
      detail: "",
      late: null,
    };
    const shown = turn.spans.list.filter((span) => span.end === null || span.end >= this.begin);
    const rows = [...shown, whole];
    const step = this.isNarrow ? 42 : 28;
    const top = 30;
    const height = top + rows.length * step + 8;
    const drawing = svg("svg", {
      width: this.width,
      height,
      viewBox: `0 0 ${this.width} ${height}`,
      role: "img",
      "aria-label": `${story(turn)} ${rows.map((span) => this.#description(span)).join(" ")}`,
    });
    drawing.append(...this.#scale(height));
    rows.forEach((span, at) => drawing.append(...this.#row(span, top + at * step)));
    for (const at of turn.steers.filter((each) => each >= this.begin)) drawing.append(this.#steerLine(at, height));
    if (this.stop !== null) drawing.append(...this.#stopLine(height));
    return drawing;
  }

  #scale(height) {
    const zero = this.stop ?? this.turn.started;
    const isFree = (value) => this.stop === null || Math.abs(this.x(value + zero) - this.x(this.stop)) > FLAG_WIDTH * 1.3;
    return marks(this.begin - zero, this.end - zero)
      .filter(isFree)
      .map((value) => {
        const x = this.x(value + zero);
        return svg(
          "g",
          {},
          svg("line", { class: "grid", x1: x, x2: x, y1: 20, y2: height }),
          svg("text", { class: "mark", x, y: 13, "text-anchor": "middle", text: this.#mark(value) }),
        );
      });
  }

  #mark(value) {
    const sign = value < 0 ? "−" : this.stop !== null && value ? "+" : "";
    return `${sign}${value ? seconds(Math.abs(value)) : "0"}`;
  }

  #stopLine(height) {
    const x = this.x(this.stop);
    return [
      svg("line", { class: "cut", x1: x, x2: x, y1: 4, y2: height }),
      svg("rect", { class: "flag", x: x - FLAG_WIDTH / 2, y: 1, width: FLAG_WIDTH, height: 17, rx: 4 }),
      svg("text", { class: "flagged", x, y: 13, "text-anchor": "middle", text: "stop" }),
    ];
  }

  #steerLine(time, height) {
    const x = this.x(time);
    return svg(
      "g",
      {},
      svg("title", { text: "steer" }),
      svg("line", { class: "steer", x1: x, x2: x, y1: 20, y2: height }),
    );
  }

  #row(span, y) {
    const middle = this.isNarrow ? y + 28 : y + 13;
    const label = span.kind === "turn" || span.kind === "request" ? span.kind : `${span.kind} ${span.name}`;
    const name = svg("text", {
      class: "name",
      x: this.isNarrow ? GAP / 2 : 0,
      y: this.isNarrow ? y + 13 : middle + 4,
      text: clip(label, this.isNarrow ? this.width - 150 : this.left - 12),
    });
    const tail = svg("text", {
      class: `tail ${toneOf(span.how)}`,
      x: this.isNarrow ? this.width - GAP / 2 : this.width,
      y: this.isNarrow ? y + 13 : middle + 4,
      "text-anchor": "end",
      text: this.#tail(span),
    });
    const title = svg("title", { text: this.#description(span) });
    return [svg("g", { class: `span ${span.kind}` }, title, name, ...this.#bar(span, middle), tail)];
  }

  #bar(span, middle) {
    if (span.start === null) return [];
    const from = this.x(Math.max(span.start, this.begin));
    const to = this.x(span.end ?? this.end);
    const bar = svg("rect", {
      class: `bar ${toneOf(span.how)}${span.end === null ? " open" : ""}`,
      x: from,
      y: middle - 6,
      width: Math.max(3, to - from),
      height: 12,
      rx: 3,
    });
    const over = this.stop !== null && span.end !== null && span.end > this.stop && span.start < this.stop;
    if (!over) return [bar];
    const cut = this.x(this.stop);
    return [
      bar,
      svg("rect", { class: "ending", x: cut, y: middle - 6, width: Math.max(2, to - cut), height: 12, rx: 2 }),
    ];
  }

  #tail(span) {
    const how = outcome(span.how);
    if (span.late !== null) return `${how}, +${seconds(span.late - (this.stop ?? this.begin))} late`;
    if (span.start === null || span.end === null) return how;
    if (this.stop === null || span.end < this.stop) return `${how}  ${seconds(span.end - span.start)}`;
    return `${how}  +${seconds(span.end - this.stop)}`;
  }

  #description(span) {
    const took = span.start !== null && span.end !== null ? `, ${seconds(span.end - span.start)}` : "";
    const after =
      this.stop !== null && span.end !== null && span.end >= this.stop
        ? `, ended ${seconds(span.end - this.stop)} after the stop`
        : "";
    return `${span.kind} ${span.name}: ${outcome(span.how)}${took}${after}${span.detail ? ` (${span.detail})` : ""}.`;
  }
}

/** A few round numbers between two. */
function marks(from, to) {
  const rough = (to - from) / 5;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * size).find((each) => each >= rough);
  const found = [];
  for (let value = Math.ceil(from / step); value * step <= to; value += 1) found.push(value * step);
  return found;
}

function toneOf(how) {
  if (["completed", "complete", "done", "granted", "answered"].includes(how)) return "good";
  if (["failed", "abandoned", "denied", "timed_out"].includes(how)) return "bad";
  return how === "running" ? "live" : "cut";
}

function clip(text, pixels) {
  const most = Math.max(6, Math.floor(pixels / 6.7));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
