// The keys that work everywhere in the page; those of the field are the composer's. `dialogs.js` lists them for people.

/** `act` has a function for each. */
export function listen(act) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    const done = event.altKey && !event.ctrlKey ? withAlt(event, act) : plain(event, act);
    if (done) event.preventDefault();
  });
}

function withAlt(event, act) {
  const acts = {
    KeyN: act.newSession,
    KeyT: act.timeline,
    KeyR: act.record,
    KeyQ: act.question,
    KeyK: act.search,
    KeyM: act.model,
    KeyD: act.files,
    KeyS: act.settings,
    ArrowUp: () => act.beside(-1),
    ArrowDown: () => act.beside(1),
  };
  acts[event.code]?.();
  return event.code in acts;
}

function plain(event, act) {
  if (event.key === "." && (event.ctrlKey || event.metaKey)) return act.stop() ?? true;
  if (event.ctrlKey || event.metaKey) return false;
  if (event.key === "Escape") return act.escape();
  const isWriting = event.target.matches?.("input, textarea, select, [contenteditable]");
  if (isWriting) return false;
  if (event.key === "?") return act.help() ?? true;
  if (event.key === "/") return act.write() ?? true;
  return false;
}
