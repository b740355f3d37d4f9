// Pictures and sounds of messages and results. They come within the events: nothing is fetched.

import { el } from "./dom.js";

const SHOWN = /^image\/(png|jpeg|gif|webp)$/;
const HEARD = /^(audio\/[a-z0-9.+-]{1,40}|video\/(webm|mp4)|application\/ogg)$/;

/** The parts that are no text, as elements. A picture that is somewhere else is only named. */
export function partsOf(parts) {
  return parts
    .filter((part) => part.type !== "text")
    .map((part) => {
      if (part.type === "image" && part.data && SHOWN.test(part.media_type)) {
        return el("img", {
          class: "picture",
          alt: "A picture",
          src: `data:${part.media_type};base64,${part.data}`,
          loading: "lazy",
        });
      }
      if (part.type === "audio" && part.data && HEARD.test(part.media_type)) {
        return el("audio", { controls: true, preload: "none", src: `data:${part.media_type};base64,${part.data}` });
      }
      return el("p", { class: "note", text: `(${part.type}${part.url ? `: ${part.url}` : ""})` });
    });
}
