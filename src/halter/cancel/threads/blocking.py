"""Runs blocking functions on worker threads. A stop returns control, whatever the function does.

``run_blocking`` waits for the function *or* for the token. When the token is cancelled, it calls ``abort``, waits for
the grace, ends what the function waits for, and raises ``Cancelled``, even if the function never returns. A thread
cannot be killed, so one that goes on is abandoned: it is counted, gets no new work, and its outcome is only logged, or
passed to ``on_late``.

The worker thread decides once, when the function ends, whether its outcome counts: if the token was cancelled by then,
the outcome is late, because an aborted function may return half of a result. The caller and the worker thread settle
who came first by one atomic claim, so an outcome is either delivered or reported late, never both and never neither.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from halter.cancel.context import current_token
from halter.cancel.deadlines import check_seconds
from halter.cancel.fork import after_fork
from halter.cancel.processes import registry
from halter.cancel.processes.tree import ProcessTree
from halter.cancel.registration import LoopWaker, Waker, call_in_loop
from halter.cancel.threads import pool
from halter.cancel.threads.unblock import ThreadWaits, end_of_call
from halter.cancel.token import CancellationToken, Cancelled
from halter.cancel.wake_signal import WakeSignal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

R = TypeVar("R")

_log = logging.getLogger(__name__)
# Seconds to wait for abort() to return. It runs on another worker thread, so one that hangs delays nothing else.
_ABORT_TIMEOUT: Final = 0.05
_WARN_AT: Final = 0.8  # of the limit


class TooManyAbandoned(RuntimeError):
    """No more functions are started: too many threads are stuck in functions that were stopped."""


class Late(NamedTuple):
    """The late outcome of a function: it ended after its token was cancelled."""

    fn: Callable[..., object]
    value: object
    error: BaseException | None
    reason: str
    seconds: float  # after the stop


class Abandoned:
    """The calls that are no longer waited for, but still occupy a thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._calls: dict[BlockingCall, bool] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: BlockingCall) -> None:
        self._calls[call] = True
        if len(self._calls) == int(self.limit * _WARN_AT):
            _log.warning("%s", self._describe())

    def discard(self, call: BlockingCall) -> None:
        self._calls.pop(call, None)

    def check(self) -> None:
        if len(self._calls) >= self.limit:
            raise TooManyAbandoned(self._describe())

    def _describe(self) -> str:
        names = collections.Counter(_name_of(call.fn) for call in list(self._calls))
        most = ", ".join(f"{name} ({count})" for name, count in names.most_common(3))
        return (
            f"{len(self._calls)} of at most {self.limit} threads are stuck in functions that were stopped and did not "
            f"return: {most}. Let them check their token, give them a timeout of their own, or run them isolated"
        )


abandoned: Final = Abandoned(limit=500)
running_calls: Final[dict[BlockingCall, bool]] = {}  # whose functions have not ended, abandoned or not


class BlockingCall:
    """One function on one worker thread: started, waited for, or left behind."""

    def __init__(
        self,
        fn: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        token: CancellationToken,
        *,
        abort: Callable[[], object] | None = None,
        on_late: Callable[[Late], object] | None = None,
    ) -> None:
        token.raise_if_cancelled()
        abandoned.check()
        self.fn = fn
        self._args = args
        self._kwargs = kwargs
        self._caller_token = token
        self.token = token.child("blocking")  # the current token inside the function
        self.has_ended = False
        self.is_delivered = False  # it ended before the stop, so the caller gets its outcome
        self.was_unblocked = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.waits: ThreadWaits | None = None
        self._abort = abort
        self._on_late = on_late
        self._is_aborting = False
        self._stopped_at = 0.0
        self._claim = [True]  # popped once, by the side that settles the outcome
        self._start_claim = [True]  # popped by the thread as it begins the function, or by a caller that left before
        self._wake: Callable[[], object] = lambda: None

    # -- in the worker thread ----------------------------------------------------------------------

    def start(self, wake: Callable[[], object], waker: Waker | None = None) -> None:
        """Run the function on a worker thread; *wake* is called whenever the caller should check its state again.

        *waker* replaces *wake* for the stop.
        """
        self._wake = wake
        self._registration = self.token._register(Waker(self.token, wake) if waker is None else waker)
        context = contextvars.copy_context()
        running_calls[self] = True
        try:
            pool.submit(lambda: context.run(self._run))
        except Exception:  # no thread can be started: the call has ended before it began, and is not abandoned
            self._mark_ended()
            self._abort = None
            raise

    def _run(self) -> None:
        """Run the function. A boundary: whatever it raises is its outcome."""
        value = error = None
        with self.token.bind():
            begins = False
            try:
                self.waits = ThreadWaits()
                # After that system call, so that hardly anything can come between this and the function.
                begins = _pop(self._start_claim)  # else the caller has left, and has reported it
                if begins and not self.token.is_cancelled:  # nothing starts after the stop
                    value = self.fn(*self._args, **self._kwargs)
            except BaseException as exc:  # noqa: BLE001
                error = exc
                begins = begins or _pop(self._start_claim)
            finally:
                end_of_call()
        if begins:
            self._deliver(value, error)
        del error  # it refers to this frame, and this frame to the call: only a garbage collection would free them
        self._mark_ended()
        self._wake()

    def _deliver(self, value: object, error: BaseException | None) -> None:
        """Pass the outcome to the caller, or report it as late."""
        # A cancellation marks tokens from the top down. The function may have seen it above before our token is marked.
        is_late = self._caller_token.is_cancelled or self.token.is_cancelled
        # Stored, then claimed, then announced, so that everything is in place when the other side loses the claim or
        # sees the end. on_late runs before the end is announced: a caller that sees the end also sees the late report.
        self.value, self.error = value, error
        self.is_delivered = not is_late and _pop(self._claim)
        if not self.is_delivered:
            self.value = self.error = None
            self._report_late(value, error)

    def _mark_ended(self) -> None:
        self.has_ended = True
        del running_calls[self]
        abandoned.discard(self)
        self._registration()

    def _report_late(self, value: object, error: BaseException | None) -> None:
        """Pass a late outcome to on_late, or log it. A boundary: above it is only the worker thread."""
        seconds = time.monotonic() - self._stopped_at if self._stopped_at else 0.0
        late = Late(self.fn, value, error, self.token.reason or self._caller_token.reason or "", seconds)
        is_cancellation = isinstance(error, Cancelled) and error.belongs_to(self.token)
        try:
            if self._on_late is not None:
                self._on_late(late)
            elif not is_cancellation:
                _log.info("%s ended %.3f s after it was stopped", _name_of(late.fn), late.seconds, exc_info=error)
        except BaseException:  # noqa: BLE001  (a boundary)
            _log.exception("on_late of %s failed", _name_of(late.fn))

    # -- in the caller ----------------------------------------------------------------------

    def waiting(self, grace: Callable[[], float], unblock_timeout: float = 0.0) -> Generator[float | None, None, None]:
        """Yields how many seconds to wait for a wake-up (None: no limit), and ends when the caller may settle().

        *grace* is called when the stop comes. A function that was unblocked after its grace has *unblock_timeout*
        seconds more to return.
        """
        while not self.has_ended and not self.token.is_cancelled:
            yield None
        if self.has_ended:
            return
        start = self._stopped_at = self._stopped_at or time.monotonic()
        self._call_abort()
        grace_seconds = grace()
        while (seconds := self._remaining_grace(start, grace_seconds)) > 0:
            yield seconds
        if self._start_unblock(start + grace_seconds):
            end = time.monotonic() + unblock_timeout
            while not self.has_ended and (seconds := end - time.monotonic()) > 0:
                yield seconds

    def _remaining_grace(self, start: float, grace: float) -> float:
        seconds = grace if not self.has_ended else 0.0
        if self._is_aborting:
            seconds = max(seconds, _ABORT_TIMEOUT)
        return start + seconds - time.monotonic()

    def _call_abort(self) -> None:
        abort, self._abort = self._abort, None
        if abort is not None:
            self._is_aborting = True
            if not _try_submit(lambda: self._run_abort(abort)):
                self._is_aborting = False

    def _run_abort(self, abort: Callable[[], object]) -> None:
        """Run the user's abort(). A boundary: its error is not the function's."""
        try:
            abort()
        except Exception:  # noqa: BLE001  (a boundary)
            _log.exception("abort() of %s failed", _name_of(self.fn))
        finally:
            self._is_aborting = False
            self._wake()

    async def run_and_wait(self, grace: Callable[[], float], unblock_timeout: float = 0.0) -> None:
        """Start the function and await until the caller may settle the outcome, see waiting()."""
        import asyncio

        loop = asyncio.get_running_loop()
        woken = asyncio.Event()

        def on_stop() -> None:
            self._stopped_at = self._stopped_at or time.monotonic()
            woken.set()

        try:
            self.start(lambda: call_in_loop(loop, woken.set), LoopWaker(self.token, loop, on_stop))
            for seconds in self.waiting(grace, unblock_timeout):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await woken.wait()
                woken.clear()
        except BaseException as exc:
            self.cancel_and_leave(f"{type(exc).__name__} while awaiting it")
            raise

    def settle(self) -> Any:
        """Return or raise the function's outcome, or abandon it and raise Cancelled."""
        if self.leave():
            raise Cancelled(self._caller_token)
        error, self.error = self.error, None
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del error  # it refers to this frame

    def leave(self) -> bool:
        """Stop waiting. True if the outcome will be reported late, False if it is there and belongs to the caller."""
        if not _pop(self._claim):
            return False
        if _pop(self._start_claim):  # its thread has not come to it: it never begins, so nothing is left behind
            self._report_late(None, None)
        elif not self.has_ended:
            abandoned.add(self)
            if self.has_ended:  # added first, then checked: it may have ended in between
                abandoned.discard(self)
        return True

    def cancel_and_leave(self, detail: str) -> None:
        """The caller itself was cancelled or interrupted: cancel the function and do not wait for it."""
        self.token.cancel("external", detail=detail)
        self._stopped_at = self._stopped_at or time.monotonic()
        self._call_abort()
        if self.leave():
            self._start_unblock(self._stopped_at)

    def _start_unblock(self, since: float) -> bool:
        """Unblock the function, on another worker thread. False if it waits for nothing that can be ended.

        Its grace has ended at *since*: what it waits for then may have begun after the stop.

        That is checked here, by a few system calls: starting a thread for it would take far longer while other
        functions hold the interpreter lock.
        """
        waits = self.waits
        if waits is None or self.has_ended or not waits.can_unblock(since) or not _try_submit(waits.unblock):
            return False
        self.was_unblocked = True
        return True


def run_blocking(
    fn: Callable[..., R],
    *args: Any,
    token: CancellationToken | None = None,
    abort: Callable[[], object] | None = None,
    grace: float = 0.0,
    **kwargs: Any,
) -> R:
    """Run *fn* on a daemon thread, and wait until it returns or the token is cancelled."""
    seconds = check_seconds("grace", grace)
    call = _prepare(fn, args, kwargs, token, abort)
    woken = WakeSignal()
    try:
        call.start(woken.set)
        for timeout in call.waiting(lambda: seconds):
            woken.wait(timeout)
    except BaseException as exc:
        call.cancel_and_leave(f"{type(exc).__name__} while waiting for it")
        raise
    return call.settle()  # type: ignore[no-any-return]


async def run_blocking_async(
    fn: Callable[..., R],
    *args: Any,
    token: CancellationToken | None = None,
    abort: Callable[[], object] | None = None,
    grace: float = 0.0,
    **kwargs: Any,
) -> R:
    """Run *fn* on a daemon thread, and wait in a task until it returns or the token is cancelled."""
    seconds = check_seconds("grace", grace)
    call = _prepare(fn, args, kwargs, token, abort)
    await call.run_and_wait(lambda: seconds)
    return call.settle()  # type: ignore[no-any-return]


def _prepare(
    fn: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    token: CancellationToken | None,
    abort: Callable[[], object] | None,
) -> BlockingCall:
    if not callable(fn):
        raise TypeError(f"run_blocking() needs a function to call, not {fn!r}")
    if abort is not None and not callable(abort):
        raise TypeError(f"abort must be a function that makes {_name_of(fn)} return, not {abort!r}")
    return BlockingCall(fn, args, kwargs, token if token is not None else current_token(), abort=abort)


def _try_submit(job: Callable[[], object]) -> bool:
    """Run *job* on a worker thread; False if none can be started. A stop then does without abort() and unblocking.

    From Python 3.12 on no thread can be started while the interpreter exits. Children are ended at exit in any case, so
    that is not worth a warning.
    """
    try:
        pool.submit(job)
    except RuntimeError:
        level = logging.WARNING if threading.main_thread().is_alive() else logging.DEBUG
        _log.log(level, "no thread could be started to abort or unblock a function that was stopped", exc_info=True)
        return False
    return True


def _pop(claim: list[bool]) -> bool:
    """Take a claim that two threads compete for: True for exactly one of them."""
    try:
        return claim.pop()
    except IndexError:
        return False


def _name_of(fn: Callable[..., object]) -> str:
    return getattr(fn, "__qualname__", repr(fn))


def _children_of_running_calls() -> ProcessTree:
    """The child processes of all functions that still run, abandoned or not."""
    calls = [call.waits for call in list(running_calls) if call.waits is not None]
    return ProcessTree(child for waits in calls for child in waits.children())


registry.add_source(_children_of_running_calls)
after_fork(running_calls.clear)  # they run in the parent
