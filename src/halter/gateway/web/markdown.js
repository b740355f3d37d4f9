// Markdown, as elements, while it is being written.
//
// Finished blocks stay as they are, and only the last one is rendered again, so that a long answer costs no more at its
// end than at its beginning. Elements are built, and text is only ever text; a link leads to http or
// https, or is not a link. Unknown syntax stays as it was written.
//
// This is our own code because libraries return HTML as a string, which would have to be sanitized, and parse the whole
// text again for each piece.

import { copyButton } from "./copy.js";
import { el } from "./dom.js";
import { highlighted } from "./highlight.js";
import { inline } from "./inline.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,12})(?:([-*+])|(\d{1,9})[.)])(?:\s+(.*))?$/;
const ALIGN = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const MAX_DEPTH = 6;
const MAX_LINE = 20_000; // characters of a paragraph or a table row that are searched for inline marks
const MAX_CELLS = 10_000; // of a table; a larger one is shown as plain text

export class Markdown {
  #text = "";
  #from = 0; // where the last block begins: what is before it will not change
  #stable = 0; // elements that belong to what is before it
  #fence = null; // the code that is being written, with the text node that grows

  constructor(node) {
    this.node = node;
  }

  /** Show this text: usually the one from before, and more. */
  show(text) {
    if (text === this.#text) return;
    if (!text.startsWith(this.#text)) this.#reset();
    if (this.#fence && this.#grow(text)) return;
    this.#text = text;
    this.#fence = null;
    const blocks = split(text, this.#from);
    while (this.node.childNodes.length > this.#stable) this.node.lastChild.remove();
    for (const block of blocks) this.node.append(render(block, 0));
    const last = blocks.at(-1);
    if (!last) return;
    const open = mayJoin(blocks) ? 2 : 1;
    this.#from = blocks.at(-open).from;
    this.#stable = this.node.childNodes.length - open;
    const hasBegun = text.indexOf("\n", last.from) >= 0; // else the name of the language is still being written
    if (last.kind === "code" && last.open && hasBegun)
      this.#fence = { mark: last.mark, body: this.node.lastChild.querySelector("code").firstChild };
  }

  #reset() {
    this.node.replaceChildren();
    this.#text = "";
    this.#from = this.#stable = 0;
    this.#fence = null;
  }

  /** Add to code that is being written, if that is all that came; a line that may end it is not. */
  #grow(text) {
    const line = this.#text.lastIndexOf("\n") + 1;
    if (text.slice(line).includes(this.#fence.mark)) return false;
    this.#fence.body.appendData(text.slice(this.#text.length));
    this.#text = text;
    return true;
  }
}

/** Whether the last block may turn out to be one more item of the list before it: so far there is only its mark. */
function mayJoin(blocks) {
  return blocks.at(-2)?.kind === "list" && /^\s*\d{1,9}[.)]?$/.test(blocks.at(-1).text ?? "");
}

/** The blocks of a text, from a place on. */
function split(text, from) {
  const lines = text.slice(from).split("\n");
  const starts = [];
  let place = from;
  for (const line of lines) {
    starts.push(place);
    place += line.length + 1;
  }
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (!lines[at].trim()) {
      at += 1;
      continue;
    }
    const [block, next] = READERS.map((read) => read(lines, at)).find(Boolean);
    blocks.push({ ...block, from: starts[at] });
    at = next;
  }
  return blocks;
}

const READERS = [readCode, readHeading, readRule, readQuote, readList, readTable, readParagraph];

function readCode(lines, at) {
  const found = FENCE.exec(lines[at]);
  if (!found) return null;
  const [, mark, info] = found;
  const end = new RegExp(`^ {0,3}${mark[0]}{${mark.length},}\\s*$`);
  let next = at + 1;
  while (next < lines.length && !end.test(lines[next])) next += 1;
  const block = {
    kind: "code",
    mark,
    language: info.trim().split(/\s/)[0],
    open: next >= lines.length,
    text: lines.slice(at + 1, next).join("\n"),
  };
  return [block, next + 1];
}

function readHeading(lines, at) {
  const found = HEADING.exec(lines[at]);
  return found && [{ kind: "heading", level: found[1].length, text: found[2] }, at + 1];
}

function readRule(lines, at) {
  return RULE.test(lines[at]) ? [{ kind: "rule" }, at + 1] : null;
}

function readQuote(lines, at) {
  if (!QUOTE.test(lines[at])) return null;
  let next = at;
  while (next < lines.length && QUOTE.test(lines[next])) next += 1;
  return [
    {
      kind: "quote",
      text: lines
        .slice(at, next)
        .map((line) => line.replace(QUOTE, ""))
        .join("\n"),
    },
    next,
  ];
}

function readList(lines, at) {
  const first = ITEM.exec(lines[at]);
  if (!first) return null;
  const margin = first[1].length;
  const ordered = first[3] !== undefined;
  const items = [];
  let next = at;
  while (next < lines.length) {
    const line = lines[next];
    const found = ITEM.exec(line);
    const indent = line.length - line.trimStart().length;
    if (found && indent < margin + 2) {
      if ((found[3] !== undefined) !== ordered || indent < margin || RULE.test(line)) break;
      items.push({ lines: [found[4] ?? ""], indent: line.length - (found[4] ?? "").length });
    } else if (!line.trim()) {
      // An empty line ends the list, unless the list continues after it.
      const behind = lines[next + 1] ?? "";
      const goesOn =
        behind.trim() && (behind.startsWith(" ".repeat(margin + 2)) || (ITEM.test(behind) && !RULE.test(behind)));
      if (!goesOn) break;
      items.at(-1).lines.push("");
    } else if (indent >= margin + 2 || found || lines[next - 1].trim()) {
      if (indent < margin + 2 && READERS.slice(0, 4).some((read) => read(lines, next))) break;
      const item = items.at(-1);
      item.lines.push(line.slice(Math.min(indent, item.indent)));
    } else break;
    next += 1;
  }
  return [
    { kind: "list", ordered, first: Number(first[3] ?? 1), items: items.map((item) => item.lines.join("\n")) },
    next,
  ];
}

function readTable(lines, at) {
  const [first, second = ""] = lines.slice(at, at + 2);
  if (!first.includes("|") || !second.includes("-") || Math.max(first.length, second.length) > MAX_LINE) return null;
  if (!ALIGN.test(second)) return null;
  let next = at + 2;
  while (next < lines.length && lines[next].includes("|")) next += 1;
  const head = cells(first);
  if (head.length * (next - at - 1) > MAX_CELLS)
    return [{ kind: "code", language: "", text: lines.slice(at, next).join("\n") }, next];
  return [
    {
      kind: "table",
      head,
      sides: cells(lines[at + 1]).map(side),
      rows: lines.slice(at + 2, next).map(cells),
    },
    next,
  ];
}

function readParagraph(lines, at) {
  let next = at + 1;
  while (next < lines.length && lines[next].trim() && !interrupts(lines, next)) next += 1;
  return [{ kind: "paragraph", text: lines.slice(at, next).join("\n") }, next];
}

function interrupts(lines, at) {
  const line = lines[at];
  return (
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    QUOTE.test(line) ||
    ITEM.exec(line)?.[4] ||
    readTable(lines, at)
  );
}

function cells(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function side(mark) {
  return mark.endsWith(":") ? (mark.startsWith(":") ? "middle" : "right") : "left";
}

function render(block, depth) {
  const { kind, text } = block;
  if (kind === "code") return renderCode(block);
  if (kind === "heading") return el(`h${Math.min(6, block.level + 1)}`, {}, inline(text));
  if (kind === "rule") return el("hr");
  if (kind === "quote") return el("blockquote", {}, nested(text, depth));
  if (kind === "list") {
    const items = block.items.map((item) => renderItem(item, depth));
    return el(block.ordered ? "ol" : "ul", { start: block.ordered && block.first !== 1 ? block.first : null }, items);
  }
  if (kind === "table") return renderTable(block);
  return el("p", {}, text.length > MAX_LINE ? text : inline(text));
}

/** An item of a list; one of a task list has a box, ticked or not. */
function renderItem(text, depth) {
  const task = /^\[([ xX])\](?:\s+|$)/.exec(text);
  if (!task) return el("li", {}, tight(nested(text, depth)));
  const isDone = task[1] !== " ";
  const box = el("input", { type: "checkbox", disabled: true, checked: isDone, "aria-label": isDone ? "done" : "open" });
  return el("li", { class: "task" }, box, tight(nested(text.slice(task[0].length), depth)));
}

function nested(text, depth) {
  return depth >= MAX_DEPTH ? [text] : split(text, 0).map((block) => render(block, depth + 1));
}

/** An item with a single paragraph is unwrapped, so that its lines stay close together. */
function tight(nodes) {
  return nodes[0]?.nodeName === "P" ? [...nodes[0].childNodes].concat(nodes.slice(1)) : nodes;
}

function renderCode({ language, text, open }) {
  // While it is being written it is one text that grows; it gets its colours when it has ended.
  const code = el("code", {}, open ? document.createTextNode(text) : highlighted(text, language));
  return el(
    "figure",
    { class: "code" },
    el("figcaption", {}, el("span", { text: language.slice(0, 30) }), copyButton(() => code.textContent)),
    el("pre", { tabindex: 0, "aria-label": "Code" }, code),
  );
}

function renderTable({ head, sides, rows }) {
  const row = (tag, line) =>
    el(
      "tr",
      {},
      head.map((_, at) => el(tag, { class: sides[at] ?? "left" }, inline(line[at] ?? ""))),
    );
  const body = rows.map((line) => row("td", line));
  const table = el("table", {}, el("thead", {}, row("th", head)), el("tbody", {}, body));
  return el("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Table" }, table);
}
