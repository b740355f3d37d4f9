"""Worker processes, on the side of the parent: start, calls, reuse, kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from halter.cancel.fork import after_fork
from halter.cancel.isolation.pipe_messages import MessageReader, MessageWriter
from halter.cancel.processes import guardian, registry
from halter.cancel.processes.tree import KILL_TIMEOUT, ProcessTree, new_cookie

if TYPE_CHECKING:
    from halter.cancel.isolation.api import IsolatedCall
    from halter.cancel.token import CancellationToken

_MAX_IDLE: Final = 4
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from halter.cancel.isolation.worker_main import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_pools: Final[weakref.WeakSet[IdleWorkers]] = weakref.WeakSet()


class WorkerCrashed(RuntimeError):
    """The worker process ended while it ran a function."""


class IdleWorkers:
    """Idle workers, ready for the next call: those of the process, or those of one `Workers` object."""

    def __init__(self, max_idle: int = _MAX_IDLE) -> None:
        self._max_idle = max_idle
        self.workers: dict[WorkerProcess, bool] = {}
        self._is_closed = False
        _pools.add(self)

    def pop(self) -> WorkerProcess | None:
        try:
            return self.workers.popitem()[0]
        except KeyError:
            return None

    def add(self, worker: WorkerProcess) -> None:
        """Keep a worker, or end it if there are enough."""
        if self._is_closed or len(self.workers) >= self._max_idle:
            worker.end()
            return
        self.workers[worker] = True
        if self._is_closed:  # added first, then checked: close() may have come in between
            self.close()

    def close(self) -> None:
        """End all, and from now on those that are added later."""
        self._is_closed = True
        while (worker := self.pop()) is not None:
            worker.end()

    def clear(self) -> None:
        """Drop the workers without ending them: in a forked child, they belong to the parent."""
        self.workers.clear()


class WorkerProcess:
    """One child process, which runs one function at a time."""

    def __init__(self) -> None:
        guardian.wait_until_started()
        cookie = new_cookie()
        requests, self_requests = os.pipe()
        try:
            self_answers, answers = os.pipe()
        except OSError:
            os.close(requests)
            os.close(self_requests)
            raise
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(requests), str(answers), json.dumps(sys.path)],
                env=os.environ | {cookie: "1"},
                stdin=subprocess.DEVNULL,
                pass_fds=(requests, answers),
                start_new_session=True,
            )
        except BaseException:
            os.close(self_requests)
            os.close(self_answers)
            raise
        finally:
            os.close(requests)
            os.close(answers)
        self._requests = MessageWriter(self_requests)
        self._answers = MessageReader(self_answers)
        pid = self._process.pid
        self._tree = ProcessTree([pid], session=pid, cookie=cookie.encode(), reap=self._process.poll)
        registry.add(self._tree)
        self._number = 0
        self._is_new = True
        # The call that may cancel its function and kill this process. Checked and changed under the lock, so that a
        # late stop cannot hit the next call of a process that is reused.
        self._lock = threading.Lock()
        self._owner: object = None
        self._was_killed = False
        self._idle_workers = shared_workers

    @classmethod
    def take(
        cls, owner: IsolatedCall, payload: bytes, token: CancellationToken, idle: IdleWorkers | None = None
    ) -> WorkerProcess:
        """Begin a call in an idle worker, or in a new one."""
        idle_workers = shared_workers if idle is None else idle
        while True:
            token.raise_if_cancelled()
            worker = idle_workers.pop() or cls()
            worker._owner = owner
            worker._idle_workers = idle_workers
            owner.took(worker)  # before the wait: a worker that never says "started" can only be killed
            try:
                worker._begin(payload, token)
            except (EOFError, OSError) as error:
                how = worker.end()
                token.raise_if_cancelled()
                if worker._is_new:
                    raise WorkerCrashed(
                        f"a worker process {how} before it could start; see what it wrote to stderr"
                    ) from error
                continue  # it had died while idle: nothing has started yet
            worker._is_new = False
            return worker

    def _begin(self, payload: bytes, token: CancellationToken) -> None:
        self._number += 1
        timeout = None if token.deadline is None else max(0.0, token.deadline - time.monotonic())
        self._requests.write(("call", self._number, payload, _main_path(), timeout))
        self._answers.read()  # "started": after this, the call is not repeated in another worker

    def answer(self) -> tuple[str, bytes]:
        """Block until the function has ended. Raises EOFError or OSError if the process ends instead."""
        _, kind, body = self._answers.read()
        return kind, body

    def cancel(self, owner: object, token: CancellationToken, timeout: float) -> None:
        """Cancel the token of the function in the worker, if it still runs the call *owner*.

        Has no effect if the process is dead or does not read.
        """
        with self._lock:
            if self._owner is not owner:
                return
            number = self._number  # the worker ignores it if that call has ended until it arrives
        with contextlib.suppress(OSError, ValueError):  # ValueError: the pipe is closed on our side
            self._requests.write(("cancel", number, token.reason, token.detail), timeout)

    def release(self) -> None:
        """The call has ended: keep the process for the next one."""
        with self._lock:
            self._owner = None
            was_killed = self._was_killed
        if was_killed:
            self.end()
        else:
            self._idle_workers.add(self)

    def kill(self, owner: object) -> None:
        """Kill the process and all that it started, if it still runs the call *owner*; blocks until that is done."""
        with self._lock:
            self._was_killed = self._was_killed or self._owner is owner
            if not self._was_killed:
                return
        registry.stop(self._tree, 0.0)

    def end(self) -> str:
        """End the process if it has not ended yet, release its resources, and say how it ended."""
        self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_TIMEOUT)
        registry.stop(self._tree, 0.0)
        self._answers.close()
        code = self._process.poll()
        if code is None:
            return "did not end"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _main_path() -> str | None:
    """The file of the main program, in which the worker must find functions; None in an interactive session."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if path is None else str(Path(path).absolute())


def _after_fork() -> None:
    for idle in list(_pools):
        idle.clear()


shared_workers: Final = IdleWorkers()
after_fork(_after_fork)
