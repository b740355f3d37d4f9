// The conversation as a file: Markdown for people, the events as JSON for programs.

import { outcome } from "./text.js";

/** The conversation as Markdown. */
export function markdownOf(state, title) {
  const out = [`# ${title}`, ""];
  for (const turn of state.turns) {
    if (turn.rolledBack) continue;
    for (const item of turn.items) {
      const text = textOf(item);
      if (text) out.push(text, "");
    }
  }
  return out.join("\n");
}

function textOf(item) {
  if (item.kind === "message") return item.text && `**You:** ${item.text}`;
  if (item.kind === "text") return item.superseded ? "" : item.text;
  if (item.kind === "call") return `> \`${item.name}\` ${oneLine(item.arguments)} (${outcome(item.state)})`;
  if (item.kind === "child") return `> delegated to ${item.agent}: ${oneLine(item.task)} (${outcome(item.state)})`;
  if (item.kind === "question") return `> ${item.question} **${item.said || item.value || ""}**`;
  return "";
}

function oneLine(text) {
  const line = text.replace(/\s+/g, " ");
  return line.length > 300 ? `${line.slice(0, 300)}…` : line;
}

/** Download a text as a file. */
export function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  Object.assign(link, { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A title as the name of a file. */
export function fileName(title) {
  return title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "session";
}
