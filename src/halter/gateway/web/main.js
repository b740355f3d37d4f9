// The page: one session is open at a time. Events change its state, the state is drawn once per frame, and actions are
// sent to the gateway; their effects come back as events. Nothing is shown before the gateway has confirmed it.

import { Api, newId, Problem } from "./api.js";
import { Composer } from "./composer.js";
import { ConversationView } from "./conversation.js";
import { askKey, askUndo, confirmRemoval, showHelp } from "./dialogs.js";
import { find, icon } from "./dom.js";
import { keepKey, keptKey, takeKey } from "./key.js";
import { fetchMediaBy } from "./media.js";
import { Notices } from "./notices.js";
import { Outbox } from "./outbox.js";
import { QueueView } from "./queue.js";
import { nameOf, Sessions, SessionsView } from "./sessions.js";
import { listen } from "./shortcuts.js";
import { SessionDisplay } from "./session_view.js";
import { EventStream } from "./stream.js";
import { welcome } from "./welcome.js";
import { because, seconds } from "./text.js";

const UNSEEN = 500; // milliseconds between drawings in a tab that nobody sees
// Milliseconds until what others have done is seen in the list. It is asked for, and no stream: a browser has six
// connections to a gateway for all its tabs, and each has one for its session.
const ELSEWHERE = 10_000;
const AGAIN = 500; // milliseconds until a stop that was not heard is said again

class Page {
  #isDue = false; // something has changed that is not drawn yet
  #offset = 0; // seconds by which this clock is ahead of the gateway's

  constructor() {
    this.api = new Api(keptKey());
    this.api.onRefused = () => this.#askKey(true);
    fetchMediaBy((href) => this.api.media(href));
    this.state = new SessionDisplay();
    this.session = "";
    this.isNew = true;
    this.link = "idle";
    this.stopAsked = "";
    this.notices = new Notices(find("notices"));
    this.sessions = new Sessions(this.api, {
      onChange: () => this.schedule(),
      onNotice: (text) => this.notices.say(text, { stays: true }),
    });
    this.outbox = new Outbox(this.api, { onChange: () => this.schedule(), onMade: (session) => this.#made(session) });
    this.composer = new Composer({
      send: (...all) => this.send(...all),
      stop: () => this.stop(),
      complain: (text) => this.notices.say(text),
    });
    this.list = new SessionsView(find("list"), { onOpen: (id) => this.go(id), onRemove: (id) => this.remove(id) });
    const act = this.#acts();
    this.queue = new QueueView(find("queue"), act, () => this.schedule());
    this.view = new ConversationView({
      log: find("log"),
      turns: find("turns"),
      newest: find("newest"),
      act,
      clock: () => this.now(),
    });
  }

  async start() {
    this.#listen();
    await this.#useGivenKey();
    if (!this.api.key) await this.#askKey(false);
    this.outbox.restore();
    this.#follow();
    this.sessions.refresh();
  }

  now() {
    return Date.now() / 1000 - this.#offset;
  }

  // -- what people do -------------------------------------------------------------------------------------------------

  send(mode, text, audio) {
    const expect = mode !== "queue" ? this.state.running?.id : undefined;
    this.view.pin();
    const wasNew = this.isNew;
    this.outbox.add({ session: this.session, isNew: wasNew, id: newId(), text, mode, expect, audio });
    if (wasNew) this.#settle();
  }

  /** Stop what runs. What was not heard is said again, and then means this turn and no later one. */
  async stop() {
    const { session } = this;
    const turn = this.state.running;
    if (!turn) return;
    this.stopAsked = turn.id; // shown as being asked for, until the gateway says that it is
    this.schedule();
    for (let body = {}; this.stopAsked === turn.id; body = { expect_turn: turn.id }) {
      try {
        await this.api.stop(session, body);
        return;
      } catch (error) {
        if (error instanceof Problem) {
          this.stopAsked = "";
          this.notices.say(error.message);
          this.schedule();
        } else await new Promise((resolve) => setTimeout(resolve, AGAIN));
      }
    }
  }

  /** Stop what runs in all sessions. */
  async stopAll() {
    const done = await this.#try(() => this.api.stopAll());
    if (done) this.#say(`${done.stopped} stopped.`);
    await this.sessions.refresh(true);
  }

  /** Remove the last turn, after showing the files that it has changed. */
  async undo() {
    const { session } = this;
    const diff = await this.#try(() => this.api.changes(session));
    const choice = diff && (await askUndo(diff));
    if (!choice) return;
    const receipt = await this.#try(() => this.api.rollback(session, choice === "files"));
    if (receipt?.files) this.#sayFiles(receipt.files);
  }

  #sayFiles({ restored, kept, note }) {
    const names = Object.entries(kept).map(([path, why]) => `${path} (${why})`);
    this.#say(`${restored.length} files restored.`);
    if (names.length) this.notices.say(`Kept as they are: ${names.join(", ")}`);
    if (note) this.notices.say(note);
  }

  async remove(id) {
    const session = this.sessions.find(id);
    if (!session || !(await confirmRemoval(nameOf(session)))) return;
    if ((await this.#try(() => this.api.erase(id).then(() => true))) === undefined) return;
    if (id === this.session) this.go("");
    await this.sessions.refresh(true);
  }

  /** Open a session; none is a new one, which is made with its first message. */
  go(id) {
    const url = new URL(location.href);
    url.hash = id ? `session=${encodeURIComponent(id)}` : "";
    if (url.href !== location.href) history.pushState(null, "", url);
    this.#showSessions(false);
    this.#follow();
    this.composer.focus();
  }

  #acts() {
    const at =
      (fn) =>
      (...all) =>
        this.#try(() => fn(this.session, ...all));
    return {
      answer: at((session, id, value) => this.api.answer(session, id, value)),
      stopCall: at((session, item) =>
        this.api.stop(session, { scope: "call", call_id: item.id, expect_turn: item.turn }),
      ),
      edit: at((session, id, text) => this.api.edit(session, id, { text })),
      remove: at((session, id) => this.api.remove(session, id)),
      release: at((session, id) => this.api.edit(session, id, { state: "accepted" })),
      releaseAll: async () => {
        const held = [...this.state.queue.values()].filter((message) => message.state === "held");
        for (const message of held) await this.#try(() => this.api.edit(this.session, message.id, { state: "accepted" }));
      },
      undo: () => this.undo(),
      redo: at((session) => this.api.undoRollback(session).then((files) => this.#sayFiles(files))),
      sendAgain: (id) => this.outbox.retry(id),
      takeBack: (id) => {
        const entry = this.outbox.take(id);
        if (entry?.text) this.composer.put([find("text").value, entry.text].filter(Boolean).join("\n"));
        find("text").focus();
      },
    };
  }

  async #try(fn) {
    try {
      return await fn();
    } catch (error) {
      this.notices.say(error instanceof Problem ? error.message : "The gateway cannot be reached.");
      return undefined;
    }
  }

  // -- the open session -----------------------------------------------------------------------------------------------

  /** Follow the session that the address names. */
  #follow() {
    const named = new URLSearchParams(location.hash.slice(1)).get("session") ?? "";
    if (named && named === this.session && !this.isNew) return;
    this.stream?.close();
    this.stream = null;
    this.isNew = !named;
    this.session = named || newId();
    this.state = new SessionDisplay();
    this.view.open(this.state);
    this.queue.clear();
    this.composer.open(named);
    this.stopAsked = "";
    this.#say("");
    if (this.isNew) this.#linkIs("idle");
    else this.#stream();
    this.schedule();
  }

  /** The new session has its first message, and from now on a name. It is followed when the gateway has made it. */
  #settle() {
    this.isNew = false;
    const url = new URL(location.href);
    url.hash = `session=${this.session}`;
    history.replaceState(null, "", url);
    this.composer.open(this.session);
    this.#linkIs("joining");
  }

  #stream() {
    const { state, session } = this;
    const stream = new EventStream(this.api, session, {
      onEvents: (events) => {
        for (const event of events) state.apply(event);
        this.#heard(events, state);
      },
      onState: (link, detail) => {
        const isBeingMade = link === "gone" && this.outbox.of(session).some((entry) => entry.isNew);
        if (this.stream === stream && !isBeingMade) this.#linkIs(link, detail);
      },
      onClock: (time) => {
        const ahead = (Date.now() - time) / 1000;
        this.#offset = Math.abs(ahead) > 2.5 ? ahead : 0; // the header has whole seconds
      },
    });
    this.stream = stream;
    stream.run();
  }

  #made(session) {
    if (session === this.session) this.#stream();
    this.sessions.refresh(true);
  }

  #heard(events, state) {
    if (state !== this.state) return;
    this.schedule();
    const kinds = new Set(events.map((event) => event.data.type));
    if (this.link !== "live") return;
    if (kinds.has("turn.started")) this.#say("Running.");
    if (kinds.has("turn.finished") && !state.running) this.#announce(state.turns.at(-1));
    if (state.questions.size && (kinds.has("question.asked") || kinds.has("approval.asked")))
      this.#say("A question needs your answer.");
    if (["turn.started", "turn.finished", "session.created"].some((kind) => kinds.has(kind)))
      this.sessions.refresh(true);
  }

  #announce(turn) {
    const after = turn.after === null ? "" : ` Stopped in ${seconds(turn.after)}.`;
    this.#say(turn.status === "done" ? "Answer complete." : `${because(turn.reason)}.${after}`);
  }

  #say(text) {
    find("said").textContent = text;
  }

  #linkIs(link, detail) {
    this.link = link;
    const texts = {
      idle: "",
      joining: "Connecting",
      live: "",
      waiting: "Connection lost, trying again",
      gone: "This session was deleted",
      refused: detail ?? "Not allowed",
    };
    const node = find("link");
    node.dataset.state = link;
    node.textContent = texts[link];
    this.schedule();
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  /** Draw in the next frame; in a tab that nobody sees there are none, but its title tells how it stands. */
  schedule() {
    if (this.#isDue) return;
    this.#isDue = true;
    this.#drawSoon();
  }

  #drawSoon() {
    if (document.hidden) setTimeout(() => this.#draw(), UNSEEN);
    else requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    if (!this.#isDue) return;
    this.#isDue = false;
    const { state } = this;
    const turn = state.running;
    if (!turn || turn.id !== this.stopAsked) this.stopAsked = "";
    const isRunning = Boolean(turn);
    this.view.render();
    welcome(find("turns"), this.isNew || (this.link === "live" && !state.turns.length && !state.queue.size));
    this.queue.render(state, this.outbox.of(this.session));
    this.composer.update({
      isRunning,
      isStopping: Boolean(this.stopAsked || turn?.stopping),
      isAsked: [...state.questions.values()].some((item) => item.kind === "question"),
      isLost: this.link === "gone",
    });
    const title = state.title.replace(/\s+/g, " ").slice(0, 80);
    this.list.render(this.sessions.all, { id: this.session, isRunning, title });
    find("stop-all").hidden = !this.sessions.all.some((each) => each.id !== this.session && each.state === "running");
    this.#name(title || nameOf(this.sessions.find(this.session) ?? {}), isRunning);
  }

  #name(title, isRunning) {
    find("title").textContent = title;
    document.title = `${isRunning ? "● " : ""}${title === "New session" ? "Halter" : `${title} · Halter`}`;
  }

  /** Once in a second while something runs: the time it has taken so far. */
  #tick() {
    if (!this.state.running || document.hidden) return;
    for (const node of document.querySelectorAll("[data-since]")) {
      if (node.dataset.since)
        node.textContent = seconds(Math.max(0, Math.floor(this.now() - Number(node.dataset.since))));
    }
    this.view.tick();
  }

  // -- around it ------------------------------------------------------------------------------------------------------

  #listen() {
    find("new").prepend(icon("plus"));
    find("menu").append(icon("menu"));
    find("help").append(icon("help"));
    find("newest").prepend(icon("down"));
    find("new").addEventListener("click", () => this.go(""));
    find("stop-all").prepend(icon("stop"));
    find("stop-all").addEventListener("click", () => void this.stopAll());
    find("help").addEventListener("click", showHelp);
    find("menu").addEventListener("click", () => this.#showSessions(!document.body.classList.contains("aside")));
    find("shade").addEventListener("click", () => this.#showSessions(false));
    window.addEventListener("hashchange", () => {
      void this.#useGivenKey();
      this.#follow();
    });
    window.addEventListener("online", () => this.#wake());
    window.addEventListener("focus", () => this.#wake());
    document.addEventListener("visibilitychange", () => {
      if (this.#isDue) this.#drawSoon();
      if (!document.hidden) this.#wake();
    });
    setInterval(() => this.#tick(), 1000);
    setInterval(() => document.hidden || this.sessions.refresh(), ELSEWHERE);
    listen({
      stop: () => void this.stop(),
      help: () => showHelp(),
      write: () => find("text").focus(),
      newSession: () => this.go(""),
      timeline: () => this.view.toggleTimeline(),
      record: () => this.composer.toggleRecording(),
      question: () => document.querySelector(".ask button, .question[data-state=open] :is(button, input)")?.focus(),
      beside: (step) => {
        const id = this.list.beside(this.session, step);
        if (id) this.go(id);
      },
      escape: () => this.#escape(),
    });
  }

  #escape() {
    if (document.body.classList.contains("aside")) {
      this.#showSessions(false);
      return true;
    }
    if (find("text").value.trim()) {
      if (this.state.running) this.notices.say("Escape stops only if the message field is empty. Ctrl+. always stops.");
      return false;
    }
    this.stop();
    return Boolean(this.state.running);
  }

  #wake() {
    this.stream?.nudge();
    this.outbox.nudge();
    this.sessions.refresh();
  }

  #showSessions(shown) {
    document.body.classList.toggle("aside", shown);
    find("shade").hidden = !shown;
    find("menu").setAttribute("aria-expanded", String(shown));
    if (shown) find("new").focus();
  }

  /** Use the key in the address, unless it is wrong and another one is kept: any site may link here, with any key. */
  async #useGivenKey() {
    const given = takeKey();
    if (!given || given === this.api.key) return;
    if (this.api.key && !(await new Api(given).isAccepted())) {
      this.notices.say("The key in the address was not accepted. The one from before is still used.");
      return;
    }
    this.api.key = given;
    keepKey(given);
  }

  async #askKey(wasRefused) {
    if (this.isAskingKey) return;
    this.isAskingKey = true;
    this.stream?.close();
    this.api.key = await askKey(wasRefused);
    keepKey(this.api.key);
    this.isAskingKey = false;
    if (!wasRefused) return;
    if (!this.isNew) this.#stream();
    this.outbox.nudge();
    this.sessions.refresh();
  }
}

new Page().start();
