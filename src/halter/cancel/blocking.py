"""Blocking functions on threads of our own, from which control comes back when you say so.

``run_blocking`` waits for the function *or* for the token. When the token is cancelled it calls
``abort``, lets the function have its grace, cuts what it waits for, and raises ``Cancelled``; whether
the function obeys, fails or never returns makes no difference to the caller. A thread cannot be
killed, so one that goes on is abandoned: counted, kept away from new work, and heard of again only
through the hook for late results.

Whether a result is a result is decided once, by the thread that ran the function, in the moment it
ends: if the token was cancelled by then, the outcome is late, since an aborted function may return
half of what it should. And the caller and that thread settle who came first by one atomic claim, so
an outcome is either delivered or reported late, never both and never neither.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from halter.cancel import families, threads
from halter.cancel.context import current_token
from halter.cancel.cut import Waits, end_of_call
from halter.cancel.family import Family
from halter.cancel.fork import after_fork
from halter.cancel.seconds import check_seconds
from halter.cancel.token import CancellationToken, Cancelled, Waker, call_in_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

R = TypeVar("R")

_log = logging.getLogger(__name__)
# How long we wait for abort() to return. It runs on a thread of its own: one that hangs delays nobody more.
_ABORT_PATIENCE: Final = 0.05
_NEAR: Final = 0.8


class TooManyAbandoned(RuntimeError):
    """So many threads are stuck in functions that were stopped that no more are started."""


class Late(NamedTuple):
    """The end of a function after its token was cancelled."""

    fn: Callable[..., object]
    value: object
    error: BaseException | None
    reason: str
    seconds: float  # after the stop


class Abandoned:
    """The calls that nobody waits for any more, but whose threads are still in them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._calls: dict[BlockingCall, bool] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: BlockingCall) -> None:
        self._calls[call] = True
        if len(self._calls) == int(self.limit * _NEAR):
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
_running: Final[dict[BlockingCall, bool]] = {}
_hook: Callable[[Late], object] | None = None


def set_late_hook(hook: Callable[[Late], object] | None) -> Callable[[Late], object] | None:
    """Have *hook* called, in a worker thread, with each late outcome. Returns the hook that was set before."""
    global _hook
    previous, _hook = _hook, hook
    return previous


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
        self._given = token
        self.token = token.child("blocking")  # what the function sees as its own
        self.has_ended = False
        self.is_delivered = False  # it ended before the stop, so its outcome is for its waiter
        self.was_cut = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.waits: Waits | None = None
        self._abort = abort
        self._on_late = on_late
        self._is_aborting = False
        self._stopped_at = 0.0
        self._has_nothing_to_cut = False
        self._claim = [True]  # popped by whoever settles the outcome
        self._wake: Callable[[], object] = lambda: None

    # -- the worker's side ----------------------------------------------------------------------

    def start(self, wake: Callable[[], object]) -> None:
        """Run the function on a thread; *wake* is called whenever its waiter should look again."""
        self._wake = wake
        self._registration = self.token._register(Waker(self.token, wake))
        context = contextvars.copy_context()
        _running[self] = True
        try:
            threads.submit(lambda: context.run(self._run))
        except Exception:  # no thread is to be had: it has ended before it began, and is not one that was left behind
            self._has_ended_now()
            self._abort = None
            raise

    def _run(self) -> None:
        """Run the function. A boundary: whatever it raises is its outcome."""
        value = error = None
        with self.token.bind():
            if not self.token.is_cancelled:  # nothing starts after the stop
                self.waits = Waits()
                try:
                    value = self.fn(*self._args, **self._kwargs)
                except BaseException as exc:  # noqa: BLE001
                    error = exc
                finally:
                    end_of_call()
        # A stop marks a tree from the top. The function may have seen it above before it has come to our own token.
        is_late = self._given.is_cancelled or self.token.is_cancelled
        # Stored, then claimed, then announced: whoever loses the claim, or hears the news, finds it all in place. So a
        # hook of the call's own comes before the news, too: its waiter must not find it ended and nothing come of it.
        self.value, self.error = value, error
        self.is_delivered = not is_late and self._claim_outcome()
        if not self.is_delivered:
            self.value = self.error = None
        if not self.is_delivered and self._on_late is not None:
            self._report_late(self._on_late, value, error)
        self._has_ended_now()
        has_obeyed = isinstance(error, Cancelled) and error.belongs_to(self.token)
        if not self.is_delivered and self._on_late is None and not has_obeyed:
            self._report_late(_hook, value, error)
        self._wake()

    def _has_ended_now(self) -> None:
        self.has_ended = True
        del _running[self]
        abandoned.discard(self)
        self._registration()

    def _report_late(self, hook: Callable[[Late], object] | None, value: object, error: BaseException | None) -> None:
        """Tell of a late end. A boundary: there is nothing above it but the thread itself."""
        seconds = time.monotonic() - self._stopped_at if self._stopped_at else 0.0
        late = Late(self.fn, value, error, self.token.reason or self._given.reason or "", seconds)
        try:
            if hook is not None:
                hook(late)
            else:
                _log.info("%s ended %.3f s after it was stopped", _name_of(late.fn), late.seconds, exc_info=error)
        except BaseException:  # noqa: BLE001  (a boundary)
            _log.exception("the hook for late results failed")

    def _claim_outcome(self) -> bool:
        try:
            return self._claim.pop()
        except IndexError:
            return False

    # -- the waiter's side ----------------------------------------------------------------------

    def waiting(self, grace: Callable[[], float], cut_patience: float = 0.0) -> Generator[float | None, None, None]:
        """What the waiter waits for: yields the seconds to wait for a wake-up, and ends when it may settle().

        *grace* is asked when the stop comes. A function whose children or sockets were cut after that may use
        *cut_patience* seconds to come back.
        """
        while not self.has_ended and not self.token.is_cancelled:
            yield None
        if self.has_ended:
            return
        start = self._stopped_at = time.monotonic()
        self._call_abort()
        patience = grace()
        while (seconds := self._patience(start, patience)) > 0:
            yield seconds
        if not self.has_ended and _try_submit(self._cut):
            end = time.monotonic() + cut_patience
            while not self.has_ended and not self._has_nothing_to_cut and (seconds := end - time.monotonic()) > 0:
                yield seconds

    def _patience(self, start: float, grace: float) -> float:
        wanted = grace if not self.has_ended else 0.0
        if self._is_aborting:
            wanted = max(wanted, _ABORT_PATIENCE)
        return start + wanted - time.monotonic()

    def _call_abort(self) -> None:
        abort, self._abort = self._abort, None
        if abort is not None:
            self._is_aborting = True
            if not _try_submit(lambda: self._run_abort(abort)):
                self._is_aborting = False

    def _run_abort(self, abort: Callable[[], object]) -> None:
        """Run the user's abort(). A boundary: its failure must not look like the function's."""
        try:
            abort()
        except Exception:  # noqa: BLE001  (a boundary)
            _log.exception("abort() of %s failed", _name_of(self.fn))
        finally:
            self._is_aborting = False
            self._wake()

    async def run_and_wait(self, grace: Callable[[], float], cut_patience: float = 0.0) -> None:
        """Start the function and await what waiting() waits for; the outcome is then to be settled."""
        import asyncio  # noqa: PLC0415  (its import costs more than all of this package)

        loop = asyncio.get_running_loop()
        bell = asyncio.Event()
        try:
            self.start(lambda: call_in_loop(loop, bell.set))
            for seconds in self.waiting(grace, cut_patience):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await bell.wait()
                bell.clear()
        except BaseException as exc:
            self.break_off(f"{type(exc).__name__} while awaiting it")
            raise

    def settle(self) -> Any:
        """Return or raise the function's outcome, or abandon it and raise Cancelled."""
        if self.leave():
            raise Cancelled(self._given)
        error, self.error = self.error, None
        if error is None:
            return self.value
        try:
            raise error
        finally:
            del error  # it refers to this frame

    def leave(self) -> bool:
        """Stop waiting. True if the outcome is nobody's business any more, False if it is there to be taken."""
        if not self._claim_outcome():
            return False
        if not self.has_ended:
            abandoned.add(self)
            if self.has_ended:  # added, then looked: it has ended in between
                abandoned.discard(self)
        return True

    def break_off(self, detail: str) -> None:
        """The waiter itself was cancelled or interrupted: let the function know and go without it."""
        self.token.cancel("external", detail=detail)
        self._stopped_at = self._stopped_at or time.monotonic()
        self._call_abort()
        if self.leave() and not self.has_ended:
            _try_submit(self._cut)

    def _cut(self) -> None:
        waits = self.waits
        if waits is not None and not self.has_ended and waits.can_be_cut():
            self.was_cut = True
            waits.cut()
        else:
            self._has_nothing_to_cut = True
            self._wake()


def run_blocking(
    fn: Callable[..., R],
    *args: Any,
    token: CancellationToken | None = None,
    abort: Callable[[], object] | None = None,
    grace: float = 0.0,
    **kwargs: Any,
) -> R:
    """Run *fn* on a daemon thread and wait for it, but no longer than the token lives."""
    patience = check_seconds("grace", grace)
    call = _prepare(fn, args, kwargs, token, abort)
    bell: queue.SimpleQueue[None] = queue.SimpleQueue()
    try:
        call.start(lambda: bell.put(None))
        for seconds in call.waiting(lambda: patience):
            with contextlib.suppress(queue.Empty):
                bell.get(timeout=seconds)
    except BaseException as exc:
        call.break_off(f"{type(exc).__name__} while waiting for it")
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
    """Run *fn* on a daemon thread and await it, but no longer than the token lives."""
    patience = check_seconds("grace", grace)
    call = _prepare(fn, args, kwargs, token, abort)
    await call.run_and_wait(lambda: patience)
    return call.settle()  # type: ignore[no-any-return]


def _prepare(
    fn: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    token: CancellationToken | None,
    abort: Callable[[], object] | None,
) -> BlockingCall:
    if not callable(fn):
        msg = f"run_blocking() needs a function to call, not {fn!r}"
        raise TypeError(msg)
    if abort is not None and not callable(abort):
        msg = f"abort must be a function that makes {_name_of(fn)} return, not {abort!r}"
        raise TypeError(msg)
    return BlockingCall(fn, args, kwargs, token if token is not None else current_token(), abort=abort)


def _try_submit(job: Callable[[], object]) -> bool:
    """Run *job* on a thread, if one is to be had: a stop goes on without abort() and cutting, if it must.

    From 3.12 on there is none once the interpreter is about to end. That is no news: children end with it in any case.
    """
    try:
        threads.submit(job)
    except RuntimeError:
        level = logging.WARNING if threading.main_thread().is_alive() else logging.DEBUG
        _log.log(level, "no thread is to be had for what a stop wants done", exc_info=True)
        return False
    return True


def _name_of(fn: Callable[..., object]) -> str:
    return getattr(fn, "__qualname__", repr(fn))


def _children_of_running_calls() -> Family:
    """What the functions that have not ended, waited for or not, have started and would leave behind."""
    calls = [call.waits for call in list(_running) if call.waits is not None]
    return Family(child for waits in calls for child in waits.children())


families.add_source(_children_of_running_calls)
after_fork(_running.clear)  # they run in the parent, not here
