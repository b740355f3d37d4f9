"""Everybody who runs on this machine, as Linux's ``/proc`` tells it.

One look serves all who wait for one. Whoever asks gets what was seen in a look that began after the
question, and that is as good as a look of one's own; so a hundred families that end at the same time
cost a few looks, and not a few hundred.

A look misses nobody who was there all the time. It lists and reads until a listing has no new name in
it, because a process may start another one and end between the listing and its turn to be read. One
that is just becoming another program has no environment for a moment, and the look waits until it has.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.fork import after_fork

if TYPE_CHECKING:
    from collections.abc import Iterable

HAS_PROC: Final = Path("/proc/self/stat").exists() and hasattr(os, "pidfd_open")
# Seconds. A look takes a few milliseconds. It takes longer where somebody new is there all the time, or where one does
# not get into another program, because the disk does not answer.
_LONGEST: Final = 0.25
# Getting into another program takes less than a millisecond, once there is a core for it, and has no event to wait for.
_PAUSE: Final = 0.001
_MARK: Final = re.compile(rb"HALTER_\w+")
_NOWHERE: Final = b"0"
# Of the kernel (PF_KTHREAD), or about to be dead (PF_EXITING): neither has a program, or starts anybody.
_WITHOUT_PROGRAM: Final = 0x200000 | 0x4


class Status(NamedTuple):
    """What ``/proc/PID/stat`` says of a process."""

    parent: int
    session: int
    start: int  # clock ticks since boot
    is_dead: bool  # it has ended, and nobody has asked for its exit code yet
    has_program: bool
    # Where its environment begins and ends in its memory: another place each time that it becomes another program.
    environment: tuple[bytes, bytes]


class Table:
    """What one look has seen."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.processes: dict[int, Status] = {}
        self.children: dict[int, list[int]] = {}
        self.sessions: dict[int, list[int]] = {}
        self.marked: dict[bytes, list[int]] = {}  # by the names in their environment that begin with HALTER_
        self._marks: dict[int, frozenset[bytes]] = {}

    def fill(self, before: Table | None) -> None:
        """Look. What the look *before* knows of environments is not read again."""
        own = status_of(os.getpid())
        since = 0 if own is None else own.start  # nobody who is older can have got a mark from us
        end = time.monotonic() + _LONGEST
        unsettled: set[int] = set()
        while todo := (_listed() - self.processes.keys()) | unsettled:
            if todo == unsettled:
                threading.Event().wait(_PAUSE)
            unsettled = {pid for pid in todo if not self._read(pid, since, before)}
            if time.monotonic() > end:
                break
        for pid, status in self.processes.items():
            self.children.setdefault(status.parent, []).append(pid)
            self.sessions.setdefault(status.session, []).append(pid)
        for pid, marks in self._marks.items():
            for mark in marks:
                self.marked.setdefault(mark, []).append(pid)

    def _read(self, pid: int, since: int, before: Table | None) -> bool:
        """Note one process; False if it must be read again, because it is on its way into another program."""
        status = status_of(pid)
        if status is None:
            self.processes.pop(pid, None)
            return True
        self.processes[pid] = status
        if status.is_dead or not status.has_program or status.start < since:
            return True
        begin, end = status.environment
        if before is not None and pid in before._marks and before.processes[pid] == status and end != _NOWHERE:
            self._marks[pid] = before._marks[pid]
            return True
        environment = _environment(pid)
        if environment is None:  # it is gone, or not ours to look at
            return True
        if not environment and (begin != end or end == _NOWHERE):
            return False
        self._marks[pid] = frozenset(_MARK.findall(environment))
        return True

    def descendants(self, pids: Iterable[int]) -> set[int]:
        """These, their children, and so on."""
        found = set(pids)
        todo = list(found)
        while todo:
            born = [pid for pid in self.children.get(todo.pop(), ()) if pid not in found]
            found.update(born)
            todo.extend(born)
        return found


class _Looks:
    """The looks of this process, one after another."""

    def __init__(self) -> None:
        # Held during a look. A look takes and gives back Python's lock thousands of times; since there is one at a
        # time, whoever waits for control competes with one thread and not with all that end a family.
        self._turn = threading.Lock()
        self._begun = 0
        self._latest: Table | None = None

    def look(self) -> Table:
        # A look has its number before it begins, so one with a higher number than the last one that had begun when we
        # asked has begun after we asked.
        asked = self._begun
        with self._turn:
            latest = self._latest
            if latest is not None and latest.number > asked:
                return latest
            self._begun += 1
            table = Table(self._begun)
            table.fill(latest)
            self._latest = table
            return table


def look() -> Table:
    """See everybody: all that this finds was so after this was called. Blocks for one look or two."""
    return _looks.look()


def status_of(pid: int) -> Status | None:
    """What a process is doing; None if there is none."""
    # The name of the program stands in brackets and may itself hold any character, brackets too.
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields:
        return None
    return Status(
        parent=int(fields[1]),
        session=int(fields[3]),
        start=int(fields[19]),
        is_dead=fields[0] in b"ZX",
        has_program=not int(fields[6]) & _WITHOUT_PROGRAM,
        environment=(fields[47], fields[48]),
    )


def children_of_thread(thread: int) -> list[int]:
    """The processes that one thread of this process has started and not waited for."""
    return _numbers(f"/proc/self/task/{thread}/children")


def children_of_process(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  (names, not paths: this is the hot part of a stop)
    except OSError:
        return []
    return [child for thread in threads for child in _numbers(f"/proc/{pid}/task/{thread}/children")]


def read(path: str) -> bytes:
    """Read a small file of ``/proc``; empty if the process is gone or not ours to look at."""
    return _content(path) or b""


def _environment(pid: int) -> bytes | None:
    return _content(f"/proc/{pid}/environ")


def _content(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        pieces = []
        while piece := os.read(descriptor, 65536):
            pieces.append(piece)
        return b"".join(pieces)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _listed() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208  (as above)


def _numbers(path: str) -> list[int]:
    return [int(word) for word in read(path).split()]


def _start_anew() -> None:
    global _looks  # noqa: PLW0603  (a thread that does not exist here may be looking)
    _looks = _Looks()


_looks = _Looks()
after_fork(_start_anew)
