// The status below the field: the model, how full its context is, tokens and cost of the session, the sandbox
// and who approves.

import { button, el, find } from "./dom.js";
import { grouped, money, tokens } from "./text.js";

const NEARLY_FULL = 0.7;
const APPROVALS = {
  ask: ["asks you", "Calls that may change something ask you first"],
  auto: ["auto", "Calls that stay in the sandbox run without asking; others ask you"],
  deny: ["denies", "Calls that need approval are denied"],
  unattended: ["sandbox only", "What stays in the sandbox runs; the rest is denied"],
  function: ["program", "The program that created the agent decides"],
};
const SANDBOXES = {
  workspace: ["workspace", "Commands may write only in the workspace"],
  "read-only": ["read-only", "Commands may write nothing"],
  off: ["no sandbox", "Commands may do whatever your user may"],
};

export class StatusView {
  #shown = "";

  /** `act.model(name)`, `act.agent(name)`, `act.context()`. */
  constructor(act) {
    this.node = find("status");
    this.agent = el("select", { id: "agent", "aria-label": "Agent", title: "Agent of the new session", hidden: true });
    this.model = el("select", { id: "model", "aria-label": "Model", title: "Model ( Alt+M )" });
    this.agent.addEventListener("change", () => act.agent(this.agent.value));
    this.model.addEventListener("change", () => act.model(this.model.value));
    this.fill = el("span", { class: "fill" });
    this.percent = el("span");
    this.meter = button("", () => act.context(), { class: "small quiet meter", id: "context", hidden: true });
    this.bar = el("span", { class: "bar", "aria-hidden": "true" }, this.fill);
    this.meter.append(this.bar, this.percent);
    this.usage = el("span", { class: "usage", title: "Tokens and cost of this session" });
    this.sandbox = el("span", { class: "badge" });
    this.approve = el("span", { class: "badge" });
    this.node.append(this.agent, this.model, this.meter, this.usage, el("span", { class: "gap" }), this.sandbox, this.approve);
  }

  /** `info` is a SessionInfo; `usage` that of the session; `chosen` what was picked for a session that is not made yet. */
  render(info, usage, isNew, chosen) {
    const agent = info.agent(chosen.agent);
    const model = info.view?.model || chosen.model || agent?.model || "";
    const context = info.view?.context ?? null;
    const said = JSON.stringify([model, context, usage, isNew, agent, info.models, info.agents.length]);
    if (said === this.#shown) return;
    this.#shown = said;
    this.node.toggleAttribute("data-empty", !agent);
    if (!agent) return;
    options(this.agent, isNew && info.agents.length > 1 ? info.agents.map((each) => each.name) : [], agent.name);
    options(this.model, [...new Set([model, ...info.models])], model);
    this.#showContext(context);
    this.usage.textContent = usage.tokens ? [`${tokens(usage.tokens)} tokens`, money(usage.cost)].filter(Boolean).join(" · ") : "";
    label(this.sandbox, SANDBOXES[agent.sandbox] ?? ["", ""]);
    label(this.approve, APPROVALS[agent.approve] ?? ["", ""]);
    this.sandbox.classList.toggle("warn", agent.sandbox === "off");
  }

  #showContext(context) {
    this.meter.hidden = !context;
    if (!context) return;
    const part = context.window ? Math.min(1, context.tokens / context.window) : null;
    this.bar.hidden = part === null;
    this.fill.style.transform = `scaleX(${part ?? 0})`;
    this.meter.classList.toggle("high", part !== null && part >= NEARLY_FULL);
    this.percent.textContent = part === null ? `${tokens(context.tokens)} in context` : `${Math.round(part * 100)} %`;
    const whole = context.window ? ` of ${grouped(context.window)}` : "";
    this.meter.title = `Context: about ${grouped(context.tokens)}${whole} tokens`;
    this.meter.setAttribute("aria-label", `${this.percent.textContent}. ${this.meter.title}`);
  }
}

function options(select, names, chosen) {
  select.hidden = !names.length;
  select.disabled = names.length < 2;
  // Only if they differ: replacing the options of an open list loses the highlighted one.
  if ([...select.options].map((each) => each.value).join("\n") !== names.join("\n"))
    select.replaceChildren(...names.map((name) => el("option", { value: name, text: name })));
  select.value = chosen;
}

function label(node, [text, title]) {
  Object.assign(node, { textContent: text, title, hidden: !text });
}
