"""The guardian process: waits until the program that started it has ended, and ends what that has left running.

Started as a script by ``halter.cancel.processes.guardian``, whose docstring explains it. Imports nothing of Halter and
little of the standard library, so that it starts quickly and stays small.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

SLOT = 256  # bytes of one entry of the table; the first one is the header
DISMISSED = b"D"  # in the header: the program has exited regularly
TREE = b"T"  # an entry: root, its start time, whether it leads a session, its cookie
FOLDER = b"F"  # an entry: a folder to remove

_TERM_SECONDS = 0.4  # between TERM and KILL
_KILL_SECONDS = 2.0  # a process that still exists after this cannot be killed
_CLOSING_SECONDS = 0.5  # an exiting process closes its descriptors this much earlier at most
# In the middle of an exec, or to other users than root where the program is not to be inspected (PR_SET_DUMPABLE).
_HIDDEN = [b"0", b"0"]
_LOOKS = 10  # at a program that is hidden, until it is taken for the same
_PAUSE = 0.001  # seconds; an exec takes less once it has a core
_FORK_SECONDS = 1.0  # a fork of the program that is younger may be about to call exec
# A kernel thread (PF_KTHREAD), or exiting (PF_EXITING): neither has a program.
_WITHOUT_PROGRAM = 0x200000 | 0x4


def main() -> None:
    process, table, lifeline, pid = (int(word) for word in sys.argv[1:5])
    cookie, program = os.fsencode(sys.argv[5]), [word.encode() for word in sys.argv[6:8]]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # it must not end before the program; its fork ignores them from birth
    if os.fork():
        os._exit(0)  # the program waits for this process; its fork is no child of the program, see guardian.py
    if not _wait_until_gone(process, lifeline, pid, program):
        return
    header, *entries = _read(table)
    if header.startswith(DISMISSED):
        return
    search = _Search(cookie, program, entries)
    search.end(signal.SIGTERM, _TERM_SECONDS)
    search.end(signal.SIGKILL, _KILL_SECONDS)
    folders = [entry[1:] for entry in entries if entry.startswith(FOLDER)]
    if folders:
        import shutil  # takes as long as all other imports together

        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _wait_until_gone(process: int, lifeline: int, pid: int, program: list[bytes]) -> bool:
    """Wait for the end of the program. False if exec has replaced it by another program, also before we began."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    poll.register(lifeline, 0)  # only its end is reported
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if process not in ready:
            # Its end of the pipe is closed, but it still runs. It is about to exit, or exec has replaced it, or it has
            # closed descriptors that it does not know.
            poll.unregister(lifeline)
            for _ in range(_LOOKS):
                if poll.poll(_CLOSING_SECONDS * 1000):
                    return True
                now = _program(pid)
                if now != _HIDDEN:
                    break
            if now and now not in (program, _HIDDEN):  # nothing: it has just ended
                return False
            continue
        return True


def _read(table: int) -> list[bytes]:
    content = os.pread(table, os.fstat(table).st_size, 0)
    entries = [content[at : at + SLOT].rstrip(b"\0") for at in range(0, len(content), SLOT)]
    return [entry for at, entry in enumerate(entries) if at == 0 or entry[:1] in (TREE, FOLDER)]


class _Search:
    """Finds the processes that the program has started: the trees in the table, and all processes with a cookie."""

    def __init__(self, cookie: bytes, program: list[bytes], entries: list[bytes]) -> None:
        self._own = os.getpid()
        self._cookies = [cookie]
        self._program = program
        self._sessions: dict[int, int] = {}  # start times of their leaders
        self._known: dict[int, int] = {}  # start times by number, of all members ever found
        # In the last look. A process has no environment during an exec; between fork and exec it shows the one that the
        # program was started with, in which there is no cookie.
        self._may_have_missed = False
        for entry in entries:
            if entry.startswith(TREE):
                root, start, leads_session, name = entry[1:].split(b" ")
                self._known[int(root)] = int(start)
                if leads_session == b"1":
                    self._sessions[int(root)] = int(start)
                if name:
                    self._cookies.append(name)

    def end(self, number: int, seconds: float) -> None:
        """Signal all members, also new ones, until none is left or the time is over; but once at least."""
        end = time.monotonic() + seconds
        signalled: set[tuple[int, int]] = set()
        while (members := self._members()) or self._may_have_missed:
            if not members:
                time.sleep(_PAUSE)
            fresh = set(members.items()) - signalled
            signalled |= fresh
            _signal_and_wait(members, fresh, number, end)
            if time.monotonic() >= end:
                return

    def _members(self) -> dict[int, int]:
        self._may_have_missed = False
        table = {pid: status for pid in _listed() if pid != self._own and (status := _status(pid)) is not None}
        found = {pid for pid, start in self._known.items() if pid in table and table[pid][2] == start}
        young = (time.clock_gettime(time.CLOCK_BOOTTIME) - _FORK_SECONDS) * os.sysconf("SC_CLK_TCK")
        for pid, (_, session, start, is_dead, program) in table.items():
            if program == self._program != _HIDDEN and start > young and not is_dead:
                self._may_have_missed = True
            # The number of a session is not reused while the session has members.
            if (session in self._sessions and start >= self._sessions[session]) or self._is_marked(pid):
                found.add(pid)
        children: dict[int, list[int]] = {}
        for pid, (parent, *_) in table.items():
            children.setdefault(parent, []).append(pid)
        todo = list(found)
        while todo:
            born = [pid for pid in children.get(todo.pop(), ()) if pid not in found]
            found.update(born)
            todo.extend(born)
        self._known.update((pid, table[pid][2]) for pid in found)
        return {pid: table[pid][2] for pid in found if not table[pid][3]}

    def _is_marked(self, pid: int) -> bool:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123  (as below)
                environment = file.read()
        except OSError:  # it is gone, or belongs to another user
            return False
        if not environment and _is_in_exec(pid):
            self._may_have_missed = True
        return any(cookie in environment for cookie in self._cookies)


def _signal_and_wait(members: dict[int, int], fresh: set[tuple[int, int]], number: int, end: float) -> None:
    """Signal those members that are *fresh*, and wait until all have ended, or it is *end*."""
    poll = select.poll()
    waiting: set[int] = set()
    for pid, start in members.items():
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue
        status = _status(pid)
        if status is None or status[2] != start:  # the number belongs to another process by now
            os.close(descriptor)
            continue
        if (pid, start) in fresh:
            for each in (number, signal.SIGCONT):  # a paused process cannot handle TERM
                try:
                    signal.pidfd_send_signal(descriptor, each)
                except OSError:
                    break
        waiting.add(descriptor)
        poll.register(descriptor, select.POLLIN)
    while waiting and (seconds := end - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(seconds * 1000):
            poll.unregister(descriptor)
            waiting.discard(descriptor)
            os.close(descriptor)
    for descriptor in waiting:
        os.close(descriptor)


def _listed() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  (names, not paths)


def _status(pid: int) -> tuple[int, int, int, bool, list[bytes]] | None:
    """Parent, session, start time, whether it is dead, and its program; None if there is no such process."""
    # The program's name is in parentheses, and may itself contain any character, also parentheses.
    fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields:
        return None
    return int(fields[1]), int(fields[3]), int(fields[19]), fields[0] in b"ZX", fields[47:49]


def _is_in_exec(pid: int) -> bool:
    """Whether a process, which had no environment a moment ago, was in the middle of an exec then, or still is."""
    fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields or fields[0] in b"ZX" or int(fields[6]) & _WITHOUT_PROGRAM:
        return False
    begin, end = fields[47:49]
    return begin != end or end == b"0"


def _program(pid: int) -> list[bytes]:
    """The addresses of a process's environment in its memory, which exec changes."""
    return _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()[47:49]


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123  (pathlib would take longer to import than all the rest)
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
