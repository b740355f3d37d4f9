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

Python runs signal handlers in the main thread, when that gets to it: never, if it is stuck. So signals
are heard twice. The system writes each of them into a pipe (``signal.set_wakeup_fd``), and a thread that
was started beforehand reads it, keeps the clock and does everything that has to be done, since
starting a thread in a handler can deadlock. The handler itself only raises, once, to get the program
out of its block; where asyncio runs, it cancels the tasks instead, for an exception out of nowhere is not
how tasks expect to be ended. A program that knows how to end what it does says so with ``on_signal``, and nothing is
raised. As that thread needs Python's lock like any other, ``faulthandler``, which does not,
stands behind it: code that never lets go of that lock is ended too, two seconds later and with code 1.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import socket
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
_HANGUP: Final = "SIGHUP"
# An exit that is done sooner than this has nothing to say.
_QUIET: Final = 0.3
_BACKSTOP: Final = 2.0
_NAMED: Final = 3
_WAKE: Final = b"\0"  # no signal has this number


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
        on_signal: Callable[[int], bool] | None = None,
    ) -> None:
        self.token = token if token is not None else CancellationToken(name="process")
        self._timeout = check_seconds("timeout", timeout)
        self._say = say if say is not None else _say_on_stderr
        # Called in the handler, for the first signal. True: this ends what the program does, and nothing is raised.
        self.on_signal = on_signal
        self._intent: Intent | None = None
        self._stages: list[str] = []
        self._has_raised = False
        self._is_announced = threading.Event()
        # Bytes: the number of each signal, written by the system, and _WAKE for everything else.
        self._ear, self._mouth = socket.socketpair()
        self._mouth.settimeout(0)  # set_wakeup_fd() wants it so

    # -- the program's side ---------------------------------------------------------------------

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="halter-exit", daemon=True).start()
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
            for number in _SIGNALS:
                signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.intend(_exit_code(exc), _why(exc))
        with self.stage("processes to end"):
            families.stop_all(min(families.EXIT_GRACE, self.remaining()))
        if self._intent is not None and self._has_raised:
            self._is_announced.wait(_QUIET)  # so that a quick exit does not overtake the word of it
            raise SystemExit(self._intent.code) from None

    def intend(self, code: int, why: str) -> None:
        """Say that the program wants to exit; the first one who does starts the clock."""
        self._start_clock(Intent(code, why, time.monotonic()))
        with contextlib.suppress(BlockingIOError):  # full: then there is enough to wake up for
            self._mouth.send(_WAKE)

    def _start_clock(self, intent: Intent) -> None:
        if self._intent is None:
            self._intent = intent
            # In whichever thread is first: the watching one may never get Python's lock again.
            faulthandler.dump_traceback_later(self._timeout + _BACKSTOP, exit=True, file=2)

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
        if self._has_raised:
            return  # it was asked again, which the watching thread has heard
        self._has_raised = True
        self.intend(128 + number, signal.Signals(number).name)
        if self.on_signal is not None and self.on_signal(number):
            return
        if not _cancel_tasks_of_running_loop():
            raise SystemExit(128 + number)

    # -- the watching thread's side -------------------------------------------------------------

    def _watch(self) -> None:
        signals = 0
        while self._intent is None:
            for number in self._heard():
                signals += 1
                self._start_clock(Intent(128 + number, signal.Signals(number).name, time.monotonic()))
        intent = self._intent
        self.token.cancel("shutdown", detail=intent.why)
        is_signal = intent.why in signal.Signals.__members__
        if is_signal:
            self._tell(f"Shutting down ({intent.why})…")
            self._is_announced.set()
        # Signals from now on that mean: at once. The first one may have been counted, or still be waiting to be.
        more = 2 - signals if is_signal and intent.why != _HANGUP else 1
        more = self._listen(more, min(_QUIET, self.remaining()))
        if more > 0:
            self._tell(f"Shutting down: waiting for {self._waiting_for()}, at most {self._timeout:g} s…")
            more = self._listen(more, self.remaining())
        self._force(intent, f"after {self._timeout:g} s" if more > 0 else "as asked again")

    def _listen(self, wanted: int, seconds: float) -> int:
        """Count *wanted* signals down, for *seconds* at the most, and return how many have not come."""
        end = time.monotonic() + seconds
        while wanted > 0 and select.select([self._ear], [], [], max(0.0, end - time.monotonic()))[0]:
            # A terminal that is closed says so once for the session and once for the group: nobody has asked twice.
            wanted -= sum(signal.Signals(number).name != _HANGUP for number in self._heard())
        return wanted

    def _heard(self) -> list[int]:
        """Wait for the next byte; gives the signal that it stands for, if that is one of those that end the program."""
        # The system writes every signal that has a handler: somebody else's SIGWINCH or SIGALRM is no wish to leave.
        return [number for number in self._ear.recv(1) if number in _SIGNALS]

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


def _cancel_tasks_of_running_loop() -> bool:
    """Have the tasks of the loop that this thread is in cancelled. False if it is in none."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return False
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return False
    loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
    return True


def _say_on_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _exit_code(exc: BaseException | None) -> int:
    if exc is None:
        return 0
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
