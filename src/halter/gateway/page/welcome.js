// What is shown where nothing has been said yet.

import { el } from "./dom.js";

/** Show it, or take it away. */
export function welcome(turns, isShown) {
  const shown = turns.querySelector(".welcome");
  if (Boolean(shown) === isShown) return;
  if (shown) shown.remove();
  else turns.append(make());
}

function make() {
  const ways = [
    ["Steer", "Breaks off the running step. The turn goes on with what you said."],
    ["Queue", "Waits its turn. Edit or remove it until then."],
    ["Stop and send", "Ends the turn. Your words begin the next."],
  ];
  return el(
    "section",
    { class: "welcome" },
    el("img", { src: "/page/icon.svg", alt: "", width: 56, height: 56 }),
    el("h2", { text: "What shall we do?" }),
    el("p", { text: "Say it, and change your mind at any time: it stops when you say stop, and nothing is lost." }),
    el("dl", {}, ...ways.map(([name, what]) => el("div", {}, el("dt", { text: name }), el("dd", { text: what })))),
  );
}
