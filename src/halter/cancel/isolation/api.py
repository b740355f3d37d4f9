"""Runs a Python function in a worker process, which can be killed if the function does not stop.

``run_isolated`` works as ``run_blocking``, with one difference: a function that ignores its token is killed, with
everything that it started. Workers are started by ``exec``, never by ``fork``, so the threads of the parent do not
matter. They are reused. The function and its arguments, result and exceptions are pickled, so the function must be
importable. If a worker crashes, that one call fails.
"""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from halter.cancel.context import current_token
from halter.cancel.deadlines import check_seconds
from halter.cancel.isolation.worker_process import IdleWorkers, WorkerCrashed, WorkerProcess
from halter.cancel.threads import pool
from halter.cancel.threads.blocking import run_blocking, run_blocking_async
from halter.cancel.token import NEVER, CancellationToken

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

# Seconds that a function always has to react to its token before its process is killed.
_MIN_GRACE: Final = 0.1


def run_isolated(
    fn: Callable[..., R],
    *args: Any,
    token: CancellationToken | None = None,
    grace: float = 0.0,
    **kwargs: Any,
) -> R:
    """Run *fn* in a worker process, and wait until it returns or the token is cancelled."""
    isolated = IsolatedCall(fn, args, kwargs, grace)
    ended: R = run_blocking(isolated.run, token=token, abort=isolated.stop, grace=grace)
    return ended


async def run_isolated_async(
    fn: Callable[..., R],
    *args: Any,
    token: CancellationToken | None = None,
    grace: float = 0.0,
    **kwargs: Any,
) -> R:
    """Run *fn* in a worker process, and wait in a task until it returns or the token is cancelled."""
    isolated = IsolatedCall(fn, args, kwargs, grace)
    ended: R = await run_blocking_async(isolated.run, token=token, abort=isolated.stop, grace=grace)
    return ended


class Workers:
    """Worker processes of one owner: what a function loads there, such as a model, is still loaded for the next call.

    At most *max_idle* are kept between calls. A worker that was killed is replaced by a new one, which has nothing
    loaded. After `close()` calls are cancelled, with the reason "shutdown".
    """

    def __init__(self, max_idle: int = 1) -> None:
        self._idle = IdleWorkers(max_idle)
        self._token = CancellationToken(name="workers")

    async def run(
        self,
        fn: Callable[..., R],
        *args: Any,
        token: CancellationToken | None = None,
        grace: float = 0.0,
        **kwargs: Any,
    ) -> R:
        """Do what `run_isolated_async` does, in one of these processes."""
        isolated = IsolatedCall(fn, args, kwargs, grace, self._idle)
        either = CancellationToken.any_of(current_token() if token is None else token, self._token)
        ended: R = await run_blocking_async(isolated.run, token=either, abort=isolated.stop, grace=grace)
        return ended

    def close(self) -> None:
        """End the processes, also busy ones. May be called at any time, and again."""
        self._token.cancel("shutdown")
        self._idle.close()


class IsolatedCall:
    """One call of a function in a worker process."""

    def __init__(
        self,
        fn: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grace: float,
        idle: IdleWorkers | None = None,
    ) -> None:
        self._name = getattr(fn, "__qualname__", repr(fn))
        self.grace = max(check_seconds("grace", grace), _MIN_GRACE)
        try:
            self._payload = pickle.dumps((fn, args, kwargs))
        except Exception as error:
            raise TypeError(
                f"{self._name} cannot run in another process: {error}. It must be a function that can be imported by "
                "its name (no lambda, nothing defined inside a function), with arguments that can be pickled"
            ) from error
        self._idle = idle
        self._worker: WorkerProcess | None = None
        self._token: CancellationToken = NEVER
        self._has_ended = threading.Event()
        self.was_killed = False

    def run(self) -> Any:
        """Run the function; blocks until it has ended or its process is dead."""
        token = self._token = current_token()
        try:
            worker = WorkerProcess.take(self, self._payload, token, self._idle)
            try:
                kind, body = worker.answer()
            except (EOFError, OSError) as error:
                how = worker.end()
                token.raise_if_cancelled()
                raise WorkerCrashed(f"the worker process {how} while it ran {self._name}") from error
        finally:
            self._has_ended.set()
        worker.release()
        return _outcome(kind, body, token)

    def took(self, worker: WorkerProcess) -> None:
        """Have stop() reach this worker from now on, also before the function has begun in it."""
        self._worker = worker
        if self._token.is_cancelled:
            self.stop()  # the call of stop() came before there was a worker

    def stop(self) -> None:
        """Cancel the function's token, and kill its process if it does not end; returns at once."""
        pool.submit(self._cancel_and_kill)

    def _cancel_and_kill(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.cancel(self, self._token, self.grace)
            if not self._has_ended.wait(self.grace):
                self.was_killed = True
                worker.kill(self)


def _outcome(kind: str, body: bytes, token: CancellationToken) -> Any:
    if kind == "cancelled":
        token.raise_if_cancelled()
    outcome = pickle.loads(body)
    if kind == "error":
        raise outcome
    return outcome
