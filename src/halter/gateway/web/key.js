// The key of the gateway: it comes once in the page's address, behind the #, which no server or log ever sees.
//
// It is taken out of the address at once and kept for this origin, so that other tabs and a reload have it too.

const NAME = "halter.key";

/** The key, or nothing if there is none yet. */
export function readKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given !== null) {
    const rest = new URLSearchParams(location.hash.slice(1));
    rest.delete("key");
    history.replaceState(null, "", `${location.pathname}${location.search}${rest.size ? `#${rest}` : ""}`);
    keepKey(given);
  }
  return given || localStorage.getItem(NAME) || "";
}

/** Keep a key; nothing takes it away. */
export function keepKey(key) {
  if (key) localStorage.setItem(NAME, key);
  else localStorage.removeItem(NAME);
}
