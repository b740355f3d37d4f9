"""Ends a program in bounded time, whatever its threads and children do.

    with ExitGuard(timeout=5.0) as guard:
        main(guard.token)

The clock starts with the *intent* to exit: a SIGINT, SIGTERM or SIGHUP, a ``sys.exit``, an exception that leaves the
block, or the end of the block; whichever is first. From then on there is one deadline for everything that is left to
do, and every stage can ask how much of it remains. The token is cancelled with reason "shutdown". The guard reports at
once that it is shutting down, and what it waits for.

If the process is still running at the deadline, or a second signal comes, the guard reports what it was waiting for,
kills what the process has started, flushes its output and exits with the code ``FORCED``, whatever the intent was:
something was left behind, and neither 0 nor the code of a signal may hide that. A program that ends in time but leaves
something behind exits with the same code, without force: a process that cannot be killed, or a turn whose end could not
be written.

Python runs signal handlers in the main thread, and never if that thread is stuck. So there are two ways. The system
writes each signal into a socket (``signal.set_wakeup_fd``). A watching thread, started beforehand because starting a
thread in a handler can deadlock, reads it, keeps the deadline and does the work. It has another thread cancel the
token, because callbacks may hang. The handler only raises, once, to get the program out of its block. If an event loop
is running, it cancels the tasks instead: tasks do not expect an exception out of nowhere. If ``on_signal`` returns
True, the program ends by itself, and nothing is raised.
In a ``hold_signals()`` block the handler raises at the end of the block: see there. A forked child is not guarded: it
has the handlers and the socket, but not the thread, so it gets Python's own handlers back.

The watching thread needs the interpreter lock. Code that never releases it is ended by ``faulthandler``, which does not
need it, two seconds later and with code 1.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, Self

from halter.cancel.deadlines import check_seconds
from halter.cancel.fork import after_fork
from halter.cancel.loop_bridge import cancel_tasks, running_loop
from halter.cancel.processes import registry
from halter.cancel.token import CancellationToken

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType

_log = logging.getLogger(__name__)
# Something did not end and was left behind. "Internal software error" of sysexits.h.
FORCED: Final = 70
_SIGNALS: Final = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# Signals that programs send more than once for one request: a terminal that closes sends SIGHUP to the session and to
# the group, and `timeout` sends SIGTERM to the program and to its group. Repeats count only after these seconds.
_REPEATED: Final = {"SIGHUP": float("inf"), "SIGTERM": 0.5}
# Seconds. An exit that takes less than this is not reported.
_QUIET_EXIT: Final = 0.3
_ANNOUNCEMENT_TIMEOUT: Final = 1.0  # seconds that an exit waits for the threads that announce it, on a busy machine
_FAULTHANDLER_DELAY: Final = 2.0  # seconds after the deadline
_MAX_THREADS_NAMED: Final = 3
_WAKE: Final = b"\0"  # no signal has this number
# Each ends some work within the seconds that it is given, and names what it has to leave behind.
_endings: Final[list[Callable[[float], list[str]]]] = []
_entered: Final[list[ExitGuard]] = []  # in this process; atexit keeps them anyway


def add_ending(end: Callable[[float], list[str]]) -> None:
    """Have a guarded program call *end* before it exits. It gets some seconds, and names what it leaves behind."""
    _endings.append(end)


class Intent(NamedTuple):
    """The decision to exit: with which code, why, and since when."""

    code: int
    why: str
    since: float


class _ExitBySignal(SystemExit):
    """What the handler raises, to be recognized if it is lost."""


class ExitGuard:
    """Guards a program: leaving the block means to exit."""

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
        self._say = say if say is not None else _print_on_stderr
        # Called in the handler, for the first signal. True: the program ends by itself, so nothing is raised.
        self.on_signal = on_signal
        self._intent: Intent | None = None
        self._stages: list[str] = []
        self._has_raised = False
        self._is_holding = False
        self._held: int | None = None  # the signal that came in a hold_signals() block
        self._unraisable_hook = sys.unraisablehook
        self._has_left_something = False
        self._repeats_until = 0.0  # until then the same signal again is no second request
        self._resent = 0  # signals that were sent to the main thread again, and not read yet
        self._is_announced = threading.Event()
        self._has_run_callbacks = threading.Event()  # those of the token
        # One byte for each signal: its number, written by the system. _WAKE for everything else.
        self._reader, self._writer = socket.socketpair()
        self._writer.settimeout(0)  # set_wakeup_fd() requires it

    # -- in the main thread ---------------------------------------------------------------------

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="halter-exit", daemon=True).start()
        _entered.append(self)
        atexit.register(self._at_exit)
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._unraisable_hook, sys.unraisablehook = sys.unraisablehook, self._on_unraisable
            try:
                for number in _SIGNALS:
                    signal.signal(number, self._on_signal)
            except _ExitBySignal as exc:  # it came just now, and `with` does not leave a block that it has not entered
                self.__exit__(type(exc), exc, exc.__traceback__)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.intend(_exit_code(exc), _description(exc))
        left = self._end_all()
        if self._intent is not None and self._has_raised:
            # A quick exit must not come before it is announced, to the user and to the program.
            self._is_announced.wait(_ANNOUNCEMENT_TIMEOUT)
            self._has_run_callbacks.wait(_ANNOUNCEMENT_TIMEOUT)
            if not left:
                raise SystemExit(self._intent.code) from None
        if left:
            self._has_left_something = True
            self._report(f"Left behind: {', '.join(left)}.")
            _show(exc)
            raise SystemExit(FORCED) from None

    def _end_all(self) -> list[str]:
        """End what Halter runs, and name what is left behind."""
        left = []
        with self.stage("turns to end"):
            for end in _endings:
                left += end(self.remaining() / 2)
        with self.stage("processes to end"):
            left += [f"process {pid}" for pid in registry.stop_all(min(registry.EXIT_GRACE, self.remaining()))]
        return left

    def _at_exit(self) -> None:
        """End what was started after the block, by threads that went on. Only a forced exit has another code now."""
        if not self._has_left_something and (left := self._end_all()):
            self._report(f"Left behind: {', '.join(left)}.")
            _leave()

    def release_in_fork(self) -> None:
        """Undo in a forked child what would send its signals to the parent, and end there what the parent runs."""
        atexit.unregister(self._at_exit)
        for number in _SIGNALS:
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)

    def intend(self, code: int, why: str) -> None:
        """Note that the program is about to exit. The first call starts the clock."""
        self._start_clock(Intent(code, why, time.monotonic()))
        self._wake()

    def _wake(self) -> None:
        """Wake the watching thread."""
        with contextlib.suppress(BlockingIOError):  # full: the thread wakes up anyway
            self._writer.send(_WAKE)

    def _start_clock(self, intent: Intent) -> None:
        if self._intent is None:
            self._intent = intent
            # In whichever thread comes first: the watching thread may never get the interpreter lock again.
            faulthandler.dump_traceback_later(self._timeout + _FAULTHANDLER_DELAY, exit=True, file=2)

    def remaining(self) -> float:
        """Seconds left until the deadline; the whole timeout before an intent to exit."""
        if self._intent is None:
            return self._timeout
        return max(0.0, self._intent.since + self._timeout - time.monotonic())

    @contextlib.contextmanager
    def stage(self, what: str) -> Iterator[float]:
        """Name what is being waited for in this block; yields the seconds that are left for it."""
        self._stages.append(what)
        try:
            yield self.remaining()
        finally:
            self._stages.remove(what)

    @contextlib.contextmanager
    def hold_signals(self) -> Iterator[None]:
        """Have a signal raise at the end of this block instead of inside it. The clock starts at once all the same.

        For imports and the like, in the main thread: extension modules run Python code where they expect no exception,
        and lose it or crash. The block must end soon by itself. If an event loop runs in it, its tasks are cancelled.
        """
        self._is_holding = True
        try:
            yield
        finally:
            self._is_holding = False
        if self._held is not None:
            self._on_signal(self._held, None)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._has_raised:
            return  # a second signal: the watching thread has read it
        loop = running_loop()
        if self._is_holding and loop is None:
            self._held = number
            return
        while frame is not None:
            if frame.f_code is ExitGuard._on_unraisable.__code__:  # it would be lost here, too
                self._wake()
                return
            frame = frame.f_back
        self._has_raised = True
        self.intend(128 + number, signal.Signals(number).name)
        if self.on_signal is not None and self.on_signal(number):
            return
        if loop is None:
            raise _ExitBySignal(128 + number)
        loop.call_soon_threadsafe(_cancel_tasks, loop)

    def _on_unraisable(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Have the handler raise once more if its exception was lost, in a finalizer or a weak reference's callback."""
        if not isinstance(unraisable.exc_value, _ExitBySignal):
            self._unraisable_hook(unraisable)
            return
        self._has_raised = False
        self._wake()

    # -- in the watching thread -------------------------------------------------------------

    def _watch(self) -> None:
        signals = 0
        while self._intent is None:
            for number in self._read_signals():
                signals += 1
                self._start_clock(Intent(128 + number, signal.Signals(number).name, time.monotonic()))
        intent = self._intent
        try:
            threading.Thread(target=self._cancel, args=[intent.why], name="halter-exit-cancel", daemon=True).start()
        except RuntimeError:  # no thread can be started now, for example while the interpreter exits
            self._cancel(intent.why)
        is_signal = intent.why in signal.Signals.__members__
        if is_signal:
            self._report(announcement(intent.why))
            self._is_announced.set()
        # This many more signals force the exit. The signal that began the exit may be counted already, or still be in
        # the socket.
        self._repeats_until = time.monotonic() + _REPEATED.get(intent.why, 0.0)
        more = 2 - signals if is_signal and intent.why not in _REPEATED else 1
        if is_signal:
            self._interrupt_main(signal.Signals[intent.why])
        more = self._wait_for_signals(more, min(_QUIET_EXIT, self.remaining()))
        if more > 0:
            self._report(f"Shutting down: waiting for {self._waiting_for()}, at most {self._timeout:g} s…")
            more = self._wait_for_signals(more, self.remaining())
        self._force(f"after {self._timeout:g} s" if more > 0 else "after a second signal")

    def _cancel(self, why: str) -> None:
        """Cancel the token. A boundary: its callbacks are foreign code."""
        try:
            self.token.cancel("shutdown", detail=why)
        except BaseException:  # noqa: BLE001  (a boundary)
            _log.exception("a callback of %r raised an exception", self.token)
        finally:
            self._has_run_callbacks.set()

    def _interrupt_main(self, number: signal.Signals) -> None:
        """Send the signal to the main thread again, if its handler has not run yet.

        The system may have delivered the signal to another thread, for example to one that was just starting a process
        or a thread. Then nothing interrupts what the main thread waits for, and the handler runs only when the main
        thread executes Python code again. A handler that runs twice does nothing the second time.
        """
        main = threading.main_thread().ident
        if not self._has_raised and main is not None and signal.getsignal(number) == self._on_signal:
            signal.pthread_kill(main, number)
            self._resent += 1

    def _wait_for_signals(self, wanted: int, seconds: float) -> int:
        """Wait for *wanted* signals, *seconds* at most, and return how many have not come."""
        end = time.monotonic() + seconds
        while wanted > 0 and select.select([self._reader], [], [], max(0.0, end - time.monotonic()))[0]:
            numbers = self._read_signals()
            wanted -= sum(not self._is_repeat(signal.Signals(number).name) for number in numbers)
            why = self._intent.why if self._intent is not None else ""
            if not numbers and why in signal.Signals.__members__:
                self._interrupt_main(signal.Signals[why])
        return wanted

    def _is_repeat(self, name: str) -> bool:
        """Whether a signal belongs to the request that is being carried out."""
        why = self._intent.why if self._intent is not None else ""
        if name == why and self._resent:
            self._resent -= 1
            return True
        return name == "SIGHUP" or (name == why and time.monotonic() < self._repeats_until)

    def _read_signals(self) -> list[int]:
        """Wait for the next byte; returns its signal if that is one of those that end the program."""
        # The system writes every signal that has a handler, also SIGWINCH or SIGALRM of other code.
        return [number for number in self._reader.recv(1) if number in _SIGNALS]

    def _waiting_for(self) -> str:
        threads = [
            f"thread {thread.name}"
            for thread in threading.enumerate()
            if not thread.daemon and thread is not threading.main_thread()
        ]
        if len(threads) > _MAX_THREADS_NAMED:
            threads[_MAX_THREADS_NAMED:] = [f"{len(threads) - _MAX_THREADS_NAMED} more threads"]
        return ", ".join([*self._stages, *threads]) or "the program to end"

    def _force(self, when: str) -> None:
        self._report(f"Forced exit {when}; still waiting for {self._waiting_for()}.")
        try:
            registry.stop_all(0.0)
        finally:
            _leave()

    def _report(self, text: str) -> None:
        """Show the user a line. A boundary: a closed terminal must not prevent the exit."""
        with contextlib.suppress(Exception):
            self._say(text)


def announcement(signal_name: str) -> str:
    """What users are told at once when a signal has come."""
    return f"Shutting down ({signal_name})…"


def _cancel_tasks(loop: asyncio.AbstractEventLoop) -> None:
    cancel_tasks(sys.modules["asyncio"].all_tasks(loop))


def _print_on_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _exit_code(exc: BaseException | None) -> int:
    if exc is None:
        return 0
    if isinstance(exc, SystemExit):
        return exc.code if isinstance(exc.code, int) else int(exc.code is not None)
    return 1


def _description(exc: BaseException | None) -> str:
    return "the program has ended" if exc is None else f"the program has ended by {type(exc).__name__}"


def _show(exc: BaseException | None) -> None:
    """Print what Python would print about the exception that ends the program."""
    if isinstance(exc, SystemExit):
        if exc.code is not None and not isinstance(exc.code, int):
            _print_on_stderr(str(exc.code))
    elif exc is not None:
        sys.excepthook(type(exc), exc, exc.__traceback__)


def _leave() -> NoReturn:
    """Flush standard output and error, and end at once. A boundary: the reader may be gone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(FORCED)


def _after_fork() -> None:
    for guard in _entered:
        guard.release_in_fork()
    _entered.clear()


after_fork(_after_fork)
