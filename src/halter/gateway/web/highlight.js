// Colours for code. Ours, because a library for that is larger than this whole page, and most of what people read here
// needs four colours: comments, strings, numbers and the words of the language. Unknown languages stay plain.

import { el } from "./dom.js";

const MAX_LENGTH = 60_000; // characters that are coloured

const words = (text) => new Set(text.split(" "));
const C_LIKE = words(
  "abstract as async await bool boolean break case catch char class const continue crate default defer delete do double " +
    "dyn else enum export extends extern false final finally float fn for from func function go if impl import in " +
    "instanceof int interface let long loop match mod move mut namespace new nil null of package private protected pub " +
    "public readonly ref return self short static str string struct super switch this throw throws trait true try type " +
    "typeof undefined union unsafe unsigned use usize var virtual void where while yield",
);
const PYTHON = words(
  "False None True and as assert async await break case class continue def del elif else except finally for from global " +
    "if import in is lambda match nonlocal not or pass raise return self try while with yield",
);
const SHELL = words(
  "if then else elif fi for in do done while until case esac function return export local set unset source cd echo exit " +
    "sudo read test eval exec trap",
);
const SQL = words(
  "select from where insert into values update set delete create table index drop alter add primary key foreign " +
    "references not null unique default join left right inner outer on as and or in is like between group by order limit " +
    "having union all distinct case when then else end begin commit rollback with returning exists",
);
const DATA = words("true false null yes no on off");

const STRING = String.raw`"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'`;
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b`;
const WORD = String.raw`[A-Za-z_$][\w$]*`;

function language({ comment, string = STRING, known, ignoreCase = false }) {
  return { known, ignoreCase, pattern: new RegExp(`(${comment})|(${string})|(${NUMBER})|(${WORD})`, "g") };
}

const HASH = String.raw`#[^\n]*`;
const SLASHES = String.raw`\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`;
const NOTHING = String.raw`(?!)`;
const LANGUAGES = {
  c: language({ comment: SLASHES, string: `${STRING}|\`(?:[^\`\\\\]|\\\\.)*\``, known: C_LIKE }),
  python: language({
    comment: HASH,
    string: String.raw`[rbfuRBFU]{0,2}(?:"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|${STRING})`,
    known: PYTHON,
  }),
  shell: language({ comment: String.raw`(?<![^\s])#[^\n]*`, string: String.raw`"(?:[^"\\]|\\.)*"|'[^']*'|\$\{?\w+\}?`, known: SHELL }),
  sql: language({ comment: String.raw`--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)`, known: SQL, ignoreCase: true }),
  data: language({ comment: String.raw`(?<![^\s])#[^\n]*`, known: DATA }),
  json: language({ comment: NOTHING, known: DATA }),
  markup: language({
    comment: String.raw`<!--[\s\S]*?(?:-->|$)`,
    string: String.raw`${STRING}`,
    known: new Set(),
  }),
};
const NAMES = {
  c: "c cc cpp c++ h hpp cs csharp java kotlin kt scala swift js mjs jsx javascript ts tsx typescript go rust rs php dart css scss",
  python: "python py python3 pycon ruby rb",
  shell: "bash sh shell zsh console fish dockerfile make makefile",
  sql: "sql sqlite postgresql mysql",
  data: "yaml yml toml ini cfg conf properties",
  json: "json jsonc json5",
  markup: "html xml svg vue",
};
const BY_NAME = new Map(Object.entries(NAMES).flatMap(([key, all]) => all.split(" ").map((name) => [name, LANGUAGES[key]])));

/** Code as nodes, with colours if its language is known. */
export function highlighted(text, name) {
  const key = name.toLowerCase();
  if (key === "diff" || key === "patch") return diffLines(text);
  const found = BY_NAME.get(key);
  if (!found || text.length > MAX_LENGTH) return [document.createTextNode(text)];
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(found.pattern)) {
    const [whole, comment, string, number] = match;
    const isKnown = found.known.has(found.ignoreCase ? whole.toLowerCase() : whole);
    const kind = comment ? "comment" : string ? "string" : number ? "number" : isKnown ? "word" : "";
    if (!kind) continue;
    if (match.index > at) nodes.push(document.createTextNode(text.slice(at, match.index)));
    nodes.push(el("span", { class: `of-${kind}`, text: whole }));
    at = match.index + whole.length;
  }
  if (at < text.length || !nodes.length) nodes.push(document.createTextNode(text.slice(at)));
  return nodes;
}

function diffLines(text) {
  return text.split(/(?<=\n)/).map((line) => {
    const kind = line.startsWith("+") ? "ins" : line.startsWith("-") ? "del" : "span";
    return el(kind, { class: "of-line", text: line });
  });
}
