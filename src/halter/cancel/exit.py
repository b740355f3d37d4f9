"""A program that ends in bounded time, whatever its threads and children do.

    with ExitGuard(timeout=5.0) as guard:
        main(guard.token)

The clock starts with the *intent* to exit: a SIGINT, SIGTERM or SIGHUP, a ``sys.exit``, an exception
that leaves the block, or its end; whichever is first. From then on there is one deadline for all
that is left to do, and every stage can ask how much of it remains. The token is cancelled with
reason "shutdown". The guard says at once that it is shutting down, and what it waits for.

If the process is still there at the deadline, or a second signal asks again, it says what held it
up, kills what it has started, flushes its output and leaves with the code of the intent, or with
``FORCED`` where that would have been 0: a forced exit never looks like a good one.

Signal handlers do next to nothing: they put the intent into a queue and raise. A thread that was
started beforehand does the rest, since starting one in a handler can deadlock. As that thread
needs Python's lock like any other, ``faulthandler``, which does not, stands behind it: code that
never lets go of that lock is ended too, one second later and with code 1.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from halter.cancel import families
from halter.cancel.seconds import check_seconds
from halter.cancel.token import CancellationToken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

FORCED: Final = 70  # "internal software error" of sysexits.h
_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# An exit that is done sooner than this has nothing to say.
_QUIET: Final = 0.1
_BACKSTOP: Final = 1.0
_NAMED: Final = 3


class Intent(NamedTuple):
    """That, why, since when and with which code the program wants to end."""

    code: int
    why: str
    since: float


class ExitGuard:
    """The block that it guards is the program: leaving the block means to exit."""

    def __init__(
        self,
        timeout: float = 5.0,
        *,
        token: CancellationToken | None = None,
        say: Callable[[str], object] | None = None,
    ) -> None:
        self.token = token if token is not None else CancellationToken(name="process")
        self._timeout = check_seconds("timeout", timeout)
        self._say = say if say is not None else _say_on_stderr
        self._intents: queue.SimpleQueue[Intent] = queue.SimpleQueue()
        self._intent: Intent | None = None
        self._stages: list[str] = []
        self._old_handlers: dict[int, object] = {}

    # -- the program's side ---------------------------------------------------------------------

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="halter-exit", daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._old_handlers[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.intend(_exit_code(exc), _why(exc))
        with self.stage("processes to end"):
            families.stop_all(min(families.EXIT_GRACE, self.remaining()))
        if isinstance(exc, KeyboardInterrupt):
            raise SystemExit(130) from None

    def intend(self, code: int, why: str) -> None:
        """Say that the program wants to exit; the first one who does starts the clock."""
        if self._intent is None:
            self._start_clock(Intent(code, why, time.monotonic()))

    def _start_clock(self, intent: Intent) -> None:
        # Here and not in the watching thread, which may never get Python's lock again.
        faulthandler.dump_traceback_later(self._timeout + _BACKSTOP, exit=True, file=2)
        self._intent = intent
        self._intents.put(intent)

    def remaining(self) -> float:
        """Seconds left until the deadline; all of them as long as nobody wants to exit."""
        if self._intent is None:
            return self._timeout
        return max(0.0, self._intent.since + self._timeout - time.monotonic())

    @contextlib.contextmanager
    def stage(self, what: str) -> Iterator[float]:
        """Name what is being waited for in this block; gives the seconds that are left for it."""
        self._stages.append(what)
        try:
            yield self.remaining()
        finally:
            self._stages.remove(what)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        intent = Intent(128 + number, signal.Signals(number).name, time.monotonic())
        if self._intent is not None:
            self._intents.put(intent)  # asked again: the watching thread leaves at once
            return
        self._start_clock(intent)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    # -- the watching thread's side -------------------------------------------------------------

    def _watch(self) -> None:
        intent = self._intents.get()
        self.token.cancel("shutdown", detail=intent.why)
        is_asked = intent.why in signal.Signals.__members__
        if is_asked:
            self._tell(f"Shutting down ({intent.why})…")
        is_asked_again = self._is_asked_again(min(_QUIET, self.remaining()))
        if not is_asked_again:
            self._tell(f"Shutting down: waiting for {self._waiting_for()}, at most {self._timeout:g} s…")
            is_asked_again = self._is_asked_again(self.remaining())
        self._force(intent, "as asked again" if is_asked_again else f"after {self._timeout:g} s")

    def _is_asked_again(self, seconds: float) -> bool:
        try:
            self._intents.get(timeout=seconds)
        except queue.Empty:
            return False
        return True

    def _waiting_for(self) -> str:
        threads = [
            f"thread {thread.name}"
            for thread in threading.enumerate()
            if not thread.daemon and thread is not threading.main_thread()
        ]
        if len(threads) > _NAMED:
            threads[_NAMED:] = [f"{len(threads) - _NAMED} more threads"]
        return ", ".join([*self._stages, *threads]) or "the program to end"

    def _force(self, intent: Intent, when: str) -> None:
        self._tell(f"Forced exit {when}; still waiting for {self._waiting_for()}.")
        families.stop_all(0.0)
        _flush()
        os._exit(intent.code or FORCED)

    def _tell(self, text: str) -> None:
        """Say something to the user. A boundary: a closed terminal must not keep us here, nor can it be told."""
        with contextlib.suppress(Exception):
            self._say(text)


def _say_on_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _exit_code(exc: BaseException | None) -> int:
    if exc is None:
        return 0
    if isinstance(exc, KeyboardInterrupt):
        return 130
    if isinstance(exc, SystemExit):
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    return 1


def _why(exc: BaseException | None) -> str:
    return "the program has ended" if exc is None else f"the program has ended by {type(exc).__name__}"


def _flush() -> None:
    """Write out what is buffered. A boundary: it may go to somebody who is gone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
