// A button that copies a text. Browsers have no clipboard over plain http from another machine; then it is hidden.

import { button, el, icon } from "./dom.js";

const SHOWN_FOR = 1_500; // milliseconds for which it says that it has copied

/** `text()` returns what is copied. Without a label, the icon alone confirms it. */
export function copyButton(text, { label = "Copy", ...options } = {}) {
  const show = (shape, word) => copy.replaceChildren(icon(shape), ...(label ? [el("span", { text: word })] : []));
  const copy = button(
    label,
    async () => {
      await navigator.clipboard.writeText(text());
      show("check", "Copied");
      setTimeout(() => show("copy", label), SHOWN_FOR);
    },
    { class: "small quiet copy", icon: "copy", hidden: !navigator.clipboard, ...options },
  );
  return copy;
}
