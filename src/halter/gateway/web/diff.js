// File changes, read from the arguments of a tool: a unified diff, search/replace blocks, or the content of a file.
//
// `halter/toolbox/files/patch/parser.py` decides what a patch does. This only shows it, so what cannot be read here is
// shown as it was written.

const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@(.*)$/;
const [SEARCH, MIDDLE, REPLACE] = ["<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"];
const NO_FILE = "/dev/null";

/** The changes of a call, or null if it changes no files or they cannot be read. */
export function changesOf(tool, given) {
  if (tool === "write_file" && typeof given?.content === "string") return [written(String(given.path), given.content)];
  if (tool !== "patch" || typeof given?.changes !== "string") return null;
  const text = given.changes.replace(/^```[^\n]*\n/, "").replace(/\n```\s*$/, "\n");
  const files = text.includes(SEARCH) ? readBlocks(text, given.path) : readDiff(text, given.path);
  return files.length ? files : null;
}

/** The files of a unified diff. `path` is the file that it is about, if it names none itself. */
export function readDiff(text, path = "") {
  const lines = linesOf(text);
  const files = [];
  let file = null;
  let [old, now] = [1, 1];
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const hunk = HUNK.exec(line);
    if (line.startsWith("--- ") && lines[at + 1]?.startsWith("+++ ")) {
      file = fileBetween(nameIn(line), nameIn(lines[at + 1]));
      files.push(file);
      at += 1;
    } else if (/^diff --git /.test(line)) file = null;
    else if (hunk) {
      if (!file) files.push((file = newFile(path, "changed")));
      [old, now] = [Number(hunk[1]) || 1, Number(hunk[2]) || 1];
      file.lines.push({ mark: "@", text: hunk[3].trim(), old: null, now: null });
    } else if (file?.lines.length && !line.startsWith("\\")) {
      const mark = "+-".includes(line[0] ?? " ") ? line[0] : " ";
      add(file, mark, line.slice(mark === " " && line[0] !== " " ? 0 : 1), mark === "+" ? null : old, mark === "-" ? null : now);
      if (mark !== "+") old += 1;
      if (mark !== "-") now += 1;
    }
  }
  return files;
}

function fileBetween(before, after) {
  if (before === NO_FILE) return newFile(after, "created");
  return newFile(after === NO_FILE ? before : after, after === NO_FILE ? "deleted" : "changed");
}

function readBlocks(text, path = "") {
  const files = new Map();
  let side = "";
  let file = null;
  let before = "";
  for (const line of linesOf(text)) {
    const word = line.trim();
    if (word === SEARCH) {
      const name = before.trim().replace(/^[#*`\s]+|[*`:\s]+$/g, "") || path;
      if (!files.has(name)) files.set(name, newFile(name, "changed"));
      file = files.get(name);
      file.lines.push({ mark: "@", text: "", old: null, now: null });
      side = "-";
    } else if (side === "-" && word === MIDDLE) side = "+";
    else if (side && word === REPLACE) side = before = "";
    else if (side) add(file, side, line, null, null);
    else if (word) before = line;
  }
  for (const each of files.values()) each.lines = shared(each.lines);
  return [...files.values()];
}

/** Lines that a block has removed and added again at its beginning and its end are context. */
function shared(lines) {
  const blocks = [];
  for (const line of lines) {
    if (line.mark === "@") blocks.push([]);
    blocks.at(-1).push(line);
  }
  return blocks.flatMap(([head, ...rest]) => {
    const [gone, come] = ["-", "+"].map((mark) => rest.filter((line) => line.mark === mark).map((line) => line.text));
    let [first, last] = [0, 0];
    const most = Math.min(gone.length, come.length);
    while (first < most && gone[first] === come[first]) first += 1;
    while (last < most - first && gone.at(-1 - last) === come.at(-1 - last)) last += 1;
    const as = (mark) => (text) => ({ mark, text, old: null, now: null });
    return [
      head,
      ...gone.slice(0, first).map(as(" ")),
      ...gone.slice(first, gone.length - last).map(as("-")),
      ...come.slice(first, come.length - last).map(as("+")),
      ...gone.slice(gone.length - last).map(as(" ")),
    ];
  });
}

function written(path, content) {
  const file = newFile(path, "written");
  linesOf(content).forEach((line, at) => add(file, "+", line, null, at + 1));
  return file;
}

function newFile(path, change) {
  return { path, change, lines: [] };
}

function add(file, mark, text, old, now) {
  file.lines.push({ mark, text, old, now });
}

function nameIn(line) {
  const name = line.slice(4).split("\t")[0].trim();
  return name === NO_FILE ? name : name.replace(/^[ab]\//, "");
}

function linesOf(text) {
  return text.replace(/\r?\n$/, "").split(/\r?\n/);
}

/** How many lines are added and removed. */
export function countsOf(files) {
  const count = (mark) => files.reduce((all, file) => all + file.lines.filter((line) => line.mark === mark).length, 0);
  return { added: count("+"), removed: count("-") };
}
