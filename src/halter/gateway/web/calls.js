// One tool call: its name and what it was given, how it goes, how it ended, and what a person can do about it: stop it
// alone, and allow or refuse it. What is asked about is shown whole, with its reason first, and can be allowed when its end
// was on the screen: the rule of halter/views/approval_text.py.

import { button, el } from "./dom.js";
import { partsOf } from "./media.js";
import { outcome, seconds, visible } from "./text.js";

const OPEN = new Set(["planned", "needs approval", "running", "stopping"]);
const MOST_SHOWN = 20_000; // characters of a result, until one asks for the rest

export class CallView {
  #act;
  #parts = {};
  #shown = {}; // what was drawn last, so that only what has changed is drawn again
  #end = null; // watches whether the end of what is asked about was shown

  constructor(item, act) {
    this.item = item;
    this.#act = act;
    const parts = this.#parts;
    parts.state = el("span", { class: "state" });
    parts.took = el("span", { class: "took" });
    parts.given = el("code", { class: "given" });
    parts.arguments = el("pre", { class: "arguments", tabindex: 0 });
    parts.progress = el("pre", { class: "progress", tabindex: 0, "aria-label": "Progress" });
    parts.result = el("div", { class: "result" });
    parts.note = el("p", { class: "note" });
    parts.stop = button("Stop this", () => act.stopCall(item), {
      class: "small",
      title: "Stop this call; the turn goes on",
    });
    parts.ask = el("div", { class: "ask" });
    parts.summary = el(
      "summary",
      {},
      el("span", { class: "dot", "aria-hidden": "true" }),
      el("b", { text: visible(item.name) }),
      parts.given,
      parts.took,
      parts.state,
    );
    parts.details = el("details", {}, parts.summary, parts.arguments, parts.progress, parts.result);
    this.node = el(
      "section",
      { class: "call", "aria-label": `Tool ${item.name}` },
      parts.details,
      parts.note,
      parts.stop,
      parts.ask,
    );
  }

  update() {
    const { item } = this;
    const parts = this.#parts;
    const isOpen = OPEN.has(item.state);
    this.node.dataset.state = item.state;
    parts.state.textContent = outcome(item.state);
    parts.stop.hidden = item.state !== "running";
    parts.took.textContent = this.#took();
    if (item.state === "running" || item.state === "stopping") parts.took.dataset.since = item.start ?? "";
    else delete parts.took.dataset.since;
    this.#once("given", item.arguments, () => this.#showArguments());
    this.#once("progress", isOpen ? item.progress : "", (text) => {
      parts.progress.textContent = text;
      parts.progress.hidden = !text;
      parts.progress.scrollTop = parts.progress.scrollHeight;
    });
    this.#once("running", item.state === "running" && Boolean(item.progress), (live) => {
      if (live) parts.details.open = true;
      else if (!isOpen) parts.details.open = false;
    });
    this.#once("content", item.content, (content) => parts.result.replaceChildren(...resultOf(content)));
    this.#once("note", this.#note(), (text) => {
      parts.note.textContent = text;
      parts.note.hidden = !text;
    });
    this.#once("asking", item.approval?.state ?? "", () => this.#showApproval());
  }

  #once(name, value, draw) {
    if (this.#shown[name] === value) return;
    this.#shown[name] = value;
    draw(value);
  }

  #took() {
    const { item } = this;
    return item.start !== null && item.end !== null ? seconds(item.end - item.start) : "";
  }

  #showArguments() {
    const { given, arguments: whole } = this.#parts;
    const text = this.item.arguments;
    let value;
    try {
      value = JSON.parse(text);
    } catch {
      value = null;
    }
    const isObject = value !== null && typeof value === "object";
    const short = isObject
      ? Object.values(value)
          .map((each) => (typeof each === "string" ? each : JSON.stringify(each)))
          .join(", ")
      : text;
    given.textContent = visible(short.replace(/[ \n\t]+/g, " ").slice(0, 200));
    whole.textContent = visible(isObject ? JSON.stringify(value, null, 2) : text);
    whole.hidden = !text || text === "{}";
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

  #showApproval() {
    const { approval, name } = this.item;
    const { ask } = this.#parts;
    ask.hidden = !approval || approval.state !== "open";
    if (ask.hidden) {
      this.#end?.disconnect();
      ask.replaceChildren();
      return;
    }
    const answer = (value) => () => this.#act.answer(approval.id, value);
    const why = el("input", { type: "text", "aria-label": "Why not", placeholder: "Why not (optional)" });
    const allowing = [
      button("Allow", answer(true), { class: "main", icon: "check" }),
      button(`Allow ${sessionText(approval, name)} in this session`, answer("session")),
    ];
    if (approval.prefixes.length) allowing.push(button(`Always allow ${prefixText(approval)}`, answer("always")));
    const hint = el("p", { class: "note", text: "It can be allowed when all of it was shown: scroll to its end." });
    ask.replaceChildren(
      el(
        "p",
        {},
        approval.reason ? el("span", { class: "why", text: `${visible(approval.reason)}. ` }) : null,
        "May ",
        el("b", { text: visible(name) }),
        " run?",
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

  /** Enable buttons when the end of the arguments has been on the screen. */
  #allowAtEnd(buttons, hint) {
    const end = el("span", { class: "end" });
    this.#parts.arguments.append(end);
    for (const each of buttons) each.disabled = true;
    const isShown = () => {
      for (const each of buttons) each.disabled = false;
      hint.hidden = true;
      this.#end?.disconnect();
    };
    this.#end?.disconnect();
    if (this.#parts.arguments.hidden) {
      isShown(); // there is nothing to read
      return;
    }
    this.#end = new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && isShown());
    this.#end.observe(end);
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

/** What a call has given: its text, and its pictures and sounds. */
function resultOf(content) {
  if (typeof content === "string") return content ? [textOf(content)] : [];
  const text = content
    .filter((part) => part.type === "text")
    .map((part) => part.text)
    .join("\n");
  return [...(text ? [textOf(text)] : []), ...partsOf(content)];
}

function textOf(text) {
  const shown = el("pre", { tabindex: 0, text: text.slice(0, MOST_SHOWN) });
  if (text.length <= MOST_SHOWN) return shown;
  const more = button(
    `Show all ${text.length.toLocaleString()} characters`,
    () => {
      shown.textContent = text;
      more.remove();
    },
    { class: "small" },
  );
  return el("div", {}, shown, more);
}
