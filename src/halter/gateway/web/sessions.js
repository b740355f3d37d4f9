// The sessions on the left, the latest used first. The list is fetched when something has changed: here, in another tab
// of this browser, or while the tab was hidden; and at intervals, for changes by others.

import { button, el, find } from "./dom.js";
import { ago } from "./text.js";

const SEARCH_DELAY = 150; // milliseconds after the last key of a search

/** The list, as the gateway sends it. */
export class Sessions {
  #isAsking = false;
  #isStale = false; // something has changed since it was asked for
  #tabs = new BroadcastChannel("halter");
  #shownNotices = new Set(); // notices of the gateway
  #timer = null;
  #words = ""; // that are searched for

  constructor(api, { onChange, onNotice }) {
    this.api = api;
    this.onChange = onChange;
    this.onNotice = onNotice;
    this.all = [];
    this.found = null; // what was found in sessions, by their ids, during a search
    this.shown = []; // those that were found, or all
    this.#tabs.addEventListener("message", () => this.refresh());
  }

  find(id) {
    return this.all.find((each) => each.id === id);
  }

  /** Fetch it; `tell` other tabs to do so too. */
  async refresh(tell = false) {
    if (tell) this.#tabs.postMessage("sessions");
    this.#isStale = true;
    if (this.#isAsking) return;
    this.#isAsking = true;
    while (this.#isStale) {
      this.#isStale = false;
      try {
        const { sessions, notices } = await this.api.sessions();
        this.all = sessions;
        if (!this.found) this.shown = sessions;
        notices.filter((each) => !this.#shownNotices.has(each)).forEach((each) => this.onNotice(each));
        this.#shownNotices = new Set(notices);
        this.onChange();
      } catch {
        // The stream reports it if the gateway cannot be reached, and the next change is fetched.
      }
    }
    this.#isAsking = false;
  }

  /** Show only sessions in which these words are; nothing shows all of them again. */
  async search(words) {
    clearTimeout(this.#timer);
    this.#words = words.trim();
    if (this.#words) this.#timer = setTimeout(() => this.#search(this.#words), SEARCH_DELAY);
    else {
      Object.assign(this, { found: null, shown: this.all });
      this.onChange();
    }
  }

  async #search(words) {
    let answer;
    try {
      answer = await this.api.sessions(words);
    } catch {
      return; // the next letter asks again
    }
    if (words !== this.#words) return;
    Object.assign(this, { found: answer.found, shown: answer.sessions });
    this.onChange();
  }
}

export class SessionsView {
  #rows = new Map();

  constructor(node, { onOpen, onRemove }) {
    this.node = node;
    this.onOpen = onOpen;
    this.onRemove = onRemove;
    this.all = [];
  }

  /** Show these; `current` is the one that is open, with what is known of it from its own events. */
  render(sessions, current, found) {
    this.all = sessions;
    find("nothing").hidden = !found || sessions.length > 0;
    const ids = new Set(sessions.map((each) => each.id));
    for (const [id, row] of this.#rows) {
      if (ids.has(id)) continue;
      row.node.remove();
      this.#rows.delete(id);
    }
    sessions.forEach((session, at) => {
      let row = this.#rows.get(session.id);
      if (!row) {
        row = this.#row(session.id);
        this.#rows.set(session.id, row);
      }
      if (this.node.children[at] !== row.node) this.node.insertBefore(row.node, this.node.children[at] ?? null);
      update(row, session, current, found?.[session.id] ?? "");
    });
  }

  /** The id of the session that is `step` rows further down. */
  beside(id, step) {
    const at = this.all.findIndex((each) => each.id === id);
    return this.all[at + step]?.id ?? null;
  }

  #row(id) {
    const row = {
      dot: el("span", { class: "dot", "aria-hidden": "true" }),
      title: el("span", { class: "title" }),
      found: el("span", { class: "found" }),
      when: el("span", { class: "when" }),
    };
    row.open = el(
      "button",
      { type: "button", class: "open", on: { click: () => this.onOpen(id) } },
      row.dot,
      el("span", { class: "words" }, row.title, row.found),
      row.when,
    );
    row.remove = button("", () => this.onRemove(id), { class: "icon", icon: "trash", title: "Remove" });
    row.node = el("li", {}, row.open, row.remove);
    return row;
  }
}

/** What a session is called: its first words, or its name. */
export function nameOf(session) {
  return session.title || "New session";
}

function update(row, session, current, found) {
  const isCurrent = session.id === current.id;
  const state = isCurrent ? current.state : session.questions ? "needs you" : session.state;
  const isIdle = state === "idle" || state === "asleep";
  const name = nameOf(isCurrent && current.title ? current : session);
  row.node.dataset.state = isIdle ? (session.waiting ? "waiting" : "idle") : state;
  row.found.textContent = found.replaceAll("**", "");
  row.found.hidden = !found;
  row.node.classList.toggle("current", isCurrent);
  row.open.setAttribute("aria-current", String(isCurrent));
  row.title.textContent = name;
  row.title.title = session.id;
  row.when.textContent = isIdle ? ago(session.updated_at) : state;
  row.remove.setAttribute("aria-label", `Remove ${name}`);
}
