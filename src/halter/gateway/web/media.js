// Images and recordings of messages and results. An event has only their addresses; each is fetched once, when it comes
// into view, and kept while its session is open.

import { el } from "./dom.js";

const IMAGES = /^image\/(png|jpeg|gif|webp)$/;
const SOUNDS = /^(audio\/[a-z0-9.+-]{1,40}|video\/(webm|mp4)|application\/ogg)$/;
const MARGIN = "300px"; // items this near to the visible part are fetched

const kept = new Map(); // from its address to the promise of one that the browser knows
let load = () => Promise.reject(new Error("nobody fetches"));
const sight = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) if (entry.isIntersecting) void show(entry.target);
  },
  { rootMargin: MARGIN },
);

/** Set how they are fetched: `fetch` returns the Blob at an address. */
export function fetchMediaBy(fetch) {
  load = fetch;
}

/** Release all. */
export function forgetMedia() {
  for (const address of kept.values()) address.then(URL.revokeObjectURL, () => {});
  kept.clear();
}

/** The parts other than text, as elements. An image on another host is only named. */
export function partsOf(parts) {
  return parts
    .filter((part) => part.type !== "text")
    .map((part) => {
      if (part.type === "image" && part.href && IMAGES.test(part.media_type))
        return awaited(el("img", { class: "picture", alt: "A picture" }), part);
      if (part.type === "audio" && part.href && SOUNDS.test(part.media_type))
        return awaited(el("audio", { controls: true }), part);
      return note(`${part.type}${part.url ? `: ${part.url}` : ""}`);
    });
}

function awaited(node, part) {
  node.dataset.href = part.href;
  sight.observe(node);
  return node;
}

async function show(node) {
  sight.unobserve(node);
  const { href } = node.dataset;
  if (!kept.has(href)) kept.set(href, load(href).then(URL.createObjectURL));
  try {
    node.src = await kept.get(href);
  } catch {
    kept.delete(href);
    node.replaceWith(note("it could not be fetched"));
  }
}

function note(text) {
  return el("p", { class: "note", text: `(${text})` });
}
