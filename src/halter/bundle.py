"""What the sessions of one event loop write in the same turn of the loop, written in one go.

A transaction costs more than what is written in it. So a session that is not the only one to write leaves what it has
here until the loop's next turn; what that is, is asked for then, with the session's lock held. One that is alone writes
at once: whoever stops it waits for nobody.

What can not be written with the rest, for somebody else holds a lock or the store refuses, is written alone.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Final, cast

from halter.listener import awake

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.events import Event, EventData
    from halter.journal import Journal
    from halter.stores.store import GroupingStore

_MOST: Final = 128  # sessions in one go: the loop has other work in between
_MOST_LATE: Final = 1_024  # who wait for their ends, and go on when all that end are written; or they are so many
_LATER: Final = 0.25  # seconds, at most, that anybody waits for others


class Entry:
    """What one turn has to write.

    *say* gives it, in the last moment, and *done* is told what that was, when it is written: both with the lock of the
    journal held. If it can not be written, *done* is told why.
    """

    __slots__ = ("_done", "_said", "_say", "_turn", "bell", "journal")

    def __init__(
        self,
        journal: Journal,
        turn: str,
        say: Callable[[], list[EventData]],
        done: Callable[[list[EventData], Exception | None], object],
    ) -> None:
        self.journal = journal
        self.bell: asyncio.Future[None] | None = None  # rings when it was its turn
        self._turn = turn
        self._say = say
        self._said: list[EventData] | None = None
        self._done = done

    def write(self) -> None:
        """Write it, alone. A boundary: what fails is told."""
        try:
            with self.journal.lock:
                said = self._ask()
                if said:
                    self.journal.append(self._turn, *said)
                self._end(None)
        except Exception as error:  # noqa: BLE001
            self._end(error)

    def events(self) -> list[Event]:
        """What it has to say, as the events that come next; the journal is held."""
        return self.journal.numbered(self._turn, self._ask())

    def take(self, events: list[Event]) -> None:
        """Take in what was written; the journal is held. A boundary: what fails is told."""
        try:
            self.journal.take_written(events)
            self._end(None)
        except Exception as error:  # noqa: BLE001
            self._end(error)

    def _ask(self) -> list[EventData]:
        if self._said is None:
            self._said = self._say()
        return self._said

    def _end(self, error: Exception | None) -> None:
        said, self._said = self._said or [], None
        self._done(said, error)


class Bundle:
    """What waits to be written in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._waiting: list[Entry] = []
        self._first: Journal | None = None  # whose turn was the first to write something, in this turn of the loop
        self._ends = 0  # of those that wait, how many are waited for
        self._written: list[Entry] = []  # and somebody waits for each
        self._quiet: asyncio.Event | None = None

    def add(self, entry: Entry) -> None:
        """Write it in the loop's next turn."""
        self._waiting.append(entry)
        self._expect(entry.journal)

    def has_others(self, journal: Journal) -> bool:
        """Whether others beside it write in this turn of the loop, so that it should too; for them, it does already."""
        if not hasattr(journal.store, "append_all"):
            return False
        is_alone = self._first is None or (self._first is journal and len(self._waiting) <= 1)
        self._expect(journal)
        return not is_alone

    async def write(self, entry: Entry) -> None:
        """Write it in the loop's next turn, and wait for that. However this is left, it is written.

        Where many end, all is written first, and heard of by those who listen, before any of them goes on.
        """
        self.add(entry)
        self._ends += 1
        entry.bell = self.loop.create_future()
        try:
            await entry.bell
        except BaseException:  # a foreign cancellation, which waits for nobody
            if entry in self._waiting:
                self._waiting.remove(entry)
                self._ends -= 1
                entry.write()
            raise

    @property
    def is_ending(self) -> bool:
        """Whether ends wait to be written. There may always be words: they are not waited for."""
        return self._ends > 0

    async def quiet(self) -> None:
        """Wait until no end waits to be written, to do what is less urgent; at most 0.25 s."""
        if not self.is_ending:
            return
        if self._quiet is None:
            self._quiet = asyncio.Event()
            self.loop.call_later(_LATER, self._quiet.set)
        await self._quiet.wait()

    def _expect(self, journal: Journal) -> None:
        if self._first is None:
            self._first = journal
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        waiting = self._waiting
        if len(waiting) > _MOST:  # ends first: a word that waits for them may be written with the end of its own turn
            waiting = sorted(waiting, key=_is_word)
        entries, self._waiting = waiting[:_MOST], waiting[_MOST:]
        self._first = None
        if self._waiting:
            self._expect(self._waiting[0].journal)
        with awake():
            try:
                for entry in _write_together(entries):
                    entry.write()
            finally:
                ended = [entry for entry in entries if not _is_word(entry)]
                self._written += ended
                self._ends -= len(ended)
                if not self.is_ending or len(self._written) >= _MOST_LATE:
                    self._let_go_on()

    def _let_go_on(self) -> None:
        written, self._written = self._written, []
        for entry in written:
            if entry.bell is not None and not entry.bell.done():
                entry.bell.set_result(None)
        if self._quiet is not None and not self.is_ending:  # behind them, for what they do now is waited for too
            self._quiet.set()
            self._quiet = None


def _is_word(entry: Entry) -> bool:
    return entry.bell is None  # nobody waits until it is written


def _write_together(entries: list[Entry]) -> list[Entry]:
    """Write in one go what can be written so; gives the rest."""
    if not entries[1:] or not hasattr(entries[0].journal.store, "append_all"):
        return entries
    store = cast("GroupingStore", entries[0].journal.store)
    held: dict[Entry, list[Event]] = {}
    rest: list[Entry] = []
    is_written = False
    try:
        for entry in entries:
            if entry.journal.store is store and entry.journal.hold():
                held[entry] = []
            else:
                rest.append(entry)
        try:
            for entry in held:
                held[entry] = entry.events()
            writings = [(entry.journal.lease, events) for entry, events in held.items() if events]
            if writings:
                store.append_all(writings)
        except Exception:  # noqa: BLE001  (whose fault it is will be seen)
            return [*held, *rest]
        is_written = True
        for entry in list(held):
            events = held.pop(entry)
            try:
                entry.take(events)
            finally:
                entry.journal.let_go()
        return rest
    finally:  # with a Ctrl+C, some may be left: they are taken in with the next
        for entry, events in held.items():
            entry.journal.let_go(events if is_written else ())


class _Here(threading.local):
    bundle: weakref.ref[Bundle] | None = None  # turns that run keep it, and the loop while something waits


_here = _Here()


def bundle_here() -> Bundle:
    """The bundle of the event loop that runs in this thread."""
    loop = asyncio.get_running_loop()
    bundle = _here.bundle() if _here.bundle is not None else None
    if bundle is None or bundle.loop is not loop:
        bundle = Bundle(loop)
        _here.bundle = weakref.ref(bundle)
    return bundle
