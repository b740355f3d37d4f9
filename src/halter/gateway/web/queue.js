// Queued messages, which can be edited, removed or, if a stop holds them, released; and messages being sent.

import { button, el } from "./dom.js";
import { capital } from "./text.js";

const MIN_SHOWN = 300; // milliseconds; messages queued for less are not shown

export class QueueView {
  #rows = new Map();
  #timer = null;

  constructor(node, act, schedule) {
    Object.assign(this, { node, act, schedule });
    this.list = el("ul");
    this.all = button("Release all", () => act.releaseAll(), { class: "small" });
    this.label = el("span");
    this.head = el("div", { class: "head" }, this.label, this.all);
    this.node.append(this.head, this.list);
  }

  /** Remove all rows, before another session is shown; an unsaved edit stays in this one, as its draft. */
  clear() {
    for (const row of this.#rows.values()) if (row.unsaved) this.act.keepEdit(row.unsaved);
    this.#rows.clear();
    this.list.replaceChildren();
  }

  render(state, outbox) {
    const now = Date.now();
    const isNews = (since) => !state.running && now - since < MIN_SHOWN;
    const messages = [...state.queue.values()].filter((message) => {
      message.since ??= now;
      return message.state === "held" || message.preparing || !isNews(message.since);
    });
    const isShown = (id) => state.queue.has(id) || state.turns.at(-1)?.items.some((item) => item.id === id);
    const leaving = outbox.filter(
      (entry) => !isShown(entry.id) && (entry.state !== "sending" || now - entry.since >= MIN_SHOWN),
    );
    if (messages.length + leaving.length < state.queue.size + outbox.length) this.#later();
    const rows = [
      ...messages.map((message) => [message.id, MessageRow, message]),
      ...leaving.map((entry) => [`out ${entry.id}`, LeavingRow, entry]),
    ];
    this.#show(rows);
    const held = messages.filter((message) => message.state === "held").length;
    this.node.hidden = !rows.length;
    this.label.textContent = held ? `${held} held by the stop` : messages.length ? "Queued" : "Sending";
    this.all.hidden = held < 2;
  }

  #show(rows) {
    const keys = new Set(rows.map(([key]) => key));
    for (const [key, row] of this.#rows) {
      if (keys.has(key)) continue;
      row.node.remove();
      this.#rows.delete(key);
      if (row.unsaved) this.act.keepEdit(row.unsaved, "That message is no longer queued. Your changes are in the field.");
    }
    for (const [key, Row, data] of rows) {
      if (!this.#rows.has(key)) {
        const row = new Row(data, this.act);
        this.#rows.set(key, row);
        this.list.append(row.node);
      }
      this.#rows.get(key).update(data);
    }
  }

  #later() {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.schedule();
    }, MIN_SHOWN);
  }
}

const MODES = { queue: "Queue", steer: "Steer", interrupt: "Stop and send", rollback: "Roll back" };

class MessageRow {
  constructor(message, act) {
    this.act = act;
    this.mode = el("span", { class: "mode" });
    this.text = el("span", { class: "text" });
    this.note = el("span", { class: "note" });
    this.release = button("Release", () => act.release(this.message.id), { class: "small main" });
    this.edit = button("", () => this.#begin(), { class: "icon", icon: "edit", "aria-label": "Edit", title: "Edit" });
    this.remove = button("", () => act.remove(this.message.id), {
      class: "icon",
      icon: "trash",
      "aria-label": "Remove",
      title: "Remove",
    });
    this.shown = el(
      "div",
      { class: "shown" },
      this.mode,
      el("span", { class: "words" }, this.text, this.note),
      this.release,
      this.edit,
      this.remove,
    );
    this.editor = el("div", { class: "editor", hidden: true });
    this.node = el("li", {}, this.shown, this.editor);
  }

  update(message) {
    this.message = message;
    this.node.dataset.state = message.preparing ? "preparing" : message.state;
    this.mode.textContent = message.state === "held" ? "Held" : (MODES[message.mode] ?? message.mode);
    this.text.textContent = message.preparing
      ? `🎙️ ${capital(message.preparing)}…`
      : message.voice
        ? message.text
          ? `🎙️ “${message.text}”`
          : "🎙️ Voice message"
        : message.text || "(image)";
    this.note.textContent = message.note;
    this.release.hidden = message.state !== "held";
    this.edit.hidden = Boolean(message.preparing);
  }

  /** The text in its editor, if it differs from the message. */
  get unsaved() {
    const edited = this.editor.hidden ? "" : this.editor.querySelector("textarea").value;
    return edited.trim() && edited !== this.message.text ? edited : "";
  }

  #begin() {
    const area = el("textarea", {
      rows: 2,
      "aria-label": "Edit the message",
      on: {
        keydown: (event) => {
          if (event.key === "Escape") this.#end();
          else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) save();
          else return;
          event.preventDefault();
          event.stopPropagation();
        },
      },
    });
    area.value = this.message.text;
    const save = async () => {
      if (area.value.trim() && (await this.act.edit(this.message.id, area.value))) this.#end();
    };
    this.editor.replaceChildren(
      area,
      el(
        "div",
        { class: "row" },
        button("Save", save, { class: "small main" }),
        button("Cancel", () => this.#end(), { class: "small" }),
      ),
    );
    this.editor.hidden = false;
    this.shown.hidden = true;
    area.focus();
  }

  #end() {
    this.editor.hidden = true;
    this.shown.hidden = false;
    this.edit.focus();
  }
}

class LeavingRow {
  constructor(entry, act) {
    this.text = el("span", { class: "text", text: entry.audio ? "🎙️ Voice message" : entry.text || "(picture)" });
    this.note = el("span", { class: "note" });
    this.again = button("Send again", () => act.sendAgain(entry.id), { class: "small" });
    this.back = button(entry.audio ? "Discard" : "Take back", () => act.takeBack(entry.id), { class: "small" });
    this.node = el(
      "li",
      {},
      el(
        "div",
        { class: "shown" },
        el("span", { class: "mode", text: "Sending" }),
        el("span", { class: "words" }, this.text, this.note),
        this.again,
        this.back,
      ),
    );
  }

  update(entry) {
    this.node.dataset.state = entry.state;
    this.note.textContent =
      entry.error || (entry.state === "waiting" ? "The gateway cannot be reached. Trying again." : "");
    this.again.hidden = entry.state === "sending";
    this.back.hidden = !entry.error; // an unanswered message may have arrived
  }
}
