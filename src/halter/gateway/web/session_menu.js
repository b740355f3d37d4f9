// What can be done with the open session: a menu in the head of the page.

import { button, el, find, icon } from "./dom.js";

/** `act` has a function for each. */
export function makeMenu(act) {
  const items = [
    ["edit", "Rename", act.rename],
    ["diff", "Changed files", act.files],
    ["branch", "Branch", act.branch],
    ["compact", "Compact the context", act.compact],
    ["save", "Export as Markdown", act.exportMarkdown],
    ["save", "Export as JSON", act.exportJson],
  ];
  const menu = el(
    "div",
    { id: "session-menu", popover: "auto", role: "menu", "aria-label": "Session" },
    items.map(([name, text, run]) =>
      button(
        text,
        () => {
          menu.hidePopover();
          run();
        },
        { icon: name, role: "menuitem", class: "quiet" },
      ),
    ),
  );
  const more = find("more");
  more.append(icon("more"));
  more.popoverTargetElement = menu;
  menu.addEventListener("toggle", (event) => {
    const isOpen = event.newState === "open";
    more.setAttribute("aria-expanded", String(isOpen));
    if (isOpen) menu.firstChild.focus();
  });
  menu.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...menu.children];
    all[(all.indexOf(document.activeElement) + step + all.length) % all.length].focus();
  });
  more.after(menu);
}
