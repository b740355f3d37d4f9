// Dialogs. Escape closes each of them.

import { button, el } from "./dom.js";

/** Ask before something is lost; true if it is meant. */
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

const MOST_SHOWN = 40_000; // characters of a diff

/** Show the files that the last turn has changed, and ask what to do: "files", "keep", or null for nothing. */
export function askUndo(diff) {
  return new Promise((resolve) => {
    const files = diff.files.map(({ path, change, kept }) =>
      el("li", { text: `${path}: ${change}${kept ? ` (kept: ${kept})` : ""}` }),
    );
    const shown = diff.text.slice(0, MOST_SHOWN) + (diff.truncated || diff.text.length > MOST_SHOWN ? "\n…" : "");
    const close = open(
      [
        el("h2", { text: "Remove the last turn?" }),
        files.length ? el("p", { text: "It has changed these files:" }) : el("p", { text: "It has changed no files." }),
        files.length ? el("ul", { class: "files" }, ...files) : null,
        files.length ? el("pre", { class: "diff", tabindex: "0", text: shown }) : null,
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

/** Ask for a key of the gateway. */
export function askKey(wasRefused) {
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
      [button("Continue", give, { class: "main" })],
      resolve,
      { mustAnswer: true },
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

function open(content, buttons, done, { mustAnswer = false } = {}) {
  const dialog = el(
    "dialog",
    { "aria-label": content[0].textContent },
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
