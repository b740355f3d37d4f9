// What the gateway says of the open session beside its events: the model, how full the context is, tokens and cost. It is
// asked for when something has changed that these depend on.

const CHANGING = new Set(["turn.started", "request.finished", "turn.finished", "turn.rolled_back", "context.compacted", "session.changed"]);

export class SessionInfo {
  #isAsking = false;
  #isDue = false;
  #session = "";

  constructor(api, onChange) {
    this.api = api;
    this.onChange = onChange;
    this.agents = [];
    this.models = [];
    this.view = null; // of the open session, as the gateway has sent it
  }

  /** Ask once for the agents and the models that there are. */
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
    this.#isDue = true;
    if (this.#isAsking) return;
    this.#isAsking = true;
    while (this.#isDue && this.#session) {
      this.#isDue = false;
      const session = this.#session;
      try {
        const view = await this.api.session(session);
        if (session === this.#session) this.view = view;
        this.onChange();
      } catch {
        // The stream says it if the gateway is gone.
      }
    }
    this.#isAsking = false;
  }

  /** The agent of the open session, or the one that a new session will have. */
  agent(name = "") {
    return this.agents.find((each) => each.name === (this.view?.agent ?? name)) ?? this.agents[0] ?? null;
  }
}
