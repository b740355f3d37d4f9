// A message of the user in the conversation, with what can be done to it: copy, edit and send again, or continue from
// here in another session. The message of the last turn is sent again in its place; an earlier one begins a branch.

import { splitFiles } from "./attachments.js";
import { copyButton } from "./copy.js";
import { button, el } from "./dom.js";
import { partsOf } from "./media.js";
import { plural } from "./text.js";

export class MessageView {
  constructor(item, act, turn) {
    this.item = item;
    this.act = act;
    this.turn = turn;
    const label = { steer: "Steer", interrupt: "Stop and send", rollback: "Roll back and send" }[item.mode];
    const { words, files } = splitFiles(item.text);
    const shown = item.voice ? (words ? `🎙️ “${words}”` : "🎙️ Voice message") : words;
    this.content = el(
      "div",
      { class: "content" },
      label ? el("span", { class: "mode", text: label }) : null,
      shown ? el("p", { text: shown }) : null,
      files.map(fileOf),
      ...partsOf(item.media),
      item.note ? el("p", { class: "note", text: item.note }) : null,
    );
    this.node = el("div", { class: "message" }, this.content, this.#buttons());
    this.node.dataset.mode = item.mode;
  }

  update() {}

  #buttons() {
    const { item } = this;
    if (item.mode === "stop") return null;
    const whole = { class: "icon small", title: "" };
    const redo =
      item.mode === "steer" || item.voice
        ? []
        : [
            button("", () => this.#edit(), { ...whole, icon: "edit", "aria-label": "Edit and send again", title: "Edit and send again" }),
            button("", () => this.act.retry(this.turn, null), { ...whole, icon: "again", "aria-label": "Try again", title: "Try again" }),
            button("", () => this.act.branch(this.turn), { ...whole, icon: "branch", "aria-label": "Branch from here", title: "Continue from here in a new session" }),
          ];
    const copy = copyButton(() => item.text, { ...whole, label: "", class: "icon small copy", "aria-label": "Copy the message", title: "Copy" });
    return el("div", { class: "tools" }, item.text ? copy : null, redo);
  }

  #edit() {
    const area = el("textarea", { rows: 3, "aria-label": "Edit the message" });
    area.value = this.item.text;
    const end = () => {
      editor.remove();
      this.content.hidden = false;
    };
    const save = () => {
      if (!area.value.trim()) return;
      end();
      this.act.retry(this.turn, area.value);
    };
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") end();
      else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) save();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    const editor = el(
      "div",
      { class: "editor" },
      area,
      el("div", { class: "row" }, button("Send", save, { class: "small main" }), button("Cancel", end, { class: "small" })),
    );
    this.content.hidden = true;
    this.content.after(editor);
    area.focus();
  }
}

function fileOf({ name, content }) {
  return el(
    "details",
    { class: "file" },
    el("summary", { text: `${name} (${plural(content.split("\n").length, "line")})` }),
    el("pre", { tabindex: 0, "aria-label": name, text: content }),
  );
}
