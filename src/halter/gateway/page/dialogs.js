// The few things that are asked or told in a window of their own. Escape closes each of them.

import { button, el } from "./dom.js";

/** Ask before something is lost; true if it is meant. */
export function confirmRemoval(title) {
  return new Promise((resolve) => {
    const yes = button("Remove", () => close(true), { class: "danger" });
    const close = open(
      [
        el("h2", { text: "Remove this session?" }),
        el("p", { class: "subject", text: title }),
        el("p", { text: "What runs in it is stopped, and the conversation is erased. This can not be undone." }),
      ],
      [button("Keep it", () => close(false)), yes],
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
        el("h2", { text: wasRefused ? "This key is not taken" : "A key is needed" }),
        el("p", { text: "The gateway prints an address with a key when it starts; `halter keys` makes more." }),
        field,
      ],
      [button("Go on", give, { class: "main" })],
      resolve,
      { mustAnswer: true },
    );
    field.focus();
  });
}

const SHORTCUTS = [
  ["Enter", "Send; while it works: steer"],
  ["Ctrl+Enter", "Queue: next, when this turn is done"],
  ["Ctrl+Shift+Enter", "Stop and send"],
  ["Shift+Enter", "A new line"],
  ["Esc", "Stop, if nothing is written"],
  ["Ctrl+.", "Stop, wherever you are"],
  ["Alt+R", "Record a voice message, or send it"],
  ["Alt+Q", "Go to the open question"],
  ["Alt+T", "Timeline of the latest turn"],
  ["Alt+N", "New session"],
  ["Alt+↑  Alt+↓", "The session above or below"],
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
      el("h2", { text: "While it works" }),
      el(
        "dl",
        {},
        el("dt", { text: "Steer" }),
        el("dd", { text: "breaks off the running step; the turn goes on with your words." }),
        el("dt", { text: "Queue" }),
        el("dd", { text: "waits until the turn is done." }),
        el("dt", { text: "Stop and send" }),
        el("dd", { text: "ends the turn; your words start the next one." }),
        el("dt", { text: "Stop" }),
        el("dd", { text: "ends the turn now, and holds what waits until you release it." }),
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
