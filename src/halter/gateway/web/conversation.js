// The conversation on the screen. Events come by the thousand; what they have changed is drawn once in a frame, each
// thing for itself, and what has not changed is not touched. It stays at its end unless somebody has scrolled away.

import { CallView } from "./calls.js";
import { button, el } from "./dom.js";
import { Markdown } from "./markdown.js";
import { forgetMedia, partsOf } from "./media.js";
import { QuestionView } from "./questions.js";
import { TimelineView } from "./timeline.js";
import { because, outcome, seconds } from "./text.js";

const NEAR = 60; // pixels from the end that count as being there

export class ConversationView {
  #views = new Map(); // of turns and of what is in them
  #isPinned = true;
  #life = 0;

  constructor({ log, turns, newest, act, clock }) {
    Object.assign(this, { log, turns, newest, act, clock });
    log.addEventListener("scroll", () => this.#look(), { passive: true });
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
    this.#life = this.state.lives;
    forgetMedia();
    for (const view of this.#views.values()) view.close?.();
    this.#views.clear();
    this.turns.replaceChildren();
    this.#isPinned = true;
    this.newest.hidden = true;
  }

  render() {
    const { state } = this;
    if (state.lives !== this.#life) this.#clear();
    const touched = [...state.touched];
    state.touched.clear();
    this.log.setAttribute("aria-busy", String(Boolean(state.running)));
    for (const turn of touched) if (turn.kind === "turn") this.#turn(turn);
    for (const item of touched) if (item.kind !== "turn") this.#views.get(item)?.update();
    if (!touched.length) return;
    if (this.#isPinned) this.#toEnd();
    else this.newest.hidden = false;
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

  /** Draw what grows by itself, as time passes. */
  tick() {
    this.#views.get(this.state.running)?.timeline.draw();
  }

  #turn(turn) {
    let view = this.#views.get(turn);
    if (!view) {
      view = new TurnView(turn, this.clock, this.act);
      this.#views.set(turn, view);
      this.turns.append(view.node);
    }
    for (let at = view.items.childNodes.length; at < turn.items.length; at += 1) {
      const item = turn.items[at];
      const made = viewOf(item, this.act);
      this.#views.set(item, made);
      made.update();
      view.items.append(made.node);
    }
    view.update();
  }

  #look() {
    const { scrollTop, scrollHeight, clientHeight } = this.log;
    this.#isPinned = scrollHeight - scrollTop - clientHeight < NEAR;
    if (this.#isPinned) this.newest.hidden = true;
  }

  #toEnd() {
    this.log.scrollTop = this.log.scrollHeight;
  }
}

function viewOf(item, act) {
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
  return new kinds[item.kind](item, act);
}

class TurnView {
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
    this.timeline = new TimelineView(turn, clock);
    this.error = el("p", { class: "error", hidden: true });
    this.since = el("span", { "data-since": turn.started });
    this.undo = button("Undo", () => act.undo(), {
      class: "small quiet undo",
      title: "Remove this turn; shows the files that it has changed first",
      hidden: true,
    });
    this.redo = button("Bring the files back", () => act.redo(), { class: "small quiet undo", hidden: true });
    this.foot = el("footer", {}, this.since, this.end, this.more, this.undo, this.redo);
    this.node = el("article", { class: "turn" }, this.items, this.phase, this.error, this.foot, this.timeline.node);
  }

  toggleTimeline() {
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
    this.end.textContent = this.#told();
    this.undo.hidden = isRunning || turn.rolledBack;
    this.redo.hidden = !turn.restored;
    if (!isRunning) this.since.remove();
    this.timeline.draw();
  }

  #told() {
    const { turn } = this;
    const said = [];
    if (turn.rolledBack) said.push("Removed from the conversation");
    else if (turn.status === "interrupted") said.push(because(turn.reason));
    if (turn.status === "interrupted" && turn.after !== null)
      said.push(`took ${seconds(turn.after)}`);
    if (turn.ended !== null && turn.status === "done") said.push(seconds(turn.ended - turn.started));
    if (turn.tokens) said.push(`${turn.tokens.toLocaleString()} tokens`);
    if (turn.model) said.push(turn.model);
    return said.join(" · ");
  }

  close() {
    this.timeline.toggle(false);
  }
}

class MessageView {
  constructor(item) {
    this.item = item;
    const label = { steer: "Steer", interrupt: "Stop and send", rollback: "Roll back and send" }[item.mode];
    const words = item.voice ? (item.text ? `🎙️ “${item.text}”` : "🎙️ Voice message") : item.text;
    this.node = el(
      "div",
      { class: "message" },
      label ? el("span", { class: "mode", text: label }) : null,
      words ? el("p", { text: words }) : null,
      ...partsOf(item.media),
      item.note ? el("p", { class: "note", text: item.note }) : null,
    );
    this.node.dataset.mode = item.mode;
  }

  update() {}
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
    this.node = el(
      "p",
      { class: "child" },
      el("span", { class: "dot", "aria-hidden": "true" }),
      el("span", {}, "Delegated to ", el("b", { text: item.agent }), item.task ? `: ${item.task}`.slice(0, 200) : ""),
      this.state,
    );
  }

  update() {
    this.node.dataset.state = this.item.state;
    this.state.textContent = outcome(this.item.state);
  }
}

class CompactionView {
  constructor(item) {
    const how = {
      shortened: "old results were shortened",
      summarised: "older messages were summarised",
      dropped: "older messages were left out, because they could not be summarised",
    }[item.how];
    const [before, after] = [item.before, item.after].map((tokens) => tokens.toLocaleString("en"));
    const text = `Context compacted from about ${before} to ${after} tokens: ${how}.`;
    this.node = el("p", { class: "note", text });
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
