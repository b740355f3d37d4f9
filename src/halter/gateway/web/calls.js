// One tool call: its name and arguments, its state, how it ended, and its buttons: stop it alone, allow or deny it. A
// call that needs approval is shown completely, with the reason first, and can be allowed once its end was on
// the screen: the rule of halter/views/approval_text.py.

import { displayOf, mediaIn } from "./call_display.js";
import { button, el, icon } from "./dom.js";
import { capital, outcome, seconds, visible } from "./text.js";

const MIN_DURATION = 0.1; // seconds; shorter durations are not shown
const LIVE_LINES = 8; // of a command's output, while it runs
const LAST_LINES = 12; // of the output of a command that has failed, or was stopped
const CUT_OFF = ["failed", "timed_out", "partial", "cancelled", "abandoned"];

export class CallView {
  #act;
  #parts = {};
  #shown = {}; // what was drawn last, so that only what has changed is drawn again
  #end = null; // watches whether the end of what is asked about was shown
  #isRead = false; // whether it was

  constructor(item, act) {
    this.item = item;
    this.#act = act;
    const parts = this.#parts;
    parts.mark = el("span", { class: "mark", "aria-hidden": "true" });
    parts.title = el("b");
    parts.brief = el("span", { class: "given" });
    parts.counts = el("span");
    parts.state = el("span", { class: "state" });
    parts.took = el("span", { class: "took" });
    parts.arguments = el("div", { class: "arguments" });
    parts.result = el("div", { class: "result" });
    parts.tail = el("pre", { class: "tail", tabindex: 0, "aria-label": "Last lines of the output", hidden: true });
    parts.media = el("div", { class: "media", hidden: true });
    parts.list = el("div", { class: "list", hidden: true });
    parts.note = el("p", { class: "note" });
    parts.stop = button("Stop this", () => act.stopCall(item), {
      class: "small",
      title: "Stop this call; the turn goes on",
    });
    parts.ask = el("div", { class: "ask" });
    parts.summary = el(
      "summary",
      {},
      parts.mark,
      parts.title,
      parts.brief,
      parts.counts,
      parts.took,
      parts.state,
    );
    parts.details = el("details", {}, parts.summary, parts.arguments, parts.result);
    this.node = el(
      "section",
      { class: "call", "aria-label": `Tool ${item.name}` },
      parts.details,
      parts.tail,
      parts.list,
      parts.media,
      parts.note,
      parts.stop,
      parts.ask,
    );
  }

  update() {
    const { item } = this;
    const parts = this.#parts;
    const display = displayOf(item);
    const isAsked = item.approval?.state === "open";
    this.node.dataset.state = item.state;
    this.node.classList.toggle("bad", Boolean(display.isBad));
    this.node.classList.toggle("line", Boolean(display.isLine) && !isAsked);
    this.#once("mark", display.icon, (name) => parts.mark.replaceChildren(icon(name)));
    parts.title.textContent = visible(display.title);
    parts.brief.classList.toggle("mono", Boolean(display.isCode));
    this.#once("brief", display.brief ?? "", (text) => {
      parts.brief.textContent = visible(text.replace(/[ \n\t]+/g, " ").slice(0, 200));
    });
    parts.state.textContent = display.ended || outcome(item.state);
    parts.stop.hidden = item.state !== "running";
    parts.took.textContent = this.#took();
    if (item.state === "running" || item.state === "stopping") parts.took.dataset.since = item.start ?? "";
    else delete parts.took.dataset.since;
    this.#showBody(display, isAsked);
    this.#showTail(display);
    this.#once("note", this.#note(), (text) => {
      parts.note.textContent = text;
      parts.note.hidden = !text;
    });
    this.#once("asking", item.approval?.state ?? "", () => this.#showApproval(display));
  }

  #showBody(display, isAsked) {
    const { item } = this;
    const parts = this.#parts;
    this.#once("given", `${item.arguments} ${isAsked} ${item.diff}`, () => {
      parts.arguments.replaceChildren(...display.given({ whole: isAsked }));
      parts.arguments.hidden = !parts.arguments.hasChildNodes();
    });
    this.#once("counts", display.counts?.textContent ?? "", () => parts.counts.replaceChildren(display.counts ?? ""));
    this.#once("open", Boolean(display.isOpen), (open) => (parts.details.open = open));
    this.#once("content", item.content, (content) => {
      parts.result.replaceChildren(...display.result());
      parts.media.replaceChildren(...mediaIn(content));
      parts.media.hidden = !parts.media.hasChildNodes();
      parts.list.replaceChildren(...(display.shown ? [display.shown()] : []));
      parts.list.hidden = !display.shown;
    });
  }

  /** The last lines of the output while a command runs, and when it has failed or was stopped. */
  #showTail(display) {
    const { item } = this;
    const { tail } = this.#parts;
    const isLive = item.state === "running" || item.state === "stopping";
    const output = display.tail ?? item.progress;
    const most = isLive ? LIVE_LINES : display.isBad || CUT_OFF.includes(item.state) ? LAST_LINES : 0;
    const lines = output.replace(/\n+$/, "").split("\n");
    this.#once("tail", most ? lines.slice(-most).join("\n") : "", (text) => {
      tail.textContent = text;
      tail.hidden = !text.trim();
      tail.classList.toggle("cut", lines.length > most);
      tail.scrollTop = tail.scrollHeight;
    });
  }

  #once(name, value, draw) {
    if (this.#shown[name] === value) return;
    this.#shown[name] = value;
    draw(value);
  }

  #took() {
    const { item } = this;
    const took = item.start !== null && item.end !== null ? item.end - item.start : 0;
    return took >= MIN_DURATION ? seconds(took) : "";
  }

  #note() {
    const { item } = this;
    const said = [];
    if (item.state === "stopping") said.push("stopping");
    if (item.after !== null) said.push(`ended ${seconds(item.after)} after the stop`);
    if (item.state === "abandoned") said.push("did not end in time and may still have effects");
    if (item.rungs.includes("killed")) said.push("its process was killed");
    if (item.late)
      said.push(
        `ended late, ${seconds(item.late.seconds)} after the stop`,
        item.late.error ? `with an error: ${item.late.error}` : "",
      );
    if (["failed", "denied", "timed_out"].includes(item.state) && item.detail) said.push(item.detail);
    return said.filter(Boolean).join("; ");
  }

  #showApproval(display) {
    const { approval, name } = this.item;
    const { ask } = this.#parts;
    ask.hidden = !approval || approval.state !== "open";
    if (ask.hidden) {
      this.#end?.disconnect();
      ask.replaceChildren();
      if (approval) this.#parts.details.open = Boolean(display.isOpen);
      return;
    }
    const answer = (value) => () => this.#act.answer(approval.id, value);
    const allow = (value) => () => (this.#isRead ? answer(value)() : this.#showEnd());
    const why = el("input", { type: "text", "aria-label": "Why not", placeholder: "Why not (optional)" });
    const allowing = [
      button("Allow", allow(true), { class: "main", icon: "check" }),
      button(`Allow ${sessionText(approval, name)} in this session`, allow("session")),
    ];
    if (approval.prefixes.length) allowing.push(button(`Always allow ${prefixText(approval)}`, allow("always")));
    const hint = el("p", { class: "note", text: "Scroll to the end before you allow this." });
    ask.replaceChildren(
      el(
        "p",
        {},
        approval.reason ? el("span", { class: "why", text: `${capital(visible(approval.reason))}. ` }) : null,
        el("b", { text: display.question }),
      ),
      hint,
      el(
        "div",
        { class: "row" },
        ...allowing,
        button("Deny", () => answer(why.value.trim() ? { deny: why.value } : false)(), { icon: "close" }),
        why,
      ),
    );
    this.#parts.details.open = true;
    this.#allowAtEnd(allowing, hint);
  }

  /**
   * Enable buttons when the end of the arguments has been on the screen. Until then they can have the focus, as
   * `disabled` buttons cannot: a key that is pressed too early must not be lost, nor go to another button.
   */
  #allowAtEnd(buttons, hint) {
    const { arguments: given } = this.#parts;
    this.#end?.disconnect();
    this.#isRead = given.hidden; // if so, there is nothing to read
    hint.hidden = this.#isRead;
    if (this.#isRead) return;
    for (const each of buttons) each.setAttribute("aria-disabled", "true");
    this.#end = new IntersectionObserver((seen) => {
      if (!seen.some((each) => each.isIntersecting)) return;
      this.#isRead = true;
      for (const each of buttons) each.removeAttribute("aria-disabled");
      hint.hidden = true;
      this.#end.disconnect();
    });
    const end = el("span", { class: "end" });
    given.append(end);
    this.#end.observe(end);
  }

  /** Scroll to the end of the arguments, for a user who tries to allow the call before that. */
  #showEnd() {
    this.#parts.arguments.querySelector(".end")?.scrollIntoView({ block: "nearest" });
  }
}

function prefixText(approval) {
  return approval.prefixes.map((words) => `\`${visible(words.join(" "))} …\``).join(", ");
}

/** What an answer for the session allows. */
function sessionText(approval, name) {
  if (approval.prefixes.length) return prefixText(approval);
  return approval.covers === "tool" ? `every call of ${visible(name)}` : "exactly this call";
}
