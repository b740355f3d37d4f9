// The field for messages, typed or spoken. While a turn runs there are three ways to send, and Stop; else there is one.
//
// What is written is kept for each session, over a reload too, until it was sent. Escape stops only from an empty
// field, so that a stop while typing is no accident.

import { Attachments } from "./attachments.js";
import { find, icon } from "./dom.js";
import { Recorder } from "./recorder.js";
import { clock } from "./text.js";

const MAX_HEIGHT = 220; // pixels
const DRAFT_KEY = "halter.draft.";

export class Composer {
  #session = "";
  #isRunning = false;
  #isAskingForMicrophone = false;
  #recording = null; // from its start until it is sent or discarded: `ended`, a promise, and then its `audio`

  /** `act.send(mode, text, audio, images)`, `act.stop()`, `act.complain(text)`. */
  constructor(act) {
    this.act = act;
    this.text = find("text");
    this.recorder = new Recorder({ onLevel: (level, passed) => this.#showLevel(level, passed), onEnd: () => this.#pause() });
    this.attached = new Attachments({
      complain: (text) => act.complain(text),
      onChange: () => this.#ready(),
      readPdf: (file) => act.readPdf(file),
    });
    const ways = { send: "queue", steer: "steer", wait: "queue", interrupt: "interrupt" };
    for (const [id, mode] of Object.entries(ways)) find(id).addEventListener("click", () => this.send(mode));
    find("send").prepend(icon("send"));
    find("stop").prepend(icon("stop"));
    find("mic").append(icon("mic"));
    find("stop").addEventListener("click", () => act.stop());
    find("mic").addEventListener("click", () => this.toggleRecording());
    find("discard").addEventListener("click", () => this.#endRecording());
    this.text.addEventListener("input", () => this.#changed());
    this.text.addEventListener("keydown", (event) => this.#key(event));
  }

  /** Show the draft of a session. */
  open(session) {
    this.#session = session;
    this.text.value = sessionStorage.getItem(DRAFT_KEY + session) ?? "";
    this.#changed();
  }

  /** Show what can be done now. */
  update({ isRunning, isStopping, isAsked, isLost }) {
    this.#isRunning = isRunning;
    const { dataset } = find("composer");
    dataset.state = isRunning ? "running" : "idle";
    const { activeElement } = document;
    for (const id of ["steer", "wait", "interrupt", "stop"]) find(id).hidden = !isRunning;
    find("send").hidden = isRunning;
    if (activeElement?.hidden) this.focus(); // a button that goes away takes the focus with it
    find("stop").lastElementChild.textContent = isStopping ? "Stopping…" : "Stop";
    find("stop").toggleAttribute("data-busy", isStopping);
    this.text.placeholder = isAsked
      ? "Answer the question"
      : isRunning
        ? "Message the running turn"
        : "Message";
    this.text.disabled = isLost;
    this.#ready();
  }

  /** Send what is written or was said. */
  async send(mode) {
    const session = this.#session;
    while (this.attached.reading) await this.attached.reading;
    const recording = this.#recording;
    if (recording) await this.#finish(recording);
    if (session !== this.#session) return; // it is kept there as a draft
    if (recording !== this.#recording) return; // sent by the press before this one, or discarded
    const isVoice = recording !== null;
    const audio = recording?.audio;
    const text = this.text.value;
    if (isVoice) this.#endRecording();
    if (isVoice && !audio) this.act.complain("Nothing was recorded.");
    if (!audio && (isVoice || (!text.trim() && this.attached.isEmpty))) return;
    const { text: whole, images } = this.attached.take(text.trim() ? text : "");
    this.put("");
    this.act.send(mode, whole, audio, images);
    if (isVoice) this.focus();
    else this.text.focus();
  }

  /** Go to the field; not on a phone, where that would open the keyboard. */
  focus() {
    if (matchMedia("(hover: hover)").matches) this.text.focus({ preventScroll: true });
  }

  /** Write something into the field. */
  put(text) {
    this.text.value = text;
    this.#changed();
  }

  /** Write something behind what is in the field. */
  append(text) {
    this.put([this.text.value, text].filter(Boolean).join("\n"));
  }

  async toggleRecording() {
    if (this.#isAskingForMicrophone) return;
    if (this.#recording) {
      await this.send(this.#isRunning ? "steer" : "queue");
      return;
    }
    this.#isAskingForMicrophone = true;
    this.#ready();
    try {
      await this.recorder.start();
      this.#recording = { ended: null, audio: null };
    } catch (error) {
      this.act.complain(error.message);
      return;
    } finally {
      this.#isAskingForMicrophone = false;
      this.#ready();
    }
    find("recording").hidden = false;
    find("mic").setAttribute("aria-pressed", "true");
    find("mic").setAttribute("aria-label", "Send the voice message");
    this.#ready();
  }

  /** The recording has ended by itself; it can still be sent or discarded. */
  async #pause() {
    if (this.#recording) await this.#finish(this.#recording);
    this.#showLevel(0, 0);
  }

  /** End the recorder, once: whoever asks again waits for the same end. */
  #finish(recording) {
    recording.ended ??= this.recorder.finish().then((audio) => {
      recording.audio = audio;
    });
    return recording.ended;
  }

  #endRecording() {
    this.recorder.discard();
    this.#recording = null;
    find("recording").hidden = true;
    find("recorded").textContent = clock(0);
    find("mic").setAttribute("aria-pressed", "false");
    find("mic").setAttribute("aria-label", "Record a voice message");
    this.#ready();
  }

  #showLevel(level, passed) {
    find("level").firstElementChild.style.transform = `scaleX(${Math.min(1, level * 1.6)})`;
    if (passed) find("recorded").textContent = clock(passed);
  }

  #key(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey)
      this.#enter(event, this.#isRunning ? "steer" : "queue");
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey))
      this.#enter(event, event.shiftKey ? "interrupt" : "queue");
  }

  #enter(event, mode) {
    event.preventDefault();
    this.send(mode);
  }

  #changed() {
    if (this.text.value) sessionStorage.setItem(DRAFT_KEY + this.#session, this.text.value);
    else sessionStorage.removeItem(DRAFT_KEY + this.#session);
    this.text.style.height = "auto";
    this.text.style.height = `${Math.min(MAX_HEIGHT, this.text.scrollHeight)}px`;
    this.#ready();
  }

  #ready() {
    const isEmpty = !this.text.value.trim() && !this.#recording && this.attached?.isEmpty !== false;
    for (const id of ["send", "steer", "wait", "interrupt"]) find(id).disabled = isEmpty || this.text.disabled;
    find("attach").disabled = this.text.disabled;
    find("mic").disabled = this.text.disabled || this.#isAskingForMicrophone;
    find("hint").textContent = !this.#isRunning || isEmpty ? "" : "Enter steers";
  }
}
