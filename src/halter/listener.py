"""Somebody who hears of a session's events: at their own pace, and without slowing anybody.

Each listener has a queue of its own. When it is full, what does not fit is left out, and the listener is told from
where to where: the log has it all.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import threading
from typing import TYPE_CHECKING

from halter.cancel.token import CancellationToken, call_in_loop
from halter.events import Event, Missed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import TracebackType
    from typing import Self


class Listener:
    """Iterate over it with `async for`, or call `get()` in a thread. Ends with the session, or by `close()`."""

    def __init__(self, most_waiting: int, leave: Callable[[Listener], None], only: Collection[type] = ()) -> None:
        self._only = frozenset(only)
        self._events: collections.deque[Event] = collections.deque()
        self._most = most_waiting
        self._leave = leave
        self._missed: Event | None = None
        self._ended = False
        self.hear: Callable[[list[Event]], object] | None = None
        """Told of what happens while it is written, in whatever thread, instead of having it wait; of the end, with an
        empty list. Has to be quick."""
        self._wake: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hear no more."""
        self._leave(self)
        self.end()

    def end(self) -> None:
        """Let the listener end, after what it has already."""
        self._ended = True
        if self.hear is not None:
            self.hear([])
        self._ring()

    def put(self, events: list[Event]) -> None:
        """Tell of what happened: by the journal, one piece after the other. Never waits."""
        if self._only:
            events = [event for event in events if type(event.data) in self._only]
        if self.hear is not None and events:
            self.hear(events)
        elif events:
            for event in events:
                self._add(event)
            self._ring()

    def _add(self, event: Event) -> None:
        if len(self._events) < self._most:
            self._missed = None
            self._events.append(event)
        elif self._missed is None:
            # In the queue's last place, and it grows there until there is room behind it.
            self._missed = Event(event.seq, event.time, event.session, "", Missed(event.seq, event.seq))
            self._events.append(self._missed)
        else:
            self._miss_more(self._missed, event)

    def _miss_more(self, missed: Event, event: Event) -> None:
        assert isinstance(missed.data, Missed)
        missed.data = Missed(missed.data.first, event.seq)
        if missed not in list(self._events)[-1:]:
            # It was taken out just now, before we changed it or after: told twice is better than not at all.
            self._missed = Event(event.seq, event.time, event.session, "", Missed(event.seq, event.seq))
            self._events.append(self._missed)

    def _ring(self) -> None:
        wake = self._wake
        if wake is not None:
            wake()

    def get(self, timeout: float | None = None) -> Event | None:
        """Wait for the next event in this thread; None when it has ended, or the time is over."""
        while not self._events and not self._ended:
            bell = CancellationToken(name="bell")
            self._wake = bell.cancel
            if not self._events and not self._ended and not bell.wait(timeout):
                break
        self._wake = None
        return self._events.popleft() if self._events else None

    def get_nowait(self) -> Event | None:
        """The next event, if there is one already."""
        return self._events.popleft() if self._events else None

    def __aiter__(self) -> Listener:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._wake, bell = loop_bell()
            try:
                if not self._events and not self._ended:
                    await bell
            finally:
                self._wake = None
        return self._events.popleft()


def loop_bell() -> tuple[Callable[[], None], asyncio.Future[None]]:
    """Something to await in this loop, and what rings it, from any thread."""
    loop = asyncio.get_running_loop()
    bell: asyncio.Future[None] = loop.create_future()

    def ring_here() -> None:
        if not bell.done():
            with contextlib.suppress(asyncio.InvalidStateError):  # a signal handler has rung it in between
                bell.set_result(None)

    def ring() -> None:
        if asyncio._get_running_loop() is loop and (  # noqa: SLF001  (exported; it raises nothing)
            _here.is_awake or asyncio.current_task(loop) is not None
        ):
            ring_here()
        else:
            call_in_loop(loop, ring_here)

    return ring, bell


class _Here(threading.local):
    is_awake = False


_here = _Here()


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Say that this thread's event loop is at work in here, and does not sleep: so nobody has to wake it.

    Within a task that is known. In a callback it is not: a signal handler that interrupts the loop's sleep looks the
    same. To wake it takes a system call for each event, and a pipe that such bytes fill up has no room for a signal's.
    """
    before, _here.is_awake = _here.is_awake, True
    try:
        yield
    finally:
        _here.is_awake = before
