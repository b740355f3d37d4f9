// The buttons around the conversation, and the keys that do the same.

import { showHelp } from "./dialogs.js";
import { find, icon } from "./dom.js";
import { makeMenu } from "./session_menu.js";
import { showSettings } from "./settings.js";
import { listen } from "./shortcuts.js";

const ICONS = { new: "plus", menu: "menu", help: "help", settings: "settings", newest: "down", "stop-all": "stop" };

/** Connect them to the page. */
export function connectControls(page) {
  for (const [id, name] of Object.entries(ICONS)) find(id).prepend(icon(name));
  const { act } = page;
  const settings = () => showSettings(page.info.agent(page.chosen.agent), { useKey: () => page.keys.change() });
  makeMenu({
    rename: () => act.rename(),
    files: () => act.files(),
    branch: () => act.branch(),
    compact: () => act.compact(),
    exportMarkdown: () => act.exportMarkdown(),
    exportJson: () => act.exportJson(),
  });
  const clicked = {
    new: () => page.go(""),
    "stop-all": () => void page.stopAll(),
    help: showHelp,
    settings,
    menu: () => showSessions(!document.body.classList.contains("aside")),
    shade: () => showSessions(false),
  };
  for (const [id, done] of Object.entries(clicked)) find(id).addEventListener("click", done);
  find("search").addEventListener("input", () => page.sessions.search(find("search").value));
  listen({
    stop: () => void page.stop(),
    help: () => showHelp(),
    write: () => find("text").focus(),
    newSession: () => page.go(""),
    timeline: () => page.view.toggleTimeline(),
    search,
    model: () => page.status.model.focus(),
    files: () => page.isNew || act.files(),
    settings,
    record: () => page.composer.toggleRecording(),
    question: () => document.querySelector(".ask button, .question[data-state=open] :is(button, input)")?.focus(),
    beside: (step) => {
      const id = page.list.beside(page.session, step);
      if (id) page.go(id);
    },
    escape: () => escape(page),
  });
}

/** Show the list of sessions on a narrow screen, or hide it. */
export function showSessions(shown) {
  document.body.classList.toggle("aside", shown);
  find("shade").hidden = !shown;
  find("menu").setAttribute("aria-expanded", String(shown));
  if (shown) find("new").focus();
}

function search() {
  if (matchMedia("(max-width: 50rem)").matches) showSessions(true);
  find("search").focus();
}

/** Whether Escape has done something. */
function escape(page) {
  if (document.body.classList.contains("aside")) {
    showSessions(false);
    return true;
  }
  if (find("text").value.trim()) {
    if (page.state.running) page.notices.say("Escape stops only if the message field is empty. Ctrl+. always stops.");
    return false;
  }
  page.stop();
  return Boolean(page.state.running);
}
