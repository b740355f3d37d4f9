// How calls of the tools that ship are shown: a title, a summary in one line, all arguments, and the result. Other tools
// are shown by their names and arguments.
//
// `given()` leaves out no argument: it is what the user reads before allowing the call.

import { copyButton } from "./copy.js";
import { changesOf, countsOf, readDiff } from "./diff.js";
import { countsText, diffOf } from "./diff_view.js";
import { button, el } from "./dom.js";
import { highlighted } from "./highlight.js";
import { partsOf } from "./media.js";
import { grouped, plural, visible } from "./text.js";

const MAX_RESULT = 20_000; // characters of a result, until the user asks for the rest
const SHORT_DIFF = 40; // lines; a longer diff is folded
const ENDING = /(?:^|\n)\[((?:exit code|ended by|stopped|it )[^\n]*)\]\s*$/;
const PLAIN_RESULT = /^(?:[^\n]+: \+\d+ -\d+\.?\n?)+$/; // of a patch: no more than the counts
// eslint-disable-next-line no-control-regex -- terminal colours begin with this character
const COLOURS = /\x1b\[[0-9;?]*[A-Za-z]/g;

/** How a call is shown. */
export function displayOf(item) {
  const value = parsed(item.arguments);
  const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
  const given = isObject ? value : null;
  return { ...other(item, given), ...(given && KINDS[item.name]?.(item, given)) };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const KINDS = { terminal, execute_code: code, read_file, search_files, web_search, web_extract, write_file: changes };
Object.assign(KINDS, { patch: changes, todo, delegate });

/** A tool that is not known here. */
function other(item, value) {
  const short = value ? Object.values(value).map(plain).join(", ") : item.arguments;
  return {
    icon: "tool",
    title: item.name,
    brief: short,
    question: `Allow ${visible(item.name)}?`,
    given: () => {
      const text = value ? JSON.stringify(value, null, 2) : item.arguments;
      return text && text !== "{}" ? [el("pre", { text: visible(text) })] : [];
    },
    result: () => resultOf(item.content),
  };
}

function terminal(item, value) {
  const { command = "", ...rest } = value;
  const { text, ending } = outputOf(item);
  const code = /^exit code (-?\d+)/.exec(ending)?.[1];
  const isOver = item.state === "completed";
  return {
    icon: "terminal",
    title: value.background ? "Start" : "Run",
    brief: String(command),
    question: "Run this command?",
    isCode: true,
    isBad: isOver && ending !== "" && code !== "0",
    ended: isOver && code !== "0" ? ending.split(";")[0] : "",
    tail: text,
    given: () => [el("pre", { class: "command", text: visible(String(command)) }), ...restOf(rest)],
    result: () => [...(text ? [textOf(text)] : []), ...(ending ? [el("p", { class: "note", text: ending })] : [])],
  };
}

function code(item, value) {
  const { code: source = "", ...rest } = value;
  const lines = String(source).split("\n");
  return {
    icon: "terminal",
    title: "Python",
    brief: lines.find((line) => line.trim() && !/^\s*(#|import |from )/.test(line)) ?? lines[0],
    question: "Run this code?",
    isCode: true,
    tail: outputOf(item).text,
    given: () => [el("pre", {}, el("code", {}, highlighted(visible(String(source)), "python"))), ...restOf(rest)],
    result: () => resultOf(item.content),
  };
}

function read_file(item, value) {
  const { path = "", start, lines } = value;
  const from = start ? `:${start}${lines ? `–${start + lines - 1}` : ""}` : "";
  const count = textIn(item.content).split("\n").filter((line) => /^\s*\d+[\t│|: ]/.test(line)).length;
  return {
    icon: "file",
    title: "Read",
    brief: `${path}${from}`,
    isCode: true,
    isLine: true,
    ended: item.state === "completed" && count ? plural(count, "line") : "",
  };
}

function search_files(item, value) {
  const { pattern = "", path = ".", glob, kind } = value;
  const where = [path === "." ? "" : `in ${path}`, glob ? `(${glob})` : ""].filter(Boolean).join(" ");
  const count = textIn(item.content).split("\n").filter((line) => line && !line.startsWith("[")).length;
  return {
    icon: "search",
    title: kind === "name" ? "Find files" : "Search",
    brief: `${pattern} ${where}`.trim(),
    isCode: true,
    isLine: true,
    ended: item.state === "completed" ? kind === "name" ? plural(count, "file") : plural(count, "match", "matches") : "",
  };
}

function web_search(_item, value) {
  return { icon: "search", title: "Search the web", brief: String(value.query ?? ""), isLine: true };
}

function web_extract(_item, value) {
  return { icon: "web", title: "Fetch", brief: [value.urls].flat().join(", "), isLine: true };
}

function changes(item, value) {
  const files = item.diff ? readDiff(item.diff) : changesOf(item.name, value); // the former is what was really changed
  if (!files) return {};
  const { added, removed } = countsOf(files);
  const isMade = ["completed", "running", "planned", "needs approval", "stopping"].includes(item.state);
  const verbs = { created: "Create", deleted: "Delete", written: "Write", changed: "Change" };
  return {
    icon: "edit",
    title: files.length === 1 ? verbs[files[0].change] : "Change",
    brief: files.map((file) => file.path).join(", "),
    question: files.length === 1 ? `${verbs[files[0].change]} this file?` : `Change these ${files.length} files?`,
    isCode: true,
    counts: isMade ? countsText(files) : null,
    isOpen: isMade && added + removed <= SHORT_DIFF,
    given: ({ whole }) => diffOf(files, { whole }),
    result: () => (PLAIN_RESULT.test(textIn(item.content)) ? [] : resultOf(item.content)),
  };
}

const MARKS = { " ": "open", ">": "doing", x: "done", "-": "dropped" };

function todo(item, value) {
  const lines = textIn(item.content).split("\n");
  const items = lines.map((line) => /^\[([ >x-])\] \d+\. (.*)$/.exec(line)).filter(Boolean);
  const left = /^\((.*)\)$/.exec(lines.at(-1))?.[1] ?? "";
  if (!items.length) return { icon: "list", title: "To-do list", brief: [value.add ?? []].flat().join(", "), isLine: true };
  const list = () =>
    el(
      "ul",
      { class: "todo", "aria-label": "To-do list" },
      items.map(([, mark, text]) => el("li", { "data-state": MARKS[mark] }, el("span", { class: "unseen", text: `${MARKS[mark]}: ` }), text)),
    );
  return { icon: "list", title: "To-do list", brief: left, shown: list, result: () => [] };
}

function delegate(_item, value) {
  const tasks = Array.isArray(value.tasks) ? value.tasks : [];
  if (!tasks.length) return { icon: "agents", title: "Delegate" };
  return {
    icon: "agents",
    title: "Delegate",
    brief: `${plural(tasks.length, "task")}: ${tasks.map((each) => each.agent).join(", ")}`,
    given: () => [
      el("ul", { class: "tasks" }, tasks.map((each) => el("li", {}, el("b", { text: each.agent }), ` ${visible(plain(each.task))}`))),
      ...restOf({ ...value, tasks: undefined }),
    ],
  };
}

/** The other arguments of a call, one in a line. */
function restOf(rest) {
  const given = Object.entries(rest).filter(([, value]) => value !== undefined && value !== null);
  if (!given.length) return [];
  return [el("pre", { class: "rest", text: visible(given.map(([name, value]) => `${name}: ${plain(value)}`).join("\n")) })];
}

/** What a command has printed, and the line that says how it ended. */
function outputOf(item) {
  const all = (item.content === "" ? item.progress : textIn(item.content)).replace(COLOURS, "");
  const found = ENDING.exec(all);
  return found ? { text: all.slice(0, found.index), ending: found[1] } : { text: all, ending: "" };
}

function textIn(content) {
  if (typeof content === "string") return content;
  return content.filter((part) => part.type === "text").map((part) => part.text).join("\n");
}

/** The text of a result. Pictures and sounds are shown beside it, see `mediaIn()`. */
function resultOf(content) {
  const text = textIn(content).replace(COLOURS, "");
  return text ? [textOf(text)] : [];
}

/** The pictures and sounds of a result. */
export function mediaIn(content) {
  return typeof content === "string" ? [] : partsOf(content);
}

function textOf(text) {
  const shown = el("pre", { tabindex: 0, "aria-label": "Result", text: text.slice(0, MAX_RESULT) });
  const copy = copyButton(() => text);
  if (text.length <= MAX_RESULT) return el("div", { class: "text" }, shown, copy);
  const more = button(
    `Show all ${grouped(text.length)} characters`,
    () => {
      shown.textContent = text;
      more.remove();
    },
    { class: "small more" },
  );
  return el("div", { class: "text" }, shown, copy, more);
}

function plain(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}
