// The conversation on the screen. Events come by the thousand; what they have changed is drawn once per frame, and
// nothing else is touched. It stays scrolled to its end unless the user has scrolled away.

import { CallView } from "./calls.js";
import { copyButton } from "./copy.js";
import { button, el, icon } from "./dom.js";
import { Markdown } from "./markdown.js";
import { forgetMedia } from "./media.js";
import { MessageView } from "./messages.js";
import { QuestionView } from "./questions.js";
import { TimelineView } from "./timeline.js";
import { because, grouped, money, outcome, plural, seconds } from "./text.js";

const MAX_AT_ONCE = 10; // turns that are drawn in one go: more than fit on a screen
const MAX_DRAWING = 10; // milliseconds of drawing, then keys and clicks are handled
const END_MARGIN = 60; // pixels; a view that ends this near the end follows it

export class ConversationView {
  #views = new Map(); // of turns and of what is in them
  #later = new Set(); // turns that are not drawn yet, the newest first
  #ends = []; // the turn that can be undone, and the one whose file changes can be redone
  #timer = null; // until some more of them are
  #isPinned = true;
  #shownLives = 0;

  constructor({ log, turns, newest, act, clock }) {
    Object.assign(this, { log, turns, newest, act, clock });
    log.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    newest.addEventListener("click", () => this.pin());
    const size = new ResizeObserver(() => this.#isPinned && this.#toEnd());
    size.observe(log);
    size.observe(turns);
  }

  /** Show another session. */
  open(state) {
    this.state = state;
    this.#clear();
  }

  #clear() {
    this.#shownLives = this.state.lives;
    forgetMedia();
    for (const view of this.#views.values()) view.close?.();
    this.#views.clear();
    this.#later.clear();
    this.#ends = [];
    clearTimeout(this.#timer);
    this.#timer = null;
    this.turns.replaceChildren();
    this.#isPinned = true;
    this.newest.hidden = true;
  }

  render() {
    const { state } = this;
    if (state.lives !== this.#shownLives) this.#clear();
    const touched = [...state.touched];
    state.touched.clear();
    this.log.setAttribute("aria-busy", String(Boolean(state.running)));
    this.#drawTurns(touched.filter((each) => each.kind === "turn"));
    for (const item of touched) if (item.kind !== "turn") this.#views.get(item)?.update();
    this.#markEnds();
    if (!touched.length) return;
    if (this.#isPinned) this.#toEnd();
    else this.newest.hidden = false;
  }

  /** Draw turns: of many new ones the last few at once, and the others later, newest first. */
  #drawTurns(turns) {
    const known = turns.filter((turn) => this.#views.has(turn));
    const fresh = turns.filter((turn) => !this.#views.has(turn) && !this.#later.has(turn));
    for (const turn of known) this.#turn(turn);
    if (fresh.length > MAX_AT_ONCE)
      for (const turn of fresh.splice(0, fresh.length - MAX_AT_ONCE).reverse()) this.#later.add(turn);
    for (const turn of fresh) this.#turn(turn);
    if (this.#later.size) this.#drawEarlier();
  }

  #drawEarlier() {
    if (this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#timer = null;
      const end = performance.now() + MAX_DRAWING;
      for (const turn of this.#later) {
        this.#later.delete(turn);
        this.#turn(turn);
        if (performance.now() > end) break;
      }
      if (this.#isPinned) this.#toEnd();
      if (this.#later.size) this.#drawEarlier();
    });
  }

  /** Only the last turn has Undo; the turn after it, if it was undone last, has Redo. */
  #markEnds() {
    const { turns } = this.state;
    const last = turns.findLastIndex((turn) => !turn.rolledBack);
    const ends = [turns[last], turns[last + 1]];
    if (ends.every((turn, at) => turn === this.#ends[at])) return;
    for (const turn of this.#ends) this.#views.get(turn)?.allow({});
    this.#views.get(ends[0])?.allow({ undo: true });
    this.#views.get(ends[1])?.allow({ redo: true });
    this.#ends = ends;
  }

  /** Go to the end, and stay there. */
  pin() {
    this.#isPinned = true;
    this.newest.hidden = true;
    this.#toEnd();
  }

  /** Show the timeline of the latest turn, or hide it. */
  toggleTimeline() {
    const view = this.#views.get(this.state.turns.at(-1));
    view?.toggleTimeline();
    if (this.#isPinned) this.#toEnd();
  }

  /** Redraw the timeline of the running turn, whose bars grow with time. */
  tick() {
    this.#views.get(this.state.running)?.timeline?.draw();
  }

  #turn(turn) {
    let view = this.#views.get(turn);
    if (!view) {
      view = new TurnView(turn, this.clock, this.act);
      this.#views.set(turn, view);
      this.#place(turn, view.node);
    }
    for (let at = view.items.childNodes.length; at < turn.items.length; at += 1) {
      const item = turn.items[at];
      const made = viewOf(item, this.act, turn);
      this.#views.set(item, made);
      made.update();
      view.items.append(made.node);
    }
    view.update();
  }

  /** Put a turn before the ones after it: earlier turns may be drawn later. */
  #place(turn, node) {
    const { turns } = this.state;
    let at = turns.lastIndexOf(turn) + 1;
    while (at < turns.length && !this.#views.has(turns[at])) at += 1;
    this.turns.insertBefore(node, this.#views.get(turns[at])?.node ?? null);
  }

  #onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    this.#isPinned = scrollHeight - scrollTop - clientHeight < END_MARGIN;
    if (this.#isPinned) this.newest.hidden = true;
  }

  #toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }
}

function viewOf(item, act, turn) {
  const kinds = {
    message: MessageView,
    text: TextView,
    thought: ThoughtView,
    call: CallView,
    question: QuestionView,
    child: ChildView,
    retry: RetryView,
    compaction: CompactionView,
  };
  return new kinds[item.kind](item, act, turn);
}

class TurnView {
  #may = {}; // undo, redo

  constructor(turn, clock, act) {
    this.turn = turn;
    this.items = el("div", { class: "items" });
    this.phase = el("p", { class: "phase", hidden: true });
    this.end = el("span", { class: "end" });
    this.more = button("Timeline", () => this.toggleTimeline(), {
      class: "small quiet",
      icon: "time",
      "aria-expanded": "false",
      title: "Show the timeline ( Alt+T: of the latest turn )",
    });
    this.clock = clock;
    this.timeline = null; // until it is shown for the first time
    this.error = el("p", { class: "error", hidden: true });
    this.since = el("span", { "data-since": turn.started });
    this.undo = button("Undo", () => act.undo(), {
      class: "small quiet undo",
      icon: "undo",
      title: "Remove this turn; shows the files that it has changed first",
      hidden: true,
    });
    this.redo = button("Redo the file changes", () => act.redo(), { class: "small quiet undo", icon: "redo", hidden: true });
    this.copy = copyButton(() => answerOf(turn), { "aria-label": "Copy the answer", title: "Copy the answer" });
    this.foot = el("footer", {}, this.since, this.end, this.copy, this.more, this.undo, this.redo);
    this.node = el("article", { class: "turn" }, this.items, this.phase, this.error, this.foot);
  }

  allow(may) {
    this.#may = may;
    this.update();
  }

  toggleTimeline() {
    if (!this.timeline) {
      this.timeline = new TimelineView(this.turn, this.clock);
      this.node.append(this.timeline.node);
    }
    this.timeline.toggle();
    this.more.setAttribute("aria-expanded", String(this.timeline.isOpen));
  }

  update() {
    const { turn } = this;
    const isRunning = turn.status === "running";
    this.node.dataset.status = turn.rolledBack ? "rolled_back" : turn.stopping && isRunning ? "stopping" : turn.status;
    this.phase.hidden = !isRunning || !(turn.phase || turn.stopping);
    this.phase.textContent = turn.stopping
      ? "Stopping"
      : turn.phase === "thinking"
        ? "Thinking"
        : "Waiting for the model";
    this.error.hidden = turn.status !== "failed";
    this.error.textContent = [because(turn.reason), turn.error || turn.detail].filter(Boolean).join(": ");
    this.end.textContent = this.#endText();
    this.copy.hidden = !navigator.clipboard || isRunning || !answerOf(turn);
    this.undo.hidden = !this.#may.undo || isRunning;
    this.redo.hidden = !this.#may.redo || !turn.restored;
    if (!isRunning) this.since.remove();
    this.timeline?.draw();
  }

  #endText() {
    const { turn } = this;
    const said = [];
    if (turn.rolledBack) said.push("Removed from the conversation");
    else if (turn.status === "interrupted") said.push(because(turn.reason));
    if (turn.status === "interrupted" && turn.after !== null)
      said.push(`took ${seconds(turn.after)}`);
    if (turn.ended !== null && turn.status === "done") said.push(seconds(turn.ended - turn.started));
    if (turn.tokens) said.push(`${grouped(turn.tokens)} tokens`);
    if (turn.usage.cost) said.push(money(turn.usage.cost));
    if (turn.model) said.push(turn.model);
    return said.join(" · ");
  }

  close() {
    this.timeline?.toggle(false);
  }
}

/** What the model has said in a turn, without what a retry has replaced. */
function answerOf(turn) {
  const texts = turn.items.filter((item) => item.kind === "text" && !item.superseded);
  return texts.map((item) => item.text.trim()).join("\n\n");
}

class TextView {
  constructor(item) {
    this.item = item;
    this.node = el("div", { class: "answer" });
    this.markdown = new Markdown(this.node);
  }

  update() {
    this.markdown.show(this.item.text);
    this.node.classList.toggle("live", this.item.live);
    this.node.classList.toggle("superseded", this.item.superseded);
  }
}

class ThoughtView {
  constructor(item) {
    this.item = item;
    this.text = document.createTextNode("");
    this.node = el("details", { class: "thought" }, el("summary", { text: "Thinking" }), el("p", {}, this.text));
  }

  update() {
    this.text.appendData(this.item.text.slice(this.text.length));
  }
}

class ChildView {
  constructor(item) {
    this.item = item;
    this.state = el("span", { class: "state" });
    this.took = el("span", { class: "took" });
    this.doing = el("p", { class: "doing" });
    this.task = el("p", { class: "task", text: item.task });
    this.node = el(
      "section",
      { class: "child", "aria-label": `Agent ${item.agent}` },
      el(
        "div",
        { class: "head" },
        el("span", { class: "mark", "aria-hidden": "true" }, icon("agents")),
        el("b", { text: item.agent }),
        el("span", { class: "given" }),
        this.took,
        this.state,
      ),
      item.task ? this.task : null,
      this.doing,
    );
  }

  update() {
    const { item } = this;
    const isRunning = item.state === "running";
    this.node.dataset.state = item.state;
    this.state.textContent = outcome(item.state);
    if (isRunning) this.took.dataset.since = item.start;
    else delete this.took.dataset.since;
    this.took.textContent = item.end === null ? "" : seconds(item.end - item.start);
    const calls = item.calls ? plural(item.calls, "call") : "";
    this.doing.textContent = isRunning ? [calls, brief(item)].filter(Boolean).join(" · ") : calls;
    this.doing.hidden = !this.doing.textContent;
  }
}

/** The last call of another agent, in a line. */
function brief({ tool, arguments: given }) {
  let values = given;
  try {
    values = Object.values(JSON.parse(given)).join(", ");
  } catch {
    // Long arguments are cut, so they may not be complete JSON.
  }
  return `${tool} ${values}`.replace(/\s+/g, " ").trim().slice(0, 200);
}

class CompactionView {
  constructor(item) {
    const how = {
      shortened: "old results were shortened",
      summarised: "older messages were summarised",
      dropped: "older messages were left out, because they could not be summarised",
    }[item.how];
    const [before, after] = [item.before, item.after].map(grouped);
    const text = `Context compacted from about ${before} to ${after} tokens: ${how}.`;
    this.node = el("p", { class: "note compaction" }, icon("compact"), el("span", { text }));
  }

  update() {}
}

class RetryView {
  constructor(item) {
    const when = item.delay >= 0.1 ? ` in ${Number(item.delay.toFixed(1))} s` : "";
    const again = item.hadText ? "the answer starts again" : "trying again";
    const text = `${item.error}; ${again}${when} (${item.model}, attempt ${item.attempt}).`;
    this.node = el("p", { class: "note", text });
  }

  update() {}
}
