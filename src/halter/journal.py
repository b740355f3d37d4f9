"""One session's log, and all that follows from it: the inbox, the history, and those who listen.

Whatever changes a session is an event, and goes through `append()`: it is checked, written to the store, and only then
taken into memory and told to the listeners. So what anybody has seen is durable, and what could not be written did not
happen.

The lock. It is held to decide and to write, never while a model, a tool or a callback runs. A signal handler may
interrupt a thread that holds it and come back here in the same thread; therefore it is re-entrant, and an `append()`
that finds another one at work below it writes to the store (one indivisible operation there) and leaves the rest to
that one, which goes by the events' numbers. What the two share is changed by indivisible operations only.
"""

from __future__ import annotations

import heapq
import threading
import time
from typing import TYPE_CHECKING, Final

from halter.errors import StoreError
from halter.events import Event, MessageApplied
from halter.history import History
from halter.inbox import Inbox
from halter.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from halter.events import EventData
    from halter.stores.store import Lease, Store

# What is not needed to know how a session stands, unless it broke off in the middle of an answer.
_PASSING: Final = ("text.delta", "reasoning.delta", "tool.progress", "tool.cancelling")
# What decides which words an open request has shown.
_OF_WORDS: Final = ("request.started", "request.retry", "text.delta")


class Journal:
    """The log of one session, owned by this process."""

    __slots__ = (
        "_arrived",
        "_is_at_work",
        "_last",
        "_listeners",
        "history",
        "inbox",
        "lease",
        "lock",
        "session",
        "store",
    )

    def __init__(self, session: str, store: Store, lease: Lease) -> None:
        self.session = session
        self.store = store
        self.lease = lease
        self.lock = threading.RLock()
        self.history = History()
        self.inbox = Inbox(self.decide)
        self._listeners: tuple[Listener, ...] = ()
        self._arrived: list[tuple[int, Event]] = []  # written, and not taken in yet: a heap, by number
        self._is_at_work = False
        self._last = 0  # the number of the newest event that was taken in; the log may have passing ones behind it

    def load(self) -> None:
        """Take in what the store has."""
        for event in self.store.read(self.session, without=_PASSING):
            self._take(event)
        request = self.history.open_request
        if request:
            # It broke off while a model was answering: the words that were shown are in the log, and only there. The
            # whole request is taken again, for whether a retry came before a word or behind it makes a difference.
            for event in self.store.read(self.session, request - 1):
                if event.kind in _OF_WORDS:
                    self._take(event)

    def append(self, turn: str, *data: EventData) -> None:
        """Write, then take in and tell. Raises a `StoreError` if it could not be written."""
        now = time.time()
        events = [Event(0, now, self.session, turn, each) for each in data]
        with self.lock:
            self.history.check(data)
            is_inner, self._is_at_work = self._is_at_work, True
            try:
                self.store.append(self.lease, events)
                if is_inner or self._arrived:
                    for event in events:
                        heapq.heappush(self._arrived, (event.seq, event))
                else:
                    self._tell(events)  # what a handler adds meanwhile has higher numbers, and comes behind
            finally:
                self._is_at_work = is_inner
            if not is_inner:
                self._take_all()

    def append_in(self, turn: str, *data: EventData) -> bool:
        """Write what a turn has to say, if it still runs; what a turn says that is over goes nowhere."""
        with self.lock:
            if not self.history.is_open(turn):
                return False
            self.append(turn, *data)
            return True

    def close_turn(self, turn: str, seal: Callable[[], None]) -> bool:
        """Have a running turn sealed from outside of it; False if that can not be done now. A boundary."""
        with self.lock:
            if self._is_at_work or not self.history.is_open(turn):
                return False
            try:
                seal()
            except StoreError:
                return False
            return True

    def decide(self, what: Callable[[], list[EventData]]) -> bool:
        """Write what a function says, with nobody in between; False if it says nothing."""
        with self.lock:
            data = what()
            if data:
                self.append("", *data)
            return bool(data)

    # -- together with other sessions: see `bundle` ------------------------------------------------------------------

    def hold(self) -> bool:
        """Take the lock, to write together with others; False if that is not possible at once, and then it is free."""
        if not self.lock.acquire(blocking=False):
            return False
        if self._is_at_work or self._arrived:
            self.lock.release()
            return False
        self._is_at_work = True  # from here on what a handler adds is only written, as by an append() below it
        return True

    def numbered(self, turn: str, data: Sequence[EventData]) -> list[Event]:
        """Make events of what is to be written, with the numbers that come next; if they do not, the store refuses."""
        self.history.check(data)
        now = time.time()
        return [Event(self._last + place, now, self.session, turn, each) for place, each in enumerate(data, 1)]

    def take_written(self, events: list[Event]) -> None:
        """Take in what was written, and tell."""
        self._tell(events)
        self._is_at_work = False
        self._take_all()

    def let_go(self, untaken: Iterable[Event] = ()) -> None:
        """Give the lock back. What was written and is *untaken* is taken in with what comes next."""
        for event in untaken:
            heapq.heappush(self._arrived, (event.seq, event))
        self._is_at_work = False
        self.lock.release()

    def _take_all(self) -> None:
        # A handler that comes between the last look at the list and the end of this finds that nobody is at work.
        while self._arrived:
            self._is_at_work = True
            try:
                while self._arrived:
                    self._tell([heapq.heappop(self._arrived)[1]])
            finally:
                self._is_at_work = False

    def _tell(self, events: list[Event]) -> None:
        taken: list[Event] = []
        try:
            for event in events:
                taken.append(event)
                self._take(event)
        except BaseException:  # a Ctrl+C: the others are written, and are taken in with the next
            for event in events[len(taken) :]:
                heapq.heappush(self._arrived, (event.seq, event))
            raise
        finally:
            for listener in self._listeners:
                listener.put(taken)

    def _take(self, event: Event) -> None:
        self._last = event.seq
        message = self.inbox.take(event)
        if message is None:
            self.history.take(event)
        elif isinstance(event.data, MessageApplied) and event.data.question:
            self.history.add_answer(message)
        else:
            self.history.add_user(event.turn, message)

    # -- listeners ---------------------------------------------------------------------------------------------------

    def listen(self, most_waiting: int, only: Collection[type] = ()) -> Listener:
        """Hear of every event from now on, or of some kinds."""
        listener = Listener(most_waiting, self._leave, only)
        with self.lock:
            self._listeners = (*self._listeners, listener)
        return listener

    def _leave(self, listener: Listener) -> None:
        with self.lock:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

    def end_listeners(self) -> None:
        """Tell all listeners that nothing more will come."""
        for listener in self._listeners:
            listener.end()
