// What an empty session shows.

import { el } from "./dom.js";

/** Show or hide it. `agent` is the session's agent, or null until it is known. */
export function welcome(turns, isShown, agent) {
  const shown = turns.querySelector(".welcome");
  if (shown && !isShown) shown.remove();
  if (!isShown) return;
  const section = shown ?? turns.appendChild(make());
  const where = section.querySelector(".where");
  const text = agent ? told(agent) : "";
  if (where.textContent !== text) where.textContent = text;
}

/** Which tools the agent has, and where they work. */
function told({ tools, workspace }) {
  if (!tools.length) return "This agent has no tools: it answers from what it knows.";
  return `Tools${workspace ? ` in ${workspace}` : ""}: ${tools.join(", ")}`;
}

function make() {
  const ways = [
    ["Steer", "Interrupts the running step; the turn continues with your message."],
    ["Queue", "Sends the message when the turn ends. You can edit or remove it until then."],
    ["Stop and send", "Stops the turn and starts the next one with your message."],
  ];
  return el(
    "section",
    { class: "welcome" },
    el("img", { src: "/page/icon.svg", alt: "", width: 56, height: 56 }),
    el("h2", { text: "What can I do for you?" }),
    el("p", { text: "Change your mind at any time: it stops when you say stop, and nothing is lost." }),
    el("dl", {}, ...ways.map(([name, what]) => el("div", {}, el("dt", { text: name }), el("dd", { text: what })))),
    el("p", { class: "where" }),
  );
}
