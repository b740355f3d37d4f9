"""What the tests of sessions share: turns in the background, waiting for events, stores with hooks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

from halter import Agent, Session, Turn
from halter.errors import StoreFull
from halter.events import Event, EventData
from halter.models import Backoff, Message, ToolCall, UserMessage
from halter.session.log import SessionState, SessionView
from halter.session.subscription import Subscription
from halter.stores import MemoryStore, Store, Write
from halter.stores.writer import _Claim
from halter.testing import ScriptedModel
from tests.helpers import wait_until

AT_MOST = 10.0


def agent_of(*script: Any, tools: Sequence[Any] = (), **options: Any) -> Agent:
    """Make an agent whose model follows a script, and which retries at once."""
    agent = Agent(ScriptedModel(*script), tools=tools, **options)
    agent.backoff = Backoff(base=0.0)
    return agent


def session_of(*script: Any, tools: Sequence[Any] = (), **options: Any) -> Session:
    return agent_of(*script, tools=tools, **options).session()


def model_of(session: Session) -> ScriptedModel:
    assert isinstance(session.agent.model, ScriptedModel)
    return session.agent.model


def call(name: str, call_id: str = "c1", arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id, name, arguments)


def kinds(events: Iterable[Event]) -> list[str]:
    return [event.kind for event in events]


def data_of(session: Session, kind: str) -> list[Any]:
    """What the log has of one kind of event."""
    return [event.data for event in session.events() if event.kind == kind]


def said(messages: Iterable[Message]) -> list[str]:
    """The texts of the user's messages, in order."""
    return [message.text for message in messages if isinstance(message, UserMessage)]


def wait_for(listener: Subscription, kind: str, count: int = 1) -> Event:
    """Wait in this thread for the next event of a kind."""
    while True:
        event = listener.get(AT_MOST)
        assert event is not None, f"no {kind} within {AT_MOST} s"
        count -= event.kind == kind
        if count == 0:
            return event


async def next_event(listener: Subscription, kind: str) -> Event:
    """Wait in this loop for the next event of a kind; the test around it is bounded."""
    async for event in listener:
        if event.kind == kind:
            return event
    raise AssertionError(f"the listener ended without {kind}")


class Background:
    """Something that runs in a thread, and what came of it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        """Wait for the end, with a bound."""
        self._thread.join(AT_MOST)
        assert not self._thread.is_alive(), f"still at work after {AT_MOST} s"
        if self._error is not None:
            raise self._error
        return self._value


class RunningTurn(Background):
    """A `session.run()` in a thread."""

    def __init__(self, session: Session, text: Any = "begin") -> None:
        super().__init__(lambda: session.run(text))

    def end(self) -> Turn:
        turn = self.result()
        assert isinstance(turn, Turn)
        return turn


class HookedStore(MemoryStore):
    """A real store that tells of every write, as it becomes durable: there a signal, or the end, can come.

    *before* and *after* get the kinds of the events. What *before* raises is the store's own failure.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[list[str]], object] = lambda _: None
        self.after: Callable[[list[str]], object] = lambda _: None

    def commit(self, writes: Sequence[Write]) -> None:
        written = [kind for write in writes for kind in kinds(write.events)]
        self.before(written)
        super().commit(writes)
        self.after(written)

    def once(self, kind: str, do: Callable[[], object]) -> None:
        """Do something once, as soon as an event of this kind is written, in the thread that writes it."""

        def look(written: list[str]) -> None:
            if kind in written:
                self.after = lambda _: None
                do()

        self.after = look

    def fill_up(self, kind: str) -> None:
        """Have no space for anything, from the first event of this kind on."""

        def look(written: list[str]) -> None:
            if kind in written:
                self.before = refuse
                refuse(written)

        def refuse(_: list[str]) -> None:
            raise StoreFull("no space is left")

        self.before = look

    def empty(self) -> None:
        """Have space again."""
        self.before = lambda _: None


class WriterPaused:
    """In this block no command of a session's store runs: they wait, in the order in which they were given."""

    def __init__(self, session: Session) -> None:
        self._writer = session._log.writer

    def __enter__(self) -> Self:
        claim = _Claim()
        wait_until(lambda: self._writer._claim.setdefault("", claim) is claim)
        return self

    def __exit__(self, *_: object) -> None:
        self._writer._claim.clear()
        self._writer.wake()

    def start(self, work: Callable[[], Any]) -> Background:
        """Start something in a thread, and wait until its command is in line."""
        before = len(self._writer._commands)
        background = Background(work)
        wait_until(lambda: len(self._writer._commands) > before)
        return background


def store_with(events: Iterable[Event]) -> MemoryStore:
    """Make a store with these events in it and no owner, as a crash leaves it."""
    store = MemoryStore()
    copies: dict[str, list[Event]] = {}
    for event in events:
        log = copies.setdefault(event.session, [])
        log.append(Event(len(log) + 1, event.time, event.session, event.turn, event.data))
    for session, log in copies.items():
        lease = store.acquire(session)
        store.commit([Write(lease, log, 0)])
        store.release(lease)
    return store


def waiting_in(store: Store, session: str) -> list[str]:
    """The ids of the messages that wait in a session, by its log."""
    state = SessionState()
    for event in store.read(session):
        state.apply(event)
    return [message.id for message in state.inbox]


def replay(session: Session) -> Iterable[tuple[EventData, list[Message]]]:
    """Give the history after each event of a session's log, as it was at that instant."""
    state = SessionState()
    for event in session.events():
        state.apply(event)
        yield event.data, SessionView(state).history.messages
