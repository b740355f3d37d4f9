// A diff on the screen: for each file its name, how many lines are added and removed, and the lines.

import { button, el } from "./dom.js";
import { countsOf } from "./diff.js";
import { grouped, visible } from "./text.js";

const MAX_LINES = 400; // lines of a file, until the user asks for the rest

/** The changes of files as elements; `whole` leaves nothing out. */
export function diffOf(files, { whole = false } = {}) {
  return files.map((file) => fileOf(file, whole ? Infinity : MAX_LINES));
}

/** "+3 −1", each in its colour. */
export function countsText(files) {
  const { added, removed } = countsOf(files);
  return el(
    "span",
    { class: "counts" },
    added ? el("span", { class: "added", text: `+${added}`, "aria-label": `${added} lines added` }) : null,
    removed ? el("span", { class: "removed", text: `−${removed}`, "aria-label": `${removed} lines removed` }) : null,
  );
}

function fileOf(file, most) {
  const kinds = { created: "new file", deleted: "deleted", written: "whole file", changed: "" };
  const lines = file.lines[0]?.mark === "@" && !file.lines[0].text ? file.lines.slice(1) : file.lines;
  const code = el("code", {}, lines.slice(0, most).map(lineOf));
  const node = el(
    "figure",
    { class: "diff", "aria-label": `Changes of ${file.path}` },
    el(
      "figcaption",
      {},
      el("span", { class: "path", text: visible(file.path) || "(no name)" }),
      kinds[file.change] ? el("span", { class: "change", text: kinds[file.change] }) : null,
      countsText([file]),
    ),
    el("pre", { tabindex: 0, "aria-label": `Lines of ${file.path}` }, code),
  );
  if (lines.length > most) {
    const more = button(
      `Show all ${grouped(lines.length)} lines`,
      () => {
        code.append(...lines.slice(most).map(lineOf));
        more.remove();
      },
      { class: "small more" },
    );
    node.append(more);
  }
  return node;
}

function lineOf({ mark, text, old, now }) {
  if (mark === "@") return el("span", { class: "hunk", text: text ? `⋯ ${visible(text)}\n` : "⋯\n" });
  const number = now ?? old;
  const tag = { "+": "ins", "-": "del", " ": "span" }[mark];
  return el(
    tag,
    {},
    el("span", { class: "number", "aria-hidden": "true", "data-number": number ?? "", "data-mark": mark }),
    `${visible(text)}\n`,
  );
}
