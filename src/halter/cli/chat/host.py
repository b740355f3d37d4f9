"""The session that the chat is about: served on Halter's own loop, away from the one that draws, and exchangeable.

Whatever a tool or a store does there, the line in which somebody types does not wait for it.
"""

from __future__ import annotations

import shlex
import threading
from typing import TYPE_CHECKING, Final

from halter import engine
from halter.cancel.blocking import run_blocking_async
from halter.cancel.token import NEVER
from halter.cli.agents import make_agent
from halter.cli.chat.past import read_turns
from halter.cli.chat.words import Said, count, of_user
from halter.cli.choose import Choice
from halter.cli.output import plain
from halter.errors import HalterError, SessionClosed
from halter.models.local import LocalModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from halter.cli.settings import Configuration
    from halter.events import Mode
    from halter.inbox import Content, Receipt
    from halter.session import Session
    from halter.stores.store import Store

__all__ = ["Host"]

_PATIENCE: Final = 5.0  # seconds for a session that is left for another


class Host:
    """One session at a time."""

    def __init__(
        self,
        configuration: Configuration,
        choice: Choice,
        store: Store,
        session_id: str | None = None,
        *,
        can_ask: bool = True,
    ) -> None:
        self.configuration = configuration
        self.store = store
        self.on_failure: Callable[[HalterError], object] = lambda _error: None  # called in another thread
        self._can_ask = can_ask
        self.agent = make_agent(configuration, choice, can_ask=can_ask)
        self.session: Session = self.agent.session(session_id, store)
        self._server: threading.Thread | None = None

    def serve(self) -> None:
        """Have messages answered from now on; also if that had failed."""
        if self._server is None or not self._server.is_alive():
            self._server = threading.Thread(
                target=self._serve, args=(self.session,), name="halter-chat-session", daemon=True
            )
            self._server.start()

    def _serve(self, session: Session) -> None:
        try:
            engine.run(session.serve, lambda _error: None)
        except SessionClosed:
            pass
        except HalterError as error:
            self.on_failure(error)

    def load_model(self) -> Future[object] | None:
        """Begin to load a model that runs here, before it is asked; None if there is nothing to load."""
        model = self.agent.model
        return model.start() if isinstance(model, LocalModel) else None

    def post(self, content: Content, mode: Mode = "queue") -> Receipt:
        """Leave a message. When this is back, it is kept."""
        receipt = self.session.post(content, mode)
        self.serve()
        return receipt

    def use_model(self, name: str) -> None:
        """Ask another model from the next turn on. Raises `SettingsError`."""
        self.agent = make_agent(self.configuration, Choice(name, "chosen in the chat"), can_ask=self._can_ask)
        self.session.agent = self.agent

    async def switch(self, session_id: str | None) -> Session:
        """Open another session, and only then leave this one. Raises `SessionOwned` and other errors of the store."""
        old = self.session
        new = await run_blocking_async(self.agent.session, session_id, self.store, token=NEVER)
        self.session, self._server = new, None
        await run_blocking_async(old.close, _PATIENCE, token=NEVER)
        return new

    def keep(self, texts: Sequence[str]) -> None:
        """Keep messages that came when the session had been closed: they wait in it for the next time."""
        with self.agent.session(self.session.id, self.store) as session:
            for text in texts:
                session.post(text)

    def describe(self) -> list[Said]:
        """What the session is, for somebody who has just opened it: what was said last, and what waits."""
        session = self.session
        if session.turn is None:
            return [Said("A new session.", "dim")]
        said = [Said(f"Session {session.id}, where you left it:", "dim")]
        turns = read_turns(self.store, session.id)
        said += [of_user(text) for text in turns[-1].texts] if turns else []
        if session.text:
            said.append(Said(session.text))
        if len(session.inbox):
            said.append(Said(f"{count(len(session.inbox), 'message waits', 'messages wait')} in it.", "dim"))
        return said

    def farewell(self) -> list[str]:
        """Where the conversation is, and how to go on with it; nothing if there was none."""
        name = self.session.id
        if not self.store.read(name, limit=1):
            return []
        number = len(self.store.inbox(name))
        waiting = f" {count(number, 'message waits', 'messages wait')} in it." if number else ""
        return [f"Session {plain(name)} is saved.{waiting}", f"To go on: halter --session {shlex.quote(plain(name))}"]
