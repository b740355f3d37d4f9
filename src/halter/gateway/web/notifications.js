// Desktop notifications when a session needs the user, or has finished while the tab was hidden. They are off until the
// user turns them on in the settings: only then is the browser's permission requested.

const STORED = "halter.notify";

export function areOn() {
  return "Notification" in window && localStorage.getItem(STORED) === "on" && Notification.permission === "granted";
}

/** Turn them on or off; returns whether they are on now. Call it from a click. */
export async function turn(on) {
  if (!("Notification" in window)) return false;
  if (on && Notification.permission !== "granted") await Notification.requestPermission();
  localStorage.setItem(STORED, on && Notification.permission === "granted" ? "on" : "off");
  return areOn();
}

/** Notify the user, if the tab is hidden and notifications are on. A later notice of the same session replaces the earlier one. */
export function notify(session, title, body) {
  if (!areOn() || (!document.hidden && document.hasFocus())) return;
  const notice = new Notification(title, { body, tag: session, icon: "/page/icon.svg" });
  notice.addEventListener("click", () => {
    window.focus();
    notice.close();
  });
}
