// Dialogs. Escape closes each of them.

import { readDiff } from "./diff.js";
import { countsText, diffOf } from "./diff_view.js";
import { button, el } from "./dom.js";
import { grouped, money, plural, tokens } from "./text.js";

/** Ask before a session is deleted; true if the user confirms. */
export function confirmRemoval(title) {
  return new Promise((resolve) => {
    const yes = button("Remove", () => close(true), { class: "danger" });
    const close = open(
      [
        el("h2", { text: "Remove this session?" }),
        el("p", { class: "subject", text: title }),
        el("p", { text: "The running turn is stopped and the conversation is deleted. This cannot be undone." }),
      ],
      [button("Cancel", () => close(false)), yes],
      resolve,
    );
  });
}

/** Show the files that the last turn has changed, and ask what to do: "files", "keep", or null for nothing. */
export function askUndo(diff) {
  return new Promise((resolve) => {
    const files = diff.files.map(({ path, change, kept }) =>
      el("li", { text: `${path}: ${change}${kept ? ` (kept: ${kept})` : ""}` }),
    );
    const close = open(
      [
        el("h2", { text: "Remove the last turn?" }),
        files.length ? el("p", { text: "It has changed these files:" }) : el("p", { text: "It has changed no files." }),
        files.length ? el("ul", { class: "files" }, ...files) : null,
        files.length ? diffBox(diff) : null,
        diff.note ? el("p", { class: "subject", text: diff.note }) : null,
      ],
      [
        button("Cancel", () => close(null)),
        button(files.length ? "Keep the files" : "Remove", () => close("keep"), files.length ? {} : { class: "danger" }),
        ...(files.length ? [button("Restore the files", () => close("files"), { class: "danger" })] : []),
      ],
      resolve,
    );
  });
}

/** The file changes; binary files have no lines. */
function diffBox(diff) {
  const files = readDiff(diff.text);
  const rest = diff.truncated ? el("p", { class: "note", text: "The diff is truncated." }) : null;
  return el("div", { class: "changes", tabindex: 0, role: "region", "aria-label": "Changes" }, ...diffOf(files), rest);
}

/** Show the file changes of a session; `undo()` removes its last turn. */
export function showChanges(diff, undo) {
  const count = diff.files.length;
  const close = open(
    [
      el("h2", { text: "Changed files" }),
      el("p", {}, count ? `${plural(count, "file")} ` : "This session has changed no files.", countsText(readDiff(diff.text))),
      count ? diffBox(diff) : null,
      diff.note ? el("p", { class: "subject", text: diff.note }) : null,
    ],
    [
      ...(count ? [button("Undo the last turn", () => (close(null), undo()))] : []),
      button("Close", () => close(null), { class: "main" }),
    ],
    () => {},
    { isWide: true },
  );
}

/** Show how full the context is; `compact()` makes room. */
export function showContext({ context, usage }, compact) {
  const share = context.window ? ` of ${grouped(context.window)}` : "";
  const cost = money(usage.cost);
  const rows = [
    ["Next request", `about ${grouped(context.tokens)}${share} tokens`],
    ["Session", `${tokens(usage.input_tokens)} in, ${tokens(usage.output_tokens)} out, ${tokens(usage.cached_tokens)} from a cache`],
    ["Cost", cost || (usage.cost === null ? "not known for this model" : "nothing")],
  ];
  const close = open(
    [
      el("h2", { text: "Context" }),
      el("dl", {}, rows.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })])),
      el("p", { text: "When it is nearly full, the older part of the conversation is summarised for the model. You keep all of it." }),
    ],
    [button("Compact now", () => (close(null), compact())), button("Close", () => close(null), { class: "main" })],
    () => {},
  );
}

/** Ask for another title; null if it stays. */
export function askTitle(title) {
  return new Promise((resolve) => {
    const field = el("input", { type: "text", maxlength: 200, "aria-label": "Title" });
    field.value = title;
    const give = () => field.value.trim() && close(field.value.trim());
    field.addEventListener("keydown", (event) => event.key === "Enter" && give());
    const close = open(
      [el("h2", { text: "Rename this session" }), field],
      [button("Cancel", () => close(null)), button("Rename", give, { class: "main" })],
      resolve,
    );
    field.select();
  });
}

/** Ask for a key of the gateway. */
export function askKey(wasRefused, { mayKeep = false } = {}) {
  return new Promise((resolve) => {
    const field = el("input", {
      type: "password",
      autocomplete: "off",
      "aria-label": "Key",
      placeholder: "hk_…",
      on: { keydown: (event) => event.key === "Enter" && give() },
    });
    const give = () => field.value.trim() && close(field.value.trim());
    const close = open(
      [
        el("h2", { text: wasRefused ? "This key was not accepted" : "Enter a key" }),
        el("p", { text: "The gateway prints an address with a key when it starts; `halter keys create NAME` creates more." }),
        field,
      ],
      [...(mayKeep ? [button("Cancel", () => close(null))] : []), button("Continue", give, { class: "main" })],
      resolve,
      { mustAnswer: !mayKeep },
    );
    field.focus();
  });
}

const SHORTCUTS = [
  ["Enter", "Send; steer while a turn runs"],
  ["Ctrl+Enter", "Queue: send when the turn ends"],
  ["Ctrl+Shift+Enter", "Stop and send"],
  ["Shift+Enter", "New line"],
  ["Esc", "Stop, if the field is empty"],
  ["Ctrl+.", "Stop"],
  ["Alt+R", "Record a voice message, or send it"],
  ["Alt+Q", "Go to the open question"],
  ["Alt+T", "Timeline of the latest turn"],
  ["Alt+N", "New session"],
  ["Alt+↑  Alt+↓", "Previous or next session"],
  ["Alt+K", "Search the sessions"],
  ["Alt+M", "Choose the model"],
  ["Alt+D", "Changed files"],
  ["Alt+S", "Settings"],
  ["/", "Go to the message"],
  ["?", "This help"],
];

/** What the keys do, and the three ways to send. */
export function showHelp() {
  const rows = SHORTCUTS.map(([keys, what]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, ...keys.split("  ").flatMap((each) => [el("kbd", { text: each }), " "])),
      el("td", { text: what }),
    ),
  );
  const close = open(
    [
      el("h2", { text: "While a turn runs" }),
      el(
        "dl",
        {},
        el("dt", { text: "Steer" }),
        el("dd", { text: "interrupts the running step; the turn continues with your message." }),
        el("dt", { text: "Queue" }),
        el("dd", { text: "sends the message when the turn ends." }),
        el("dt", { text: "Stop and send" }),
        el("dd", { text: "stops the turn and starts the next one with your message." }),
        el("dt", { text: "Stop" }),
        el("dd", { text: "stops the turn now and holds queued messages until you release them." }),
      ),
      el("h2", { text: "Keys" }),
      el("table", { class: "keys" }, el("tbody", {}, ...rows)),
    ],
    [button("Close", () => close(null), { class: "main" })],
    () => {},
  );
}

/** Make a window of these elements, with buttons below; returns what closes it. */
export function open(content, buttons, done, { mustAnswer = false, isWide = false } = {}) {
  const dialog = el(
    "dialog",
    { "aria-label": content[0].textContent, class: isWide ? "wide" : null },
    ...content,
    el("div", { class: "row" }, ...buttons),
  );
  const close = (value) => {
    dialog.close();
    dialog.remove();
    done(value);
  };
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    if (!mustAnswer) close(null);
  });
  document.body.append(dialog);
  dialog.showModal();
  return close;
}
