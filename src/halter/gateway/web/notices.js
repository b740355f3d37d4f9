// Errors, above the field, until they are dismissed or some time has passed; and the notices of the gateway.

import { button, el } from "./dom.js";

const SHOWN_FOR = 8_000;
const MAX_NOTICES = 3;

export class Notices {
  constructor(node) {
    this.node = node;
  }

  /** Show it; what `stays` is shown until it is dismissed. */
  say(text, { stays = false } = {}) {
    const drop = () => notice.remove();
    const notice = el(
      "div",
      { class: "notice" },
      el("span", { text }),
      button("", drop, { class: "icon", icon: "close", "aria-label": "Dismiss" }),
    );
    this.node.append(notice);
    while (this.node.childNodes.length > MAX_NOTICES) this.node.firstChild.remove();
    if (!stays) setTimeout(drop, SHOWN_FOR);
  }
}
