// The marks inside a line: code, bold, italic, struck out, links and line breaks; in time that grows with its length.

import { el } from "./dom.js";

const MARKS = [
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "del"],
  ["*", "em"],
  ["_", "em"],
];
const SPECIAL = /[`*_~[\]!\\\nh]/g;
const ADDRESS = /^https?:\/\/[^\s<>"'`\\^{|}]+/i;
const LABEL = /\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){0,2000})\]/; // brackets may be in it, one deep
const TARGET = /\(\s*<?([^\s<>()]*(?:\([^\s()]*\)[^\s<>()]*)*)>?(?:\s+["'][^"'\n]{0,300}["'])?\s*\)/;
const LINK = new RegExp(`^!?${LABEL.source}${TARGET.source}`);
const MAX_DEPTH = 6;

/** A piece of text, as nodes. */
export function inline(text, depth = 0) {
  return new Line(text, depth).nodes();
}

/** An address that may be followed: http or https, and nothing else; empty if it is none. */
export function safeAddress(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:"].includes(url.protocol) ? url.href : "";
  } catch {
    return "";
  }
}

class Line {
  #out = [];
  #plain = "";
  #missing = new Set(); // marks that have no other half from here on, and so are not looked for again

  constructor(text, depth) {
    this.text = text;
    this.depth = depth;
  }

  nodes() {
    const { text } = this;
    let at = 0;
    while (at < text.length) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(text);
      if (!found) break;
      this.#plain += text.slice(at, found.index);
      at = found.index;
      at = this.#special(at) ?? this.#keep(at);
    }
    this.#plain += text.slice(at);
    this.#flush();
    return this.#out;
  }

  #keep(at) {
    this.#plain += this.text[at];
    return at + 1;
  }

  #flush() {
    if (this.#plain) this.#out.push(document.createTextNode(this.#plain));
    this.#plain = "";
  }

  #push(node, next) {
    this.#flush();
    this.#out.push(node);
    return next;
  }

  /** The position after a mark, if there is one here. */
  #special(at) {
    const { text } = this;
    const sign = text[at];
    if (sign === "\n") {
      this.#plain = this.#plain.trimEnd();
      return this.#push(el("br"), at + 1);
    }
    if (sign === "\\") return this.#escape(at);
    if (sign === "`") return this.#code(at);
    if (sign === "[" || (sign === "!" && text[at + 1] === "[")) return this.#link(at);
    if (sign === "h") return this.#address(at);
    return "*_~".includes(sign) ? this.#mark(at) : null;
  }

  #escape(at) {
    const next = this.text[at + 1] ?? "";
    if (!/[!-/:-@[-`{-~]/.test(next)) return null;
    this.#plain += next;
    return at + 2;
  }

  #code(at) {
    const ticks = /^`+/.exec(this.text.slice(at, at + 20))[0];
    const end = this.#find(ticks, at + ticks.length);
    if (end < 0) {
      this.#plain += ticks;
      return at + ticks.length;
    }
    let inner = this.text.slice(at + ticks.length, end).replaceAll("\n", " ");
    if (/^ .*[^ ].* $/.test(inner)) inner = inner.slice(1, -1);
    return this.#push(el("code", { text: inner }), end + ticks.length);
  }

  #link(at) {
    if (this.depth >= MAX_DEPTH) return null;
    const found = LINK.exec(this.text.slice(at, at + 5000));
    const address = found && safeAddress(found[2]);
    if (!address) return null;
    return this.#push(anchor(address, inline(found[1] || found[2], MAX_DEPTH)), at + found[0].length);
  }

  #address(at) {
    if (this.depth >= MAX_DEPTH || (at && /\w/.test(this.text[at - 1]))) return null;
    const found = ADDRESS.exec(this.text.slice(at, at + 2000));
    if (!found) return null;
    let shown = found[0].replace(/[.,;:!?*_~]+$/, "");
    while (shown.endsWith(")") && !shown.includes("(")) shown = shown.slice(0, -1);
    const address = safeAddress(shown);
    return address ? this.#push(anchor(address, [shown]), at + shown.length) : null;
  }

  #mark(at) {
    const { text } = this;
    const [mark, tag] = MARKS.find(([each]) => text.startsWith(each, at)) ?? [];
    const begin = at + (mark?.length ?? 0);
    if (!mark || this.depth >= MAX_DEPTH || !text[begin] || /\s/.test(text[begin])) return null;
    if (mark[0] === "_" && at && /\w/.test(text[at - 1])) return null; // snake_case is a word
    const end = this.#close(mark, begin);
    if (end < 0) return null;
    return this.#push(el(tag, {}, ...inline(text.slice(begin, end), this.depth + 1)), end + mark.length);
  }

  #close(mark, from) {
    for (let tries = 0, end = from; tries < 20; tries += 1) {
      end = this.#find(mark, end + 1);
      if (end < 0) return -1;
      const inside = mark.length === 1 && (this.text[end + 1] === mark || this.text[end - 1] === mark);
      const isWord = mark[0] === "_" && /\w/.test(this.text[end + mark.length] ?? "");
      if (inside || isWord || /\s/.test(this.text[end - 1])) continue;
      return mark.length === 2 && this.text[end + 2] === mark[0] ? end + 1 : end; // ***both***
    }
    return -1;
  }

  #find(mark, from) {
    if (this.#missing.has(mark)) return -1;
    const found = this.text.indexOf(mark, from);
    if (found < 0) this.#missing.add(mark);
    return found;
  }
}

function anchor(address, content) {
  return el("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow", title: address }, ...content);
}
