"""The commands of one session on another machine: its connection, its directory, and the jobs in the background."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from halter.toolbox.output import LIMIT, Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.toolbox.machine import Command, Link, Machine, Running

_MOST_RUNNING: Final = 5  # see ssh.py: a server lets a connection have only so many
_MOST_ENDED: Final = 50  # that are remembered
_STOP_GRACE: Final = 0.3
_STOP_PATIENCE: Final = 2.0
_MOST_REPORTED: Final = 4000
_BETWEEN_REPORTS: Final = 0.1  # seconds


class RemoteJob:
    """One command, in the foreground or in the background, and what it has said."""

    def __init__(
        self,
        command: str,
        link: Link,
        wanted: Command,
        *,
        limit: int = LIMIT,
        report: Callable[[str], object] | None = None,
    ) -> None:
        self.id = 0  # once it is in the background
        self.command = command
        self._output = Output(limit)
        self._seen = 0
        self._report = report
        self._next_report = 0.0
        self.running: Running = link.start(wanted, self._hear)

    def _hear(self, piece: bytes) -> None:
        self._output.add(piece)
        now = time.monotonic()
        if self._report is not None and now >= self._next_report:
            self._next_report = now + _BETWEEN_REPORTS
            self._report(piece[-_MOST_REPORTED:].decode(errors="replace"))

    def news(self) -> str:
        """What it has said since this was asked last."""
        since, self._seen = self._seen, self._output.size
        return self._output.text(since)

    def state(self) -> str:  # noqa: PLR0911  (one for each state)
        """How it is, in words that fit behind "job 3"."""
        running = self.running
        took = f"after {running.seconds:.1f} s"
        if running.error is not None and running.pid is None:
            return f"failed to run: {running.error}"
        if running.is_lost:
            return f"lost its connection {took}; {self._who_is_left()}"
        if running.survivors:
            return f"could not be ended: {self._who_is_left()}"
        if not running.is_over:
            return f"is being ended {took}" if running.was_stopped else f"runs for {running.seconds:.1f} s"
        if running.pid is None:
            return "was never started"
        if running.was_stopped:
            return f"was stopped {took}; {self._who_is_left()}"
        return f"ended with exit code {running.returncode} {took}"

    def _who_is_left(self) -> str:
        running = self.running
        if running.survivors:
            return f"processes {running.survivors} are still there"
        if running.is_gone:
            return "all its processes have ended"
        if running.is_over:
            return "the machine cannot be asked whether its processes have ended; it ends them when it notices"
        return "its processes are being ended"

    def text(self, jobs: RemoteJobs) -> str:
        """What it has said, how it ended, and where it has gone to."""
        running = self.running
        if running.was_stopped or running.is_lost or running.survivors:
            if running.pid is None and running.is_over and not running.is_lost:
                note = "stopped before it was started"
            elif running.was_stopped and not running.is_lost and not running.survivors:
                note = f"stopped after {running.seconds:.1f} s; {self._who_is_left()}"
            else:
                note = f"it {self.state()}"
        else:
            note = f"exit code {running.returncode}"
            if running.directory and running.directory != running.began_in:
                jobs.directory = running.directory
                note += f"; now in {running.directory}"
        return f"{on_own_line(self._output.text())}[{note}]"


class RemoteJobs:
    """What a session has of this: kept by its tools, closed with it."""

    def __init__(self, machine: Machine) -> None:
        self.link = machine.open()
        self.directory = machine.directory
        self._lock = threading.Lock()
        self._jobs: dict[int, RemoteJob] = {}
        self._last = 0

    def check_room(self) -> None:
        """Refuse another job if there are too many."""
        running = sum(not job.running.is_over for job in self.all())
        if running >= _MOST_RUNNING:
            msg = f"{running} background jobs run already; end some with the process tool first"
            raise RuntimeError(msg)

    def add(self, job: RemoteJob) -> int:
        """Take a job into the background; returns its number."""
        with self._lock:
            self._last += 1
            job.id = self._last
            self._jobs[job.id] = job
            ended = [each for each in self._jobs.values() if each.running.is_over]
            for each in ended[:-_MOST_ENDED]:
                del self._jobs[each.id]
        return job.id

    def remove(self, job: RemoteJob) -> None:
        with self._lock:
            self._jobs.pop(job.id, None)

    def all(self) -> list[RemoteJob]:
        with self._lock:
            return list(self._jobs.values())

    def get(self, number: int) -> RemoteJob:
        with self._lock:
            job = self._jobs.get(number)
            numbers = ", ".join(map(str, self._jobs)) or "none at all"
        if job is None:
            msg = f"there is no job {number}; there are: {numbers}"
            raise LookupError(msg)
        return job

    def stop_all(self) -> None:
        """End all background jobs. Blocks, and is bounded."""
        running = [job.running for job in self.all() if not job.running.is_over]
        for each in running:
            each.stop(_STOP_GRACE)
        end = time.monotonic() + _STOP_PATIENCE
        for each in running:
            each.wait_over(timeout=max(end - time.monotonic(), 0.0))

    def close(self) -> None:
        """End everything, and the connection."""
        self.link.close()


def shown(command: str, most: int = 80) -> str:
    """A command on one line, shortened."""
    line = " ".join(command.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def on_own_line(text: str) -> str:
    return text if not text or text.endswith("\n") else f"{text}\n"
