"""Commands: what the writer of a store runs, and how callers wait for the result.

A command is settled in the writer's thread, once its events are durable or could not be written. Callers wait in a
thread (`block()`) or in a task (`wait_async()`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from halter.cancel.wake_signal import WakeSignal

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from halter.events import Event
    from halter.stores.base import Lease, Store

_log = logging.getLogger(__name__)
R = TypeVar("R")


class CommandTransaction(Protocol):
    """What a command works with: see `halter.session.log`."""

    events: list[Event]
    shows: list[Callable[[], object]]
    effects: list[Callable[[], object]]
    waiting: int
    is_durable: bool


class Log(Protocol):
    """One session, as the writer sees it."""

    store: Store
    lease: Lease

    def begin(self) -> Any:
        """A transaction. Loads the state from the store first, if an earlier commit has failed."""
        ...

    def publish(self, events: list[Event]) -> None:
        """Show what is durable now. Nobody changes the list any more."""
        ...

    def discard(self) -> None:
        """The state has events in it that are not in the store: load it again before it is used."""
        ...


class Command(Generic[R]):
    """A decision about one session, or a job for the store alone. It runs once, in the order of submission."""

    __slots__ = ("_future", "_loop", "_traceback", "_woken", "decide", "error", "is_done", "log", "on_error", "result")

    def __init__(
        self, log: Log | None, decide: Callable[[Any], R], on_error: Callable[[Exception], object] | None = None
    ) -> None:
        self.log = log
        self.decide = decide
        self.on_error = on_error  # called with the error of a command that nobody waits for
        self.result: R
        self.error: Exception | None = None
        self.is_done = False
        self._woken: WakeSignal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._future: asyncio.Future[None] | None = None
        self._traceback: TracebackType | None = None

    def block(self) -> None:
        """Block this thread until it is done."""
        woken = self._woken = WakeSignal()
        if not self.is_done:  # checked after `_woken` was set: settle() does both in the other order
            woken.wait()

    async def wait_async(self) -> None:
        """Suspend this task until it is done. It runs also if the task is cancelled."""
        if self.is_done:
            return
        self._loop = loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        if not self.is_done:
            await self._future

    def outcome(self) -> R:
        """Return the result, or raise the error."""
        if self.error is not None:
            try:
                raise self.error.with_traceback(self._traceback)
            finally:
                self.error = self._traceback = None  # they refer to this frame
        return self.result


def settle(commands: list[Command[Any]]) -> None:
    """Mark commands as done and wake their callers, each event loop once."""
    for command in commands:  # a whole batch may share one error, and each raise adds to its traceback
        command._traceback = command.error.__traceback__ if command.error is not None else None
    by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
    for command in commands:
        command.is_done = True
        if command._woken is not None:
            command._woken.set()
        loop, future = command._loop, command._future
        if loop is not None and future is not None:
            by_loop.setdefault(loop, []).append(future)
        if command.error is not None and command.on_error is not None:
            run_effect(functools.partial(command.on_error, command.error))
            command.error = command._traceback = None  # they refer to this frame
    for loop, futures in by_loop.items():
        try:
            loop.call_soon_threadsafe(_wake_all, futures)
        except RuntimeError:
            _log.debug("an event loop is closed: nobody is left to wake")


def _wake_all(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def run_effect(effect: Callable[[], object]) -> None:
    """Run an effect. A boundary: its error must not prevent the others."""
    try:
        effect()
    except Exception:  # noqa: BLE001
        _log.exception("an effect of a command failed")
