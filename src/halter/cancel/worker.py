"""A worker process, from the side of the parent: started, spoken to, used again, killed."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Final

from halter.cancel import families
from halter.cancel.family import PATIENCE, Family
from halter.cancel.fork import after_fork
from halter.cancel.frames import FrameReader, FrameWriter

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken

_MOST_IDLE: Final = 4
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[3]); "
    "from halter.cancel.isolated import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_pools: Final[weakref.WeakSet[Idle]] = weakref.WeakSet()


class WorkerCrashed(RuntimeError):
    """The worker process ended while it ran a function."""


class Idle:
    """Workers that wait for their next call: those of everybody, or of one owner who wants them as it left them."""

    def __init__(self, most: int = _MOST_IDLE) -> None:
        self._most = most
        self.workers: dict[WorkerProcess, bool] = {}
        self._is_closed = False
        _pools.add(self)

    def pop(self) -> WorkerProcess | None:
        try:
            return self.workers.popitem()[0]
        except KeyError:
            return None

    def add(self, worker: WorkerProcess) -> None:
        """Keep a worker, or let it end if there are enough."""
        if self._is_closed or len(self.workers) >= self._most:
            worker.bury()
            return
        self.workers[worker] = True
        if self._is_closed:  # added, then looked: it was closed in between
            self.close()

    def close(self) -> None:
        """Let all end, and those that come back later."""
        self._is_closed = True
        while (worker := self.pop()) is not None:
            worker.bury()

    def forget(self) -> None:
        """Leave them: they are those of the process that this one was forked from."""
        self.workers.clear()


class WorkerProcess:
    """One child process that runs one function at a time for us."""

    def __init__(self) -> None:
        mark = f"HALTER_FAMILY_{secrets.token_hex(8)}"
        requests, self_requests = os.pipe()
        self_answers, answers = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(requests), str(answers), json.dumps(sys.path)],
                env=os.environ | {mark: "1"},
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
        self._requests = FrameWriter(self_requests)
        self._answers = FrameReader(self_answers)
        pid = self._process.pid
        self._family = Family([pid], session=pid, cookie=mark.encode(), reap=self._process.poll)
        families.add(self._family)
        self._number = 0
        self._is_new = True
        # The call that may kill this process. Checked and changed under the lock, so that a kill that
        # comes late cannot hit the next call of a process that is used again.
        self._lock = threading.Lock()
        self._owner: object = None
        self._is_doomed = False
        self._home = everybodys

    @classmethod
    def take(cls, owner: object, payload: bytes, token: CancellationToken, idle: Idle | None = None) -> WorkerProcess:
        """Have an idle worker, or a new one, begin a call."""
        home = everybodys if idle is None else idle
        while True:
            worker = home.pop() or cls()
            worker._owner = owner
            worker._home = home
            try:
                worker._begin(payload, token)
            except (EOFError, OSError) as error:
                ending = worker.bury()
                if worker._is_new:
                    msg = f"a worker process {ending} before it could start; what it wrote to stderr says why"
                    raise WorkerCrashed(msg) from error
                continue  # it had died while it was idle: nothing has started yet
            worker._is_new = False
            return worker

    def _begin(self, payload: bytes, token: CancellationToken) -> None:
        self._number += 1
        timeout = None if token.deadline is None else max(0.0, token.deadline - time.monotonic())
        self._requests.write(("call", self._number, payload, _main_path(), timeout))
        self._answers.read()  # "started": from here on the call is not given to another worker

    def answer(self) -> tuple[str, bytes]:
        """Block until the function has ended. Raises EOFError or OSError when the process has instead."""
        _, kind, body = self._answers.read()
        return kind, body

    def cancel(self, token: CancellationToken, patience: float) -> None:
        """Tell the function that its token is cancelled; not heard if it is dead or deaf."""
        with contextlib.suppress(OSError, ValueError):  # ValueError: the pipe is closed on our side
            self._requests.write(("cancel", self._number, token.reason, token.detail), patience)

    def give_back(self) -> None:
        """The owner's call has ended well: keep the process for the next one."""
        with self._lock:
            self._owner = None
            is_doomed = self._is_doomed
        if is_doomed:
            self.bury()
        else:
            self._home.add(self)

    def kill(self, owner: object) -> None:
        """Kill the process and all it started, if it still works for *owner*; blocks until that is done."""
        with self._lock:
            self._is_doomed = self._is_doomed or self._owner is owner
            if not self._is_doomed:
                return
        families.stop(self._family, 0.0)

    def bury(self) -> str:
        """Take leave of a process that has ended, or ends now, and say how."""
        self._requests.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        families.stop(self._family, 0.0)
        self._answers.close()
        code = self._process.poll()
        if code is None:
            return "did not end"
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def _main_path() -> str | None:
    """The file of the program, whose functions the worker must find; None in an interactive session."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if path is None else str(Path(path).absolute())


def _forget_all() -> None:
    for idle in list(_pools):
        idle.forget()


everybodys: Final = Idle()
_idle: Final = everybodys.workers
after_fork(_forget_all)
