"""The commands of one session: its working directory, and the jobs that run in the background.

Jobs belong to the session. They outlive the call and the turn that started them, and end with `stop_all()` or when the
session is closed; until then whatever a command has left behind is listed here too, so that nothing runs unseen.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from halter.toolbox.child import Child
from halter.toolbox.output import LIMIT, Output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from halter.toolbox.child import Link

_MOST_RUNNING: Final = 50
_MOST_ENDED: Final = 50  # that are remembered
_CLOSE_GRACE: Final = 0.3
_CLOSE_PATIENCE: Final = 2.0


class Job:
    """One command, in the foreground or in the background."""

    def __init__(
        self,
        command: str,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        takes_input: bool = False,
        link: Link | None = None,
        on_output: Callable[[bytes], object] | None = None,
        limit: int = LIMIT,
    ) -> None:
        self.id = 0  # once it is in the background
        self.command = command
        self.output = Output(limit)
        self._seen = 0
        self._also = on_output
        self.child = Child(argv, cwd=cwd, env=env, on_output=self._hear, takes_input=takes_input, link=link)

    def _hear(self, piece: bytes) -> None:
        self.output.add(piece)
        if self._also is not None:
            self._also(piece)

    def news(self) -> str:
        """What it has said since this was asked last."""
        since, self._seen = self._seen, self.output.size
        return self.output.text(since)

    @property
    def is_running(self) -> bool:
        return not self.child.is_over

    @property
    def seconds(self) -> float:
        end = self.child.ended_at if self.child.has_exited else None
        return (time.monotonic() if end is None else end) - self.child.started_at

    def state(self) -> str:
        """How it is, in words that fit behind "job 3"."""
        child = self.child
        if child.error is not None:
            return f"failed to run: {child.error}"
        if not child.has_exited:
            doing = "is being ended after" if child.was_stopped else "has been running for"
            return f"{doing} {self.seconds:.1f} s"
        code = child.returncode
        if child.survivors:
            return f"could not be ended: processes {child.survivors} are still there"
        if code is None:
            ended = "was never started"
        elif code < 0:
            ended = f"was ended by {_signal_name(-code)} after {self.seconds:.1f} s"
        else:
            ended = f"ended with exit code {code} after {self.seconds:.1f} s"
        if not child.is_over and child.left:
            ended += f"; {child.left} that it started still run{'s' if child.left == 1 else ''}"
        return ended


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Jobs:
    """What a session has of this: kept by its tools, closed with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._foreground: set[Job] = set()
        self._last = 0
        self._is_closed = False

    def check_room(self) -> None:
        """Refuse another job if there are too many."""
        running = sum(job.is_running for job in list(self._jobs.values()))
        if running >= _MOST_RUNNING:
            msg = f"{running} background jobs run already; end some with the process tool first"
            raise RuntimeError(msg)

    def enter(self, job: Job) -> None:
        """Look after a command in the foreground: it ends with the session, too."""
        with self._lock:
            self._foreground.add(job)
            is_closed = self._is_closed
        if is_closed:
            job.child.stop(0.0)

    def leave(self, job: Job) -> None:
        with self._lock:
            self._foreground.discard(job)

    def add(self, job: Job) -> int:
        """Take a job into the background; returns its number."""
        with self._lock:
            if not job.id:
                self._last += 1
                job.id = self._last
                self._jobs[job.id] = job
            ended = [each for each in self._jobs.values() if not each.is_running]
            for each in ended[:-_MOST_ENDED]:
                del self._jobs[each.id]
            is_closed = self._is_closed
        if is_closed:
            job.child.stop(0.0)
        return job.id

    def all(self) -> list[Job]:
        with self._lock:
            return list(self._jobs.values())

    def get(self, number: int) -> Job:
        with self._lock:
            job = self._jobs.get(number)
            numbers = ", ".join(map(str, self._jobs)) or "none at all"
        if job is None:
            msg = f"there is no job {number}; there are: {numbers}"
            raise LookupError(msg)
        return job

    def stop_all(self, grace: float = _CLOSE_GRACE, patience: float = _CLOSE_PATIENCE) -> list[int]:
        """End all background jobs, and return the numbers of those that did not end in time. Blocks, and is bounded."""
        running = [job for job in self.all() if job.is_running]
        _end(running, grace, patience)
        return [job.id for job in running if job.is_running]

    def close(self) -> None:
        """End everything; nothing can be started after this."""
        with self._lock:
            self._is_closed = True
            everybody = [*self._jobs.values(), *self._foreground]
        _end([job for job in everybody if job.is_running], _CLOSE_GRACE, _CLOSE_PATIENCE)

    @property
    def is_closed(self) -> bool:
        return self._is_closed


def _end(jobs: list[Job], grace: float, patience: float) -> None:
    for job in jobs:
        job.child.stop(grace)
    end = time.monotonic() + grace + patience
    for job in jobs:
        job.child.wait_over(timeout=max(end - time.monotonic(), 0.0))


def shown(command: str, most: int = 80) -> str:
    """A command on one line, shortened."""
    line = " ".join(command.split()) if "\n" in command else command
    return line if len(line) <= most else f"{line[: most - 1]}…"
