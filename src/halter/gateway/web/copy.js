// A button that copies a text. There is no clipboard over plain http from another machine; then there is no button.

import { button, el, icon } from "./dom.js";

const SHOWN = 1_500; // milliseconds for which it says that it has copied

/** `text()` is what is copied. Without a label, its picture says that it has. */
export function copyButton(text, { label = "Copy", ...options } = {}) {
  const show = (shape, word) => copy.replaceChildren(icon(shape), ...(label ? [el("span", { text: word })] : []));
  const copy = button(
    label,
    async () => {
      await navigator.clipboard.writeText(text());
      show("check", "Copied");
      setTimeout(() => show("copy", label), SHOWN);
    },
    { class: "small quiet copy", icon: "copy", hidden: !navigator.clipboard, ...options },
  );
  return copy;
}
