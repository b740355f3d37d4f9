"""The commands of one session: its working directory, and the jobs that run in the background.

A job is a process, on this machine or on another. Jobs belong to the session. They outlive the call and the turn that
started them, and end with `stop_all()` or when the session is closed. Processes that a foreground command has left
running are listed as jobs too, so that nothing runs unseen.
"""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from halter.toolbox.terminal.output import LIMIT, CommandOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halter.toolbox.sandbox.sandbox import Sandbox
    from halter.toolbox.terminal.job_process import JobProcess
    from halter.toolbox.terminal.output import Progress

_MAX_RUNNING: Final = 50
_MAX_ENDED: Final = 50  # that are remembered
_CLOSE_GRACE: Final = 0.3  # seconds
_CLOSE_TIMEOUT: Final = 2.0  # seconds


class Job:
    """One command, in the foreground or in the background, and its output."""

    def __init__(
        self,
        command: str,
        start: Callable[[Callable[[bytes], object]], JobProcess],  # starts it; called with the handler of its output
        *,
        limit: int = LIMIT,
        progress: Progress | None = None,
    ) -> None:
        self.id = 0  # once it is in the background
        self.command = command
        self.output = CommandOutput(limit)
        self._shown = 0
        self._progress = progress
        self.process = start(self._on_output)

    def _on_output(self, piece: bytes) -> None:
        self.output.add(piece)
        if self._progress is not None:
            self._progress.add(piece)

    def new_output(self) -> str:
        """The output since the last call."""
        text, self._shown = self.output.text_and_position(self._shown, is_complete=not self.is_running)
        return text

    @property
    def is_running(self) -> bool:
        return not self.process.is_over

    @property
    def seconds(self) -> float:
        return (self.process.ended_at or time.monotonic()) - self.process.started_at

    def state(self) -> str:
        """Its state, to be read after "job 3"."""
        process = self.process
        took = f"after {self.seconds:.1f} s"
        if process.error is not None and (process.pid is None or not process.is_lost):
            return f"failed to run: {process.error}"
        if process.is_lost:
            return f"lost its connection {took}; {self.remaining_text()}"
        if process.survivors:
            return f"could not be ended: {self.remaining_text()}"
        if not process.has_exited:
            return f"is being ended {took}" if process.was_stopped else f"has been running for {self.seconds:.1f} s"
        if process.pid is None:
            return "was never started"
        return self._ending(took)

    def _ending(self, took: str) -> str:
        process, code = self.process, self.process.returncode
        if code is not None and code < 0:
            ended = f"was ended by {_signal_name(-code)} {took}"
        elif process.was_stopped:
            ended = f"was stopped {took}"
        else:
            ended = f"ended with exit code {code} {took}"
        if process.was_stopped:
            return f"{ended}; {self.remaining_text()}"
        if not process.is_over and process.left:
            ended += f"; {process.left} that it started still run{'s' if process.left == 1 else ''}"
        return ended

    def remaining_text(self) -> str:
        """What is known about its processes after a stop."""
        process = self.process
        if process.survivors:
            return f"processes {process.survivors} are still running"
        if process.is_gone:
            return "all its processes have ended"
        if process.is_over:
            return "the machine cannot be reached to confirm that its processes have ended; it will end them by itself"
        return "its processes are being ended"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Jobs:
    """The working directory and the jobs of a session. Closed with the session."""

    def __init__(self, directory: str, max_running: int = _MAX_RUNNING) -> None:
        self.directory = directory
        self.sandbox: Sandbox | None = None  # of the session
        self._max_running = max_running
        self._lock = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._foreground: set[Job] = set()
        self._last = 0
        self._is_closed = False

    def check_room(self) -> None:
        """Refuse another job if there are too many."""
        running = sum(job.is_running for job in self.all())
        if running >= self._max_running:
            raise RuntimeError(f"{running} background jobs are running already; end some with the process tool first")

    def enter(self, job: Job) -> None:
        """Register a foreground command: it ends with the session too."""
        with self._lock:
            self._foreground.add(job)
            is_closed = self._is_closed
        if is_closed:
            job.process.stop(0.0)

    def leave(self, job: Job) -> None:
        with self._lock:
            self._foreground.discard(job)

    def add(self, job: Job) -> int:
        """Register a background job; returns its number."""
        with self._lock:
            if not job.id:
                self._last += 1
                job.id = self._last
                self._jobs[job.id] = job
            ended = [each for each in self._jobs.values() if not each.is_running]
            for each in ended[:-_MAX_ENDED]:
                del self._jobs[each.id]
            is_closed = self._is_closed
        if is_closed:
            job.process.stop(0.0)
        return job.id

    def remove(self, job: Job) -> None:
        """Remove a job that was never started."""
        with self._lock:
            self._jobs.pop(job.id, None)

    def all(self) -> list[Job]:
        with self._lock:
            return list(self._jobs.values())

    def get(self, number: int) -> Job:
        with self._lock:
            job = self._jobs.get(number)
            numbers = ", ".join(map(str, self._jobs)) or "none"
        if job is None:
            raise LookupError(f"no job {number}; existing jobs: {numbers}")
        return job

    def stop_all(self, grace: float = _CLOSE_GRACE, timeout: float = _CLOSE_TIMEOUT) -> list[int]:
        """End all background jobs, and return the numbers of those that did not end in time. Blocks, and is bounded."""
        running = [job for job in self.all() if job.is_running]
        _end(running, grace, timeout)
        return [job.id for job in running if job.is_running]

    def close(self) -> None:
        """End everything; nothing can be started after that."""
        with self._lock:
            self._is_closed = True
            jobs = [*self._jobs.values(), *self._foreground]
        _end([job for job in jobs if job.is_running], _CLOSE_GRACE, _CLOSE_TIMEOUT)

    @property
    def is_closed(self) -> bool:
        return self._is_closed


def _end(jobs: Sequence[Job], grace: float, timeout: float) -> None:
    for job in jobs:
        job.process.stop(grace)
    end = time.monotonic() + grace + timeout
    for job in jobs:
        job.process.wait(lambda job=job: not job.is_running, timeout=max(end - time.monotonic(), 0.0))  # type: ignore[misc]
