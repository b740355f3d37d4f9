// The settings of this browser, and what the gateway is set to.

import { open } from "./dialogs.js";
import { button, el } from "./dom.js";
import * as notifications from "./notifications.js";

const THEMES = { "": "Same as the system", light: "Light", dark: "Dark" };

/** Show them; `act.useKey()` asks for another key. */
export function showSettings(agent, act) {
  const theme = el(
    "select",
    { "aria-label": "Colours" },
    Object.entries(THEMES).map(([value, text]) => el("option", { value, text })),
  );
  theme.value = document.documentElement.dataset.theme ?? "";
  theme.addEventListener("change", () => {
    document.documentElement.dataset.theme = theme.value;
    if (theme.value) localStorage.setItem("halter.theme", theme.value);
    else localStorage.removeItem("halter.theme");
  });
  const notify = el("input", { type: "checkbox", id: "notify", checked: notifications.areOn() });
  const refused = el("p", { class: "note", hidden: true, text: "This browser does not allow notifications for this page." });
  notify.addEventListener("change", async () => {
    const wanted = notify.checked;
    notify.checked = await notifications.turn(wanted);
    refused.hidden = !wanted || notify.checked;
  });
  const close = open(
    [
      el("h2", { text: "Settings" }),
      el("div", { class: "setting" }, el("span", { text: "Colours" }), theme),
      el(
        "div",
        { class: "setting" },
        el("label", { for: "notify", text: "Notify me when a turn needs me or has finished" }),
        notify,
      ),
      refused,
      el("div", { class: "setting" }, el("span", { text: "Gateway key" }), button("Use another key", () => {
        close(null);
        act.useKey();
      }, { class: "small" })),
      ...agentOf(agent),
    ],
    [button("Close", () => close(null), { class: "main" })],
    () => {},
  );
}

function agentOf(agent) {
  if (!agent) return [];
  const rows = [
    ["Agent", agent.name],
    ["Model", [agent.model, ...agent.fallbacks.map((each) => `then ${each}`)].join(", ")],
    ["Sandbox", agent.sandbox || "not needed: no tool starts processes"],
    ["Approvals", agent.approve],
    ["Folder", agent.workspace || "none"],
    ["Tools", agent.tools.join(", ") || "none"],
  ];
  return [
    el("h3", { text: "This session" }),
    el("dl", {}, rows.flatMap(([name, value]) => [el("dt", { text: name }), el("dd", { text: value })])),
    el("p", { class: "note" }, "They are set in the settings file of the gateway: ", el("code", { text: "halter config show" }), "."),
  ];
}
