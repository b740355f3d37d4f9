// The key of the gateway: it comes in the page's address, behind the #, which no server or log ever sees.
//
// It is taken out of the address at once. The one in use is kept for this origin, so that other tabs and a reload have
// it too.

const NAME = "halter.key";

/** Take the key out of the page's address; nothing if there is none. */
export function takeKey() {
  const rest = new URLSearchParams(location.hash.slice(1));
  const given = rest.get("key");
  if (given === null) return "";
  rest.delete("key");
  history.replaceState(null, "", `${location.pathname}${location.search}${rest.size ? `#${rest}` : ""}`);
  return given;
}

/** The key that is kept, or nothing. */
export function keptKey() {
  return localStorage.getItem(NAME) || "";
}

/** Keep a key; nothing takes it away. */
export function keepKey(key) {
  if (key) localStorage.setItem(NAME, key);
  else localStorage.removeItem(NAME);
}
