// Actions on the open session and its turns, other than sending and stopping. Effects come back as events; refusals of
// the gateway are shown above the field.

import { Problem } from "./api.js";
import { askTitle, askUndo, showChanges, showContext } from "./dialogs.js";
import { find } from "./dom.js";
import { download, fileName, markdownOf } from "./exporting.js";
import { plural } from "./text.js";

export class Actions {
  /** `page` has the open session (`session`, `state`), `api`, `notices`, `say(text)` and `go(session)`. */
  constructor(page) {
    this.page = page;
  }

  get #api() {
    return this.page.api;
  }

  get #session() {
    return this.page.session;
  }

  get #lastTurn() {
    return this.page.state.turns.findLast((each) => !each.rolledBack);
  }

  /** Send a request to the gateway; undefined if it failed, which is shown. */
  async try(fn) {
    try {
      return await fn();
    } catch (error) {
      this.page.notices.say(error instanceof Problem ? error.message : "The gateway cannot be reached.");
      return undefined;
    }
  }

  #at(fn) {
    return (...all) => this.try(() => fn(this.#session, ...all));
  }

  /** Do something that the next message depends on. */
  #first(fn) {
    const done = this.try(() => fn(this.#session));
    this.page.outbox.hold(this.#session, done);
    return done;
  }

  answer = this.#at((session, id, value) => this.#api.answer(session, id, value));
  stopCall = this.#at((session, item) =>
    this.#api.stop(session, { scope: "call", call_id: item.id, expect_turn: item.turn }),
  );
  edit = this.#at((session, id, text) => this.#api.edit(session, id, { text }));
  remove = this.#at((session, id) => this.#api.remove(session, id));
  release = this.#at((session, id) => this.#api.edit(session, id, { state: "accepted" }));
  redo = this.#at((session) => this.#api.undoRollback(session).then((files) => this.#sayFiles(files)));

  async releaseAll() {
    const held = [...this.page.state.queue.values()].filter((message) => message.state === "held");
    for (const message of held) await this.release(message.id);
  }

  sendAgain(id) {
    this.page.outbox.retry(id);
  }

  takeBack(id) {
    const entry = this.page.outbox.take(id);
    if (entry?.text) this.page.composer.append(entry.text);
    find("text").focus();
  }

  /** Keep the text of a queued message that can no longer be saved. */
  keepEdit(text, notice = "") {
    this.page.composer.append(text);
    if (notice) this.page.notices.say(notice);
  }

  /** Remove the last turn, after showing the files that it has changed. */
  async undo() {
    const session = this.#session;
    const turn = this.#lastTurn;
    if (!turn) return;
    const diff = await this.try(() => this.#api.changes(session));
    const choice = diff && (await askUndo(diff));
    if (!choice) return;
    const receipt = await this.try(() => this.#api.rollback(session, turn.id, choice === "files"));
    if (receipt?.files) this.#sayFiles(receipt.files);
  }

  #sayFiles({ restored, kept, note }) {
    const names = Object.entries(kept).map(([path, why]) => `${path} (${why})`);
    this.page.say(`${plural(restored.length, "file")} restored.`);
    if (names.length) this.page.notices.say(`Kept as they are: ${names.join(", ")}`);
    if (note) this.page.notices.say(note);
  }

  /** Send the message of a turn again, with another text if there is one: in place of the last turn, else in a branch. */
  async retry(turn, text) {
    const session = this.#session;
    if (turn !== this.#lastTurn) {
      await this.branch(turn, text);
      return;
    }
    const diff = await this.try(() => this.#api.changes(session));
    const choice = diff?.files.length ? await askUndo(diff) : "keep";
    if (diff && choice) await this.try(() => this.#api.retry(session, turn.id, text, choice === "files"));
  }

  /** Continue from a turn in a new session: with its message if `text` says so, else with an empty field. */
  async branch(turn = null, text = undefined) {
    const words = text === undefined ? turn?.items.find((item) => item.kind === "message")?.text : text;
    const made = await this.try(() => this.#api.branch(this.#session, turn?.id, words));
    if (!made) return;
    this.page.go(made.id);
    this.page.sessions.refresh(true);
  }

  async rename() {
    const session = this.#session;
    const title = await askTitle(find("title").textContent);
    if (title) await this.try(() => this.#api.change(session, { title }));
    await this.page.sessions.refresh(true);
  }

  async chooseModel(model) {
    if (await this.#first((session) => this.#api.change(session, { model }))) this.page.info.refresh();
  }

  async compact() {
    if (await this.#first((session) => this.#api.compact(session)))
      this.page.notices.say("The context is compacted before the next request.");
  }

  context() {
    const { view } = this.page.info;
    if (view?.context) showContext(view, () => this.compact());
  }

  /** Show the file changes of all turns. */
  async files() {
    const diff = await this.try(() => this.#api.changes(this.#session, "session"));
    if (diff) showChanges(diff, () => this.undo());
  }

  exportMarkdown() {
    const title = find("title").textContent;
    download(`${fileName(title)}.md`, "text/markdown", markdownOf(this.page.state, title));
  }

  exportJson() {
    const title = find("title").textContent;
    download(`${fileName(title)}.json`, "application/json", JSON.stringify(this.page.events, null, 1));
  }
}
