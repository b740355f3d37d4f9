// The key of the gateway: it comes in the page's address, behind the #, which no server or log ever sees.
//
// It is removed from the address at once. The key in use is stored for this origin, so that other tabs and a reload have
// it too.

import { Api } from "./api.js";
import { askKey } from "./dialogs.js";

const STORED_KEY = "halter.key";

/** Remove the key from the page's address and return it; an empty string if there is none. */
function takeKey() {
  const rest = new URLSearchParams(location.hash.slice(1));
  const given = rest.get("key");
  if (given === null) return "";
  rest.delete("key");
  history.replaceState(null, "", `${location.pathname}${location.search}${rest.size ? `#${rest}` : ""}`);
  return given;
}

/** The stored key, or an empty string. */
export function keptKey() {
  return localStorage.getItem(STORED_KEY) || "";
}

/** Store a key; an empty one removes it. */
function keepKey(key) {
  if (key) localStorage.setItem(STORED_KEY, key);
  else localStorage.removeItem(STORED_KEY);
}

/** The key in use: from the address, stored, or asked for. */
export class Keys {
  #isAsking = false;

  /** `onRefused()` is called when the key is no longer accepted, `onChange()` when another one is used. */
  constructor(api, { onRefused, onChange, onNotice }) {
    Object.assign(this, { api, onRefused, onChange, onNotice });
    api.onRefused = () => this.change({ wasRefused: true });
  }

  /** Use the key in the address, unless it is wrong and another one is stored: any site may link here with any key. */
  async useGiven() {
    const given = takeKey();
    if (!given || given === this.api.key) return;
    if (this.api.key && !(await new Api(given).isAccepted())) {
      this.onNotice("The key in the address was not accepted. The previous key is still used.");
      return;
    }
    this.#use(given);
  }

  /** Ask for the first key, until there is one. */
  async ask() {
    await this.#ask({});
  }

  /** Ask for another key; one that is accepted can be kept. */
  async change({ wasRefused = false } = {}) {
    if (wasRefused && !this.#isAsking) this.onRefused();
    if (await this.#ask({ wasRefused, mayKeep: !wasRefused })) this.onChange();
  }

  async #ask({ wasRefused = false, mayKeep = false }) {
    if (this.#isAsking) return false;
    this.#isAsking = true;
    const key = await askKey(wasRefused, { mayKeep });
    this.#isAsking = false;
    if (key) this.#use(key);
    return Boolean(key);
  }

  #use(key) {
    this.api.key = key;
    keepKey(key);
  }
}
