// The page: one session is open at a time. Events change its state, the state is drawn once per frame, and actions are
// sent to the gateway; their effects come back as events. Nothing is shown before the gateway has confirmed it.

import { Actions } from "./actions.js";
import { Api, newId, Problem } from "./api.js";
import { Composer } from "./composer.js";
import { ConversationView } from "./conversation.js";
import { connectControls, showSessions } from "./controls.js";
import { confirmRemoval } from "./dialogs.js";
import { find } from "./dom.js";
import { Keys, keptKey } from "./keys.js";
import { fetchMediaBy } from "./media.js";
import { Notices } from "./notices.js";
import { notify } from "./notifications.js";
import { Outbox } from "./outbox.js";
import { QueueView } from "./queue.js";
import { SessionInfo } from "./session_info.js";
import { nameOf, Sessions, SessionsView } from "./sessions.js";
import { SessionDisplay } from "./session_view.js";
import { StatusView } from "./status.js";
import { EventStream } from "./stream.js";
import { welcome } from "./welcome.js";
import { because, seconds } from "./text.js";

const LOADING_INTERVAL = 1_000; // milliseconds between drawings while the events of a long session come
const HIDDEN_INTERVAL = 500; // milliseconds between drawings in a hidden tab
// Milliseconds between updates of the list, for changes by others. Not a stream: a browser has six connections to a
// gateway for all its tabs, and each tab needs one for its session.
const LIST_INTERVAL = 10_000;
const CHANGING_LIST = [
  "turn.started",
  "turn.finished",
  "session.created",
  "session.changed",
  "approval.asked",
  "approval.answered",
  "question.asked",
  "question.answered",
];
const MAX_NEWS_AGE = 10; // seconds; older events cause no notification
const STOP_RETRY = 500; // milliseconds until a stop that did not arrive is sent again

class Page {
  #needsDrawing = false; // something has changed that is not drawn yet
  #loading = null; // a timer, while the events of a session come
  #newKinds = new Set(); // kinds of events since the last announcement
  #offset = 0; // seconds by which this clock is ahead of the gateway's

  constructor() {
    this.api = new Api(keptKey());
    fetchMediaBy((href) => this.api.media(href));
    this.state = new SessionDisplay();
    this.session = "";
    this.isNew = true;
    this.link = "idle";
    this.stopAsked = "";
    this.notices = new Notices(find("notices"));
    this.keys = new Keys(this.api, {
      onRefused: () => this.stream?.close(),
      onChange: () => this.#useNewKey(),
      onNotice: (text) => this.notices.say(text),
    });
    this.sessions = new Sessions(this.api, {
      onChange: () => this.schedule(),
      onNotice: (text) => this.notices.say(text, { stays: true }),
    });
    this.outbox = new Outbox(this.api, { onChange: () => this.schedule(), onMade: (session) => this.#made(session) });
    this.composer = new Composer({
      send: (...all) => this.send(...all),
      stop: () => this.stop(),
      complain: (text) => this.notices.say(text),
      readPdf: (file) => this.api.pdf(file),
    });
    this.list = new SessionsView(find("list"), { onOpen: (id) => this.go(id), onRemove: (id) => this.remove(id) });
    const act = new Actions(this);
    this.act = act;
    this.info = new SessionInfo(this.api, () => this.schedule());
    this.chosen = { agent: "", model: "" }; // for a session that is not made yet
    this.status = new StatusView({
      agent: (agent) => this.#choose({ agent, model: "" }),
      model: (model) => (this.isNew ? this.#choose({ ...this.chosen, model }) : act.chooseModel(model)),
      context: () => act.context(),
    });
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
    connectControls(this);
    this.#watch();
    await this.keys.useGiven();
    if (!this.api.key) await this.keys.ask();
    document.body.classList.remove("locked");
    this.outbox.restore();
    this.#follow();
    this.composer.focus();
    this.sessions.refresh();
    this.info.load();
  }

  now() {
    return Date.now() / 1000 - this.#offset;
  }

  // -- actions --------------------------------------------------------------------------------------------------------

  send(mode, text, audio, images) {
    const expect = mode !== "queue" ? this.state.running?.id : undefined;
    this.view.pin();
    const wasNew = this.isNew;
    const { agent, model } = wasNew ? this.chosen : {};
    this.outbox.add({ session: this.session, isNew: wasNew, agent, model, id: newId(), text, mode, expect, audio, images });
    if (wasNew) this.#settle();
  }

  /** Stop what runs. A stop that did not arrive is sent again, and then means this turn and no later one. */
  async stop() {
    const { session, state } = this;
    const turn = state.running;
    if (!turn) return;
    this.stopAsked = turn.id; // shown as being asked for, until the gateway says that it is
    this.schedule();
    // Also if another session is opened meanwhile: this one's state is not updated then, and the gateway knows better.
    for (let body = {}; state.running?.id === turn.id; body = { expect_turn: turn.id }) {
      try {
        await this.api.stop(session, body);
        return;
      } catch (error) {
        if (error instanceof Problem) {
          if (state !== this.state) return;
          this.stopAsked = "";
          this.notices.say(error.message);
          this.schedule();
          return;
        }
        await new Promise((resolve) => setTimeout(resolve, STOP_RETRY));
      }
    }
  }

  /** Stop what runs in all sessions. */
  async stopAll() {
    const done = await this.act.try(() => this.api.stopAll());
    if (done) this.say(`${done.stopped} stopped.`);
    await this.sessions.refresh(true);
  }

  async remove(id) {
    const session = this.sessions.find(id);
    if (!session || !(await confirmRemoval(nameOf(session)))) return;
    if ((await this.act.try(() => this.api.erase(id).then(() => true))) === undefined) return;
    if (id === this.session) this.go("");
    await this.sessions.refresh(true);
  }

  /** Open a session; none is a new one, which is made with its first message. */
  go(id) {
    const url = new URL(location.href);
    url.hash = id ? `session=${encodeURIComponent(id)}` : "";
    if (url.href !== location.href) history.pushState(null, "", url);
    showSessions(false);
    this.#follow();
    this.composer.focus();
  }

  #choose(chosen) {
    this.chosen = chosen;
    this.schedule();
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
    this.events = []; // as they came, for an export
    this.info.open(named);
    this.chosen = { agent: "", model: "" };
    this.view.open(this.state);
    this.queue.clear();
    this.composer.open(named);
    this.stopAsked = "";
    this.#newKinds.clear();
    this.say("");
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
    this.stream?.close();
    const { state, session } = this;
    const stream = new EventStream(this.api, session, {
      onEvents: (events) => {
        for (const event of events) state.apply(event);
        this.#onEvents(events, state);
      },
      onState: (link, detail) => {
        const isBeingMade = link === "gone" && this.outbox.of(session).some((entry) => entry.isNew);
        if (this.stream !== stream || isBeingMade) return;
        this.#linkIs(link, detail);
        if (link === "live") this.#announceNews();
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
    if (session === this.session) {
      this.info.open(session);
      this.#stream();
    }
    this.sessions.refresh(true);
  }

  #onEvents(events, state) {
    if (state !== this.state) return;
    for (const event of events) {
      if (event.seq === 1) this.events = []; // the log comes again from its start, as with another key
      this.events.push(event);
      this.#newKinds.add(event.data.type);
    }
    if (this.link === "live") {
      this.schedule();
      this.#announceNews();
    } else this.#loading ??= setTimeout(() => this.#drawLoaded(), LOADING_INTERVAL);
  }

  /** Announce what has happened since the last time. */
  #announceNews() {
    if (!this.#newKinds.size) return;
    const { state } = this;
    const kinds = this.#newKinds;
    this.#newKinds = new Set();
    this.info.heard([...kinds]);
    const isNew = this.now() - this.events.at(-1).time < MAX_NEWS_AGE; // else it is what happened before the page was opened
    if (kinds.has("turn.started")) this.say("Running.");
    if (kinds.has("turn.finished") && !state.running) this.#announce(state.turns.at(-1), isNew);
    if (state.questions.size && (kinds.has("question.asked") || kinds.has("approval.asked"))) {
      this.say("A question needs your answer.");
      if (isNew) notify(this.session, "Halter needs you", state.title.slice(0, 100));
    }
    if (CHANGING_LIST.some((kind) => kinds.has(kind)))
      this.sessions.refresh(true);
  }

  #announce(turn, isNew) {
    const after = turn.after === null ? "" : ` Stopped in ${seconds(turn.after)}.`;
    const told = turn.status === "done" ? "Answer complete." : `${because(turn.reason)}.${after}`;
    this.say(told);
    if (isNew) notify(this.session, told, this.state.title.slice(0, 100));
  }

  say(text) {
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
    clearTimeout(this.#loading);
    this.#loading = null;
    this.schedule();
  }

  // -- drawing --------------------------------------------------------------------------------------------------------

  /** Draw what has arrived so far of a long session. */
  #drawLoaded() {
    this.#loading = null;
    this.schedule();
  }

  /** Draw in the next frame; a hidden tab has none, but its title shows the state. */
  schedule() {
    if (this.#needsDrawing) return;
    this.#needsDrawing = true;
    this.#drawSoon();
  }

  #drawSoon() {
    if (document.hidden) setTimeout(() => this.#draw(), HIDDEN_INTERVAL);
    else requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    if (!this.#needsDrawing) return;
    this.#needsDrawing = false;
    const { state } = this;
    const turn = state.running;
    if (!turn || turn.id !== this.stopAsked) this.stopAsked = "";
    const isRunning = Boolean(turn);
    if (!this.#loading) this.view.render();
    const isEmpty = this.isNew || (this.link === "live" && !state.turns.length && !state.queue.size);
    welcome(find("turns"), isEmpty, this.info.agent(this.chosen.agent));
    this.queue.render(state, this.outbox.of(this.session));
    this.composer.update({
      isRunning,
      isStopping: Boolean(this.stopAsked || turn?.stopping),
      isAsked: [...state.questions.values()].some((item) => item.kind === "question"),
      isLost: this.link === "gone",
    });
    const title = state.title.replace(/\s+/g, " ").slice(0, 80);
    this.status.render(this.info, state.usage, this.isNew, this.chosen);
    find("more").hidden = this.isNew;
    this.list.render(this.sessions.shown, { id: this.session, state: state.state, title }, this.sessions.found);
    find("stop-all").hidden = !this.sessions.all.some((each) => each.id !== this.session && each.state === "running");
    this.#name(title || nameOf(this.sessions.find(this.session) ?? {}), state.state);
  }

  #name(title, state) {
    find("title").textContent = title;
    const others = this.sessions.all.filter((each) => each.id !== this.session && each.questions).length;
    const mark = state === "needs you" || others ? "(!) " : state === "idle" ? "" : "● ";
    document.title = `${mark}${title === "New session" ? "Halter" : `${title} · Halter`}`;
  }

  /** Update the elapsed times, once per second while something runs. */
  #tick() {
    if (!this.state.running || document.hidden) return;
    for (const node of document.querySelectorAll("[data-since]")) {
      if (node.dataset.since)
        node.textContent = seconds(Math.max(0, Math.floor(this.now() - Number(node.dataset.since))));
    }
    this.view.tick();
  }

  // -- window events --------------------------------------------------------------------------------------------------

  /** Listen to events of the window. */
  #watch() {
    window.addEventListener("hashchange", () => {
      void this.keys.useGiven();
      this.#follow();
    });
    window.addEventListener("online", () => this.#wake());
    window.addEventListener("focus", () => this.#wake());
    document.addEventListener("visibilitychange", () => {
      if (this.#needsDrawing) this.#drawSoon();
      if (!document.hidden) this.#wake();
    });
    setInterval(() => this.#tick(), 1000);
    setInterval(() => document.hidden || this.sessions.refresh(), LIST_INTERVAL);
  }

  #wake() {
    this.stream?.nudge();
    this.outbox.nudge();
    this.sessions.refresh();
  }

  /** Reload everything with another key. */
  #useNewKey() {
    this.info.load();
    if (!this.isNew) this.#stream();
    this.outbox.nudge();
    this.sessions.refresh();
  }
}

new Page().start();
