"""Stores with hooks, stores as a crash leaves them, and what waits in a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from halter.errors import StoreFull
from halter.events import Event
from halter.session.log import SessionState
from halter.stores import MemoryStore, Store, Write
from tests.support.sessions import kinds


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
