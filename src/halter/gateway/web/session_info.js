// Data of the open session beside its events: the model, how full the context is, tokens and cost. It is fetched again
// when something has changed that these depend on.

const CHANGING = new Set(["turn.started", "request.finished", "turn.finished", "turn.rolled_back", "context.compacted", "session.changed"]);

export class SessionInfo {
  #isAsking = false;
  #isStale = false;
  #session = "";

  constructor(api, onChange) {
    this.api = api;
    this.onChange = onChange;
    this.agents = [];
    this.models = [];
    this.view = null; // of the open session, as the gateway has sent it
  }

  /** Fetch the agents and models, once. */
  async load() {
    try {
      Object.assign(this, await this.api.agents());
    } catch {
      // An older gateway, or none: then there is nothing to choose.
    }
    this.onChange();
  }

  /** Another session is open; none is a new one. */
  open(session) {
    this.#session = session;
    this.view = null;
    if (session) this.refresh();
  }

  heard(kinds) {
    if (kinds.some((kind) => CHANGING.has(kind))) this.refresh();
  }

  async refresh() {
    this.#isStale = true;
    if (this.#isAsking) return;
    this.#isAsking = true;
    while (this.#isStale && this.#session) {
      this.#isStale = false;
      const session = this.#session;
      try {
        const view = await this.api.session(session);
        if (session === this.#session) this.view = view;
        this.onChange();
      } catch {
        // The stream reports it if the gateway cannot be reached.
      }
    }
    this.#isAsking = false;
  }

  /** The agent of the open session, or the one that a new session will have. */
  agent(name = "") {
    return this.agents.find((each) => each.name === (this.view?.agent ?? name)) ?? this.agents[0] ?? null;
  }
}
