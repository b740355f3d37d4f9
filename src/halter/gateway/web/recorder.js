// A voice message from the microphone, in the best format that the browser can record.

const TYPES = ["audio/webm;codecs=opus", "audio/ogg;codecs=opus", "audio/mp4", "audio/webm"];
const MAX_SECONDS = 10 * 60; // seconds

export class Recorder {
  #stream = null;
  #media = null;
  #pieces = [];
  #sound = null;
  #frame = 0;

  /** `onLevel(level, seconds)` is called with the loudness, from 0 to 1; `onEnd()` when it has ended by itself. */
  constructor({ onLevel, onEnd }) {
    this.onLevel = onLevel;
    this.onEnd = onEnd;
    this.began = 0;
  }

  get isOn() {
    return this.#media !== null;
  }

  /** Begin. Throws an error with a message for the user if there is no microphone, or it is not allowed. */
  async start() {
    if (!navigator.mediaDevices || !window.MediaRecorder)
      throw new Error("This browser allows recording only over HTTPS or on localhost.");
    try {
      this.#stream = await navigator.mediaDevices.getUserMedia({
        audio: { echoCancellation: true, noiseSuppression: true },
      });
    } catch (error) {
      throw new Error(
        error.name === "NotAllowedError" ? "The microphone is not allowed for this page." : "No microphone was found.",
        { cause: error },
      );
    }
    const mimeType = TYPES.find((type) => MediaRecorder.isTypeSupported(type));
    const pieces = []; // of this recording: the last piece of one that was discarded may come after the next has begun
    this.#pieces = pieces;
    this.#media = new MediaRecorder(this.#stream, mimeType ? { mimeType } : {});
    this.#media.addEventListener("dataavailable", (event) => event.data.size && pieces.push(event.data));
    this.#stream.getAudioTracks()[0].addEventListener("ended", () => this.onEnd());
    this.#media.start(1000);
    this.began = performance.now();
    this.#listen();
  }

  /** End, and return the recording; null if there is none, or it is discarded meanwhile. */
  async finish() {
    const media = this.#media;
    if (!media) return null;
    const pieces = this.#pieces;
    if (media.state !== "inactive") {
      const ended = new Promise((resolve) => media.addEventListener("stop", resolve, { once: true }));
      media.stop();
      await ended;
    }
    if (this.#media !== media) return null;
    this.discard();
    return pieces.length ? new Blob(pieces, { type: media.mimeType.split(";")[0] }) : null;
  }

  discard() {
    cancelAnimationFrame(this.#frame);
    this.#sound?.close();
    this.#sound = null;
    if (this.#media && this.#media.state !== "inactive") this.#media.stop();
    this.#media = null;
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#stream = null;
  }

  #listen() {
    this.#sound = new AudioContext();
    const meter = this.#sound.createAnalyser();
    meter.fftSize = 512;
    this.#sound.createMediaStreamSource(this.#stream).connect(meter);
    const heard = new Uint8Array(meter.fftSize);
    const look = () => {
      meter.getByteTimeDomainData(heard);
      const loud = heard.reduce((most, each) => Math.max(most, Math.abs(each - 128)), 0) / 128;
      const passed = (performance.now() - this.began) / 1000;
      this.onLevel(loud, passed);
      if (passed > MAX_SECONDS) this.onEnd();
      else this.#frame = requestAnimationFrame(look);
    };
    look();
  }
}
