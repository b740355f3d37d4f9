"""The session of the chat, served on Halter's background loop.

So the input line never waits for a tool or a store.
"""

from __future__ import annotations

import shlex
import threading
import time
from typing import TYPE_CHECKING, Final

from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.one_shot_event import OneShotEvent
from halter.cli.agent_factory import PROCESS_TOOLS, make_agent
from halter.cli.chat.notices import Notice, of_user
from halter.cli.chat.past_turns import read_turns
from halter.cli.chat.screen.status_line import SessionFigures
from halter.cli.model_choice import ModelChoice
from halter.cli.program_name import program_name
from halter.errors import HalterError, SessionClosed
from halter.models.local.model import LocalModel
from halter.session import background_loop
from halter.stores.writer import writer_of
from halter.views.text import count, single_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from halter.cli.settings import Configuration
    from halter.events import Mode
    from halter.session.inbox import Content, Receipt
    from halter.session.session import Session
    from halter.stores.base import Store

__all__ = ["SessionHost"]

_CLOSE_TIMEOUT: Final = 5.0  # seconds to close a session when another is opened


class SessionHost:
    """One session at a time."""

    def __init__(
        self,
        configuration: Configuration,
        choice: ModelChoice,
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
        self._closing: list[OneShotEvent] = []  # one for each previous session that is being closed

    def serve(self) -> None:
        """Serve the session; also again after a failure."""
        if self._server is None or not self._server.is_alive():
            self._server = threading.Thread(
                target=self._serve, args=(self.session,), name="halter-chat-session", daemon=True
            )
            self._server.start()

    def _serve(self, session: Session) -> None:
        try:
            background_loop.run(session.serve, lambda _error: None)
        except SessionClosed:
            pass
        except HalterError as error:
            self.on_failure(error)

    def load_model(self) -> Future[object] | None:
        """Start to load a model that runs on this machine; None if there is nothing to load."""
        model = self.agent.model
        return model.start() if isinstance(model, LocalModel) else None

    def post(self, content: Content, mode: Mode = "queue") -> Receipt:
        """Post a message. It is stored when this returns."""
        receipt = self.session.post(content, mode)
        self.serve()
        return receipt

    def figures(self) -> SessionFigures:
        """What the status line shows of the session."""
        session, settings = self.session, self.configuration.settings
        has_processes = bool(PROCESS_TOOLS & set(self.agent.tools))
        sandbox = settings.sandbox if has_processes else ""
        return SessionFigures(self.agent.model.name, session.context, session.usage, sandbox, settings.approve)

    def use_model(self, name: str) -> None:
        """Use another model from the next turn on. Raises `SettingsError`."""
        self.agent = make_agent(self.configuration, ModelChoice(name, "chosen in the chat"), can_ask=self._can_ask)
        self.session.agent = self.agent

    async def switch(self, session_id: str | None) -> Session:
        """Open another session; returns the previous one, which is still open.

        Raises `SessionOwned` and other errors of the store.
        """
        new = await run_in_thread(lambda: self.agent.session(session_id, self.store))
        old, self.session, self._server = self.session, new, None
        return old

    async def close_previous(self, session: Session) -> None:
        """Close a session that is no longer shown. `wait_for_previous()` waits for it, also if this is cancelled."""
        closed = OneShotEvent()
        self._closing.append(closed)

        def close() -> None:
            try:
                session.close(_CLOSE_TIMEOUT)
            finally:
                self._closing.remove(closed)
                closed.set()

        await run_in_thread(close)

    def wait_for_previous(self, timeout: float) -> None:
        """Block until the previous sessions are closed, for at most *timeout* seconds."""
        end = time.monotonic() + timeout
        for closed in list(self._closing):
            closed.wait(max(end - time.monotonic(), 0.0))

    def store_messages(self, texts: Sequence[str], held: Sequence[str] = ()) -> None:
        """Store messages for the next run, after the session was closed. Those of *held* start no turn."""
        with self.agent.session(self.session.id, self.store) as session:
            for text in held:
                session.post(text)
            if held:
                session.stop(detail="the chat was closed")
            for text in texts:
                session.post(text)

    def describe(self) -> list[Notice]:
        """A summary for a session that was just opened: the last messages, and what is queued."""
        session = self.session
        if session.turn is None:
            return [Notice("New session.", "dim")]
        notices = [Notice(f"Session {session.id}, where you left off:", "dim")]
        turns = read_turns(self.store, session.id)
        notices += [of_user(text) for text in turns[-1].texts] if turns else []
        if session.text:
            notices.append(Notice(session.text))
        if len(session.inbox):
            notices.append(Notice(f"{count(len(session.inbox), 'message is queued', 'messages are queued')}.", "dim"))
        return notices

    def _store_flag(self) -> str:
        """The option that leads to the same store, if it was given."""
        is_given = self.configuration.origins["store"] == "--store"
        return f" --store {shlex.quote(self.configuration.settings.store)}" if is_given else ""

    def wait_until_written(self) -> None:
        """Block until the store has everything of this session: `close()` returns when its time is over."""
        writer = writer_of(self.store)
        writer.run(writer.job(lambda: None))  # it runs behind what is waiting

    def closing_lines(self) -> list[str]:
        """Where the conversation is saved and how to continue it; empty if there was none."""
        name = self.session.id
        if not self.store.read(name, limit=1):
            return []
        number = next((info.waiting for info in self.store.sessions() if info.id == name), 0)
        waiting = f" {count(number, 'message is queued', 'messages are queued')}." if number else ""
        return [
            f"Session {single_line(name)} is saved.{waiting}",
            f"To continue: {program_name()}{self._store_flag()} --session {shlex.quote(single_line(name))}",
        ]
