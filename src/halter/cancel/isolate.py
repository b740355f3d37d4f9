"""A Python function in a process of its own, for code that would not stop otherwise.

``run_isolated`` has the semantics of ``run_blocking``, and one more rung: a function that does not obey
its token is killed, with everything it started. Workers are started by ``exec``, never by ``fork``, so
a parent with threads is no danger to them; they are kept warm and used again. The function and its
arguments, result and exceptions travel as pickles, so the function must be one that can be imported.
A worker that crashes is an error of that one call.
"""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from halter.cancel import threads
from halter.cancel.blocking import run_blocking, run_blocking_async
from halter.cancel.context import current_token
from halter.cancel.seconds import check_seconds
from halter.cancel.token import NEVER, CancellationToken
from halter.cancel.worker import Idle, WorkerCrashed, WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")

# A function that listens to its token gets at least this long before its process is killed.
_LISTENING: Final = 0.1


def run_isolated(
    fn: Callable[..., R],
    *args: Any,
    token: CancellationToken | None = None,
    grace: float = 0.0,
    **kwargs: Any,
) -> R:
    """Run *fn* in a worker process and wait for it, but no longer than the token lives."""
    conversation = Conversation(fn, args, kwargs, grace)
    ended: R = run_blocking(conversation.run, token=token, abort=conversation.stop, grace=grace)
    return ended


async def run_isolated_async(
    fn: Callable[..., R],
    *args: Any,
    token: CancellationToken | None = None,
    grace: float = 0.0,
    **kwargs: Any,
) -> R:
    """Run *fn* in a worker process and await it, but no longer than the token lives."""
    conversation = Conversation(fn, args, kwargs, grace)
    ended: R = await run_blocking_async(conversation.run, token=token, abort=conversation.stop, grace=grace)
    return ended


class Workers:
    """Worker processes of one's own: what a function loads there, such as a model, is still loaded for the next one.

    At most *most* are kept between calls. One that had to be killed is replaced by a new one, which has nothing loaded.
    After `close()` calls are cancelled, with the reason "shutdown".
    """

    def __init__(self, most: int = 1) -> None:
        self._idle = Idle(most)
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
        conversation = Conversation(fn, args, kwargs, grace, self._idle)
        either = CancellationToken.any_of(current_token() if token is None else token, self._token)
        ended: R = await run_blocking_async(conversation.run, token=either, abort=conversation.stop, grace=grace)
        return ended

    def close(self) -> None:
        """End the processes, also those that are at work. May be called at any time, and again."""
        self._token.cancel("shutdown")
        self._idle.close()


class Conversation:
    """One function, the worker that runs it, and what the two sides tell each other."""

    def __init__(
        self,
        fn: Callable[..., object],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grace: float,
        idle: Idle | None = None,
    ) -> None:
        self._name = getattr(fn, "__qualname__", repr(fn))
        self.listening = max(check_seconds("grace", grace), _LISTENING)
        try:
            self._payload = pickle.dumps((fn, args, kwargs))
        except Exception as error:
            msg = (
                f"{self._name} cannot run in another process: {error}. It must be a function that can be imported by "
                "its name (no lambda, nothing defined inside a function), with arguments that can be pickled"
            )
            raise TypeError(msg) from error
        self._idle = idle
        self._worker: WorkerProcess | None = None
        self._token: CancellationToken = NEVER
        self._has_ended = threading.Event()
        self.was_killed = False

    def run(self) -> Any:
        """Have the function run; blocks until it has ended or its process is dead."""
        token = self._token = current_token()
        try:
            worker = self._worker = WorkerProcess.take(self, self._payload, token, self._idle)
            if token.is_cancelled:
                self.stop()  # it was called before there was a worker to tell
            try:
                kind, body = worker.answer()
            except (EOFError, OSError) as error:
                ending = worker.bury()
                token.raise_if_cancelled()
                msg = f"the worker process {ending} while it ran {self._name}"
                raise WorkerCrashed(msg) from error
        finally:
            self._has_ended.set()
        worker.give_back()
        return _outcome(kind, body, token)

    def stop(self) -> None:
        """Tell the function to stop, and kill its process if it does not; returns at once."""
        threads.submit(self._tell_and_kill)

    def _tell_and_kill(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.cancel(self._token, self.listening)
            if not self._has_ended.wait(self.listening):
                self.was_killed = True
                worker.kill(self)


def _outcome(kind: str, body: bytes, token: CancellationToken) -> Any:
    if kind == "cancelled":
        token.raise_if_cancelled()
    outcome = pickle.loads(body)
    if kind == "error":
        raise outcome
    return outcome
