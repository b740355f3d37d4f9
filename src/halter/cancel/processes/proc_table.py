"""The process table of this machine, read from Linux's ``/proc``.

Concurrent callers share scans: each gets the result of a scan that began after its call, which is as good as a scan of
its own. So a hundred process trees that end at the same time cost a few scans, not a few hundred.

A scan finds every process that exists from its beginning to its end. It lists and reads until a listing has no new
process, because a process may start another and exit between being listed and being read. A process that is just
executing another program has no environment for a moment, and the scan waits until it has one.
"""

from __future__ import annotations

import errno
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
# Seconds. A scan takes a few milliseconds. It takes longer if new processes appear all the time, or if a process hangs
# in exec because its disk does not answer.
_SCAN_TIMEOUT: Final = 0.25
# Seconds. An exec takes less than a millisecond once it has a core. There is no event to wait for.
_PAUSE: Final = 0.001
_COOKIE: Final = re.compile(rb"HALTER_\w+")
_NO_ADDRESS: Final = b"0"
NO_DESCRIPTOR: Final = (errno.EMFILE, errno.ENFILE)  # says nothing about the process
# A kernel thread (PF_KTHREAD), or exiting (PF_EXITING): neither has a program, nor starts processes.
_WITHOUT_PROGRAM: Final = 0x200000 | 0x4


class Status(NamedTuple):
    """The fields of ``/proc/PID/stat`` that are used here."""

    parent: int
    session: int
    start: int  # clock ticks since boot
    is_dead: bool  # a zombie: it has ended, and its exit code was not collected yet
    has_program: bool
    # The addresses of its environment in its memory; exec changes them.
    environment: tuple[bytes, bytes]


class ProcessTable:
    """The result of one scan."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.processes: dict[int, Status] = {}
        self.children: dict[int, list[int]] = {}
        self.sessions: dict[int, list[int]] = {}
        self.marked: dict[bytes, list[int]] = {}  # by cookie: the names in their environment that begin with HALTER_
        self._cookies: dict[int, frozenset[bytes]] = {}

    def fill(self, before: ProcessTable | None) -> None:
        """Scan. Environments that the scan *before* has read are not read again."""
        own = status_of(os.getpid())
        since = 0 if own is None else own.start  # an older process cannot have a cookie of ours
        end: float | None = None  # counts from the end of the first round, however long that took
        in_exec: set[int] = set()
        while todo := (_listed() - self.processes.keys()) | in_exec:
            if todo == in_exec:
                threading.Event().wait(_PAUSE)
            in_exec = {pid for pid in todo if not self._read(pid, since, before)}
            if end is None:
                end = time.monotonic() + _SCAN_TIMEOUT
            elif time.monotonic() > end:
                break
        for pid, status in self.processes.items():
            self.children.setdefault(status.parent, []).append(pid)
            self.sessions.setdefault(status.session, []).append(pid)
        for pid, cookies in self._cookies.items():
            for cookie in cookies:
                self.marked.setdefault(cookie, []).append(pid)

    def _read(self, pid: int, since: int, before: ProcessTable | None) -> bool:
        """Read one process. False if it must be read again, because it is in the middle of an exec."""
        status = status_of(pid)
        if status is None:
            self.processes.pop(pid, None)
            return True
        self.processes[pid] = status
        if status.is_dead or not status.has_program or status.start < since:
            return True
        begin, end = status.environment
        if before is not None and pid in before._cookies and before.processes[pid] == status and end != _NO_ADDRESS:
            self._cookies[pid] = before._cookies[pid]
            return True
        environment = _environment(pid)
        if environment is None:  # it is gone, or belongs to another user
            return True
        if not environment and (begin != end or end == _NO_ADDRESS):
            return False
        self._cookies[pid] = frozenset(_COOKIE.findall(environment))
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


class _Scanner:
    """Runs one scan at a time, and shares its result."""

    def __init__(self) -> None:
        # Held during a scan, which takes and releases the interpreter lock thousands of times. With one scan at a time,
        # a caller that waits for control competes with one thread, not with all that end a process tree.
        self._lock = threading.Lock()
        self._begun = 0
        self._latest: ProcessTable | None = None

    def scan(self) -> ProcessTable:
        # A scan gets its number before it begins. So a scan with a higher number than the latest one that had begun
        # when we were called began after that.
        asked = self._begun
        with self._lock:
            latest = self._latest
            if latest is not None and latest.number > asked:
                return latest
            self._begun += 1
            table = ProcessTable(self._begun)
            table.fill(latest)
            self._latest = table
            return table


def scan() -> ProcessTable:
    """Read the process table; the result is not older than the call. Blocks for one scan or two."""
    return _scanner.scan()


def status_of(pid: int) -> Status | None:
    """The status of a process; None if there is no such process. Raises OSError if no descriptor is free to look."""
    # The program's name is in parentheses, and may itself contain any character, also parentheses.
    fields = (_content(f"/proc/{pid}/stat") or b"").rpartition(b")")[2].split()
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
    """The child processes of one thread of this process, except those that were waited for."""
    return _numbers(f"/proc/self/task/{thread}/children")


def children_of_process(pid: int) -> list[int]:
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  (names, not paths: this is the hot part of a stop)
    except OSError:
        return []
    return [child for thread in threads for child in _numbers(f"/proc/{pid}/task/{thread}/children")]


def read(path: str) -> bytes:
    """Read a small file of ``/proc``; empty if the process is gone or belongs to another user."""
    try:
        return _content(path) or b""
    except OSError:  # no descriptor is free
        return b""


def _environment(pid: int) -> bytes | None:
    return _content(f"/proc/{pid}/environ")


def _content(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise
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


def _after_fork() -> None:
    global _scanner  # noqa: PLW0603  (a thread that does not exist in the child may hold its lock)
    _scanner = _Scanner()


_scanner = _Scanner()
after_fork(_after_fork)
