"""A process tree: some root processes and everything that they have started.

Members are found in four ways: as children of members; by the session in which they were started; by a cookie in their
environment, which survives ``setsid`` and double forks; and by their control group, if there is one. A process can
escape each of these, but we know of none that escapes all. Finding them needs Linux's ``/proc``; elsewhere only the
process group of the session is known.

A process is identified by its number *and* its start time. It is signalled through a descriptor that was checked
against both, so a signal never goes to another process that was given the number later.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from halter.cancel.fork import after_fork
from halter.cancel.processes import guardian
from halter.cancel.processes.proc_table import HAS_PROC, NO_DESCRIPTOR, children_of_process, scan, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from halter.cancel.processes.cgroup import ControlGroup

COOKIE: Final = "HALTER_TREE_"  # how the names of all cookies begin
# Seconds that a killed process may take to disappear. After that it is reported as a survivor.
KILL_TIMEOUT: Final = 1.0
# Most processes end within this many seconds of a TERM. The whole process table is scanned only afterwards.
_TERM_WAIT: Final = 0.02
# Reading /proc and signalling takes and releases the interpreter lock again and again. Trees that end at the same time
# do it one after another, so that a caller that waits for control competes with one thread, not with all of them.
_lock = threading.Lock()
_NONE: Final[dict[int, int]] = {}
_MAX_POLL: Final = 1e6  # seconds; poll() takes its milliseconds as an int of C


class ProcessTree:
    """Processes that belong together and are stopped together."""

    def __init__(
        self,
        roots: Iterable[int],  # children of this process
        *,
        session: int | None = None,
        cookie: bytes | None = None,
        cgroup: ControlGroup | None = None,
        reap: Callable[[], object] | None = None,
        spare: Iterable[int] = (),  # roots that are not members themselves; their children are
    ) -> None:
        self._spared = frozenset(spare)
        self._sessions = set() if session is None else {session}
        self._cookies = [] if cookie is None else [cookie]
        self._cgroups = [] if cgroup is None else [cgroup]
        # Collects the exit code of our own child, which would stay a zombie otherwise.
        self._reapers = [] if reap is None else [reap]
        self.roots = frozenset(roots)
        # Start times by number, of all members ever found: a member is still known after its parent has died.
        self._known: dict[int, int] = {}
        with contextlib.suppress(OSError):  # no descriptor is free: the session and the cookie are known all the same
            self._remember(self.roots, os.getpid())

    @classmethod
    def union_of(cls, trees: Iterable[ProcessTree]) -> ProcessTree:
        """One tree with the members of several, to stop them together."""
        union = cls(())
        for tree in trees:
            union._sessions |= tree._sessions
            union._cookies += tree._cookies
            union._cgroups += tree._cgroups
            union._reapers += tree._reapers
            union._known |= tree._known
        return union

    def watch(self) -> Callable[[], None]:
        """Have the guardian end the tree if this process is killed; call the result when the tree has ended."""
        cookie = self._cookies[0] if self._cookies else b""
        roots = [root for root in self.roots - self._spared if root in self._known]
        entries = [
            guardian.watch_tree(root, self._known.get(root, 0), cookie, leads_session=root in self._sessions)
            for root in roots or [0]  # no root is known yet: by its cookie alone
        ]

        def erase_all() -> None:
            while entries:  # popped, so that each is erased once
                entries.pop()()

        return erase_all

    def may_have_members(self) -> bool:
        return bool(self._known or self._sessions or self._cookies)

    def stop(self, grace: float) -> list[int]:
        """Send TERM to all, KILL after *grace* seconds, and return the numbers of those that survive both.

        Blocks for about ``grace + KILL_TIMEOUT`` seconds at most; returns as soon as no member is left.
        """
        if not HAS_PROC:
            return self._stop_groups(grace)
        try:
            return self._stop_members(grace)
        except OSError:  # no descriptor is free to look into /proc, or to signal a member
            left = self._stop_groups(grace)
        with contextlib.suppress(OSError):  # by now one may be free, to find those that are in no group
            return self._stop_members(0.0)
        return left if self._sessions else sorted(self._known)

    def _stop_members(self, grace: float) -> list[int]:
        end = time.monotonic() + grace
        with _lock:
            self._remember_descendants()  # before the first of them dies and its children lose their parent
            asked = self._living() if grace > 0 else {}
            self._signal(asked, signal.SIGTERM)
        if grace > 0:
            _wait_until_gone(asked, min(end, time.monotonic() + _TERM_WAIT))
            if self._signal_until_gone(signal.SIGTERM, end, asked):
                return []
        # However late it is by then: what is killed gets its time to end.
        if self._signal_until_gone(signal.SIGKILL, max(end, time.monotonic()) + KILL_TIMEOUT):
            return []
        return sorted(self.members())

    def members(self) -> dict[int, int]:
        """All living members, as start times by number."""
        if self._sessions or self._cookies or self._cgroups:
            members = self._search()
        else:  # members are found only as children, which needs no scan
            self._remember_descendants()
            members = self._living()
        self.reap()  # after the scan: a root that is not among the living now leaves no zombie either
        return members

    def _search(self) -> dict[int, int]:
        """Find members in the whole process table."""
        table = scan()
        processes = table.processes
        found = {pid for pid, start in self._known.items() if pid in processes and processes[pid].start == start}
        for cgroup in self._cgroups:
            found |= cgroup.members() & processes.keys()
        marked = [table.sessions.get(session, ()) for session in self._sessions]
        marked += [table.marked.get(cookie, ()) for cookie in self._cookies]
        since = min(self._known.values(), default=0)  # no member is older than its tree
        found.update(pid for pids in marked for pid in pids if processes[pid].start >= since)
        found = table.descendants(found)
        self._known.update((pid, processes[pid].start) for pid in found)
        return {pid: processes[pid].start for pid in found - self._spared if not processes[pid].is_dead}

    def reap(self) -> None:
        for reap in self._reapers:
            reap()

    def _remember(self, pids: Iterable[int], parent: int) -> list[int]:
        """Remember those that are children of *parent*: a number may belong to another process by now."""
        added = []
        for pid in pids:
            status = status_of(pid)
            if status is not None and status.parent == parent and pid not in self._known:
                self._known[pid] = status.start
                added.append(pid)
        return added

    def _remember_descendants(self) -> None:
        """Remember children of children; this needs no scan of the whole table."""
        todo = [pid for pid, start in self._known.items() if _is_alive(pid, start)]
        while todo:
            parent = todo.pop()
            todo.extend(self._remember(children_of_process(parent), parent))

    def _living(self) -> dict[int, int]:
        known = self._known.items()
        return {pid: start for pid, start in known if pid not in self._spared and _is_alive(pid, start)}

    def _signal_until_gone(self, number: signal.Signals, end: float, asked: Mapping[int, int] = _NONE) -> bool:
        """Signal all members, also new ones, until none is left (True) or it is *end* (False).

        *asked* have had the signal already: many programs take a second TERM as "end at once".
        """
        signalled = set(asked.items())
        while members := self._signal_new_members(signalled, number):
            if time.monotonic() >= end:
                return False
            _wait_until_gone(members, end)
        return True

    def _signal_new_members(self, signalled: set[tuple[int, int]], number: signal.Signals) -> dict[int, int]:
        """Signal the members that are not in *signalled*, add them to it, and return all."""
        members = self.members()
        fresh = {pid: start for pid, start in members.items() if (pid, start) not in signalled}
        with _lock:
            self._signal(fresh, number)
        signalled.update(fresh.items())
        return members

    def _signal(self, members: dict[int, int], number: signal.Signals) -> None:
        for pid, start in members.items():
            with _descriptor(pid, start) as process:
                if process is not None:
                    _send(process, number)
                    if number is signal.SIGTERM:
                        _send(process, signal.SIGCONT)  # a paused process cannot handle TERM

    def _stop_groups(self, grace: float) -> list[int]:
        """Stop the process groups: without ``/proc`` nothing else is known, and nothing but polling shows their end."""
        pause = threading.Event()
        left = set(self._sessions)
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_TIMEOUT)):
            end = time.monotonic() + seconds
            while left := {group for group in left if _signal_group(group, number)}:
                if time.monotonic() >= end:
                    break
                pause.wait(0.02)
                self.reap()
        return sorted(left)


def new_cookie() -> str:
    """The name of an environment variable that marks the processes of one tree."""
    return f"{COOKIE}{secrets.token_hex(8)}"


def _is_alive(pid: int, start: int) -> bool:
    status = status_of(pid)
    return status is not None and status.start == start and not status.is_dead


@contextlib.contextmanager
def _descriptor(pid: int, start: int) -> Iterator[int | None]:
    """A descriptor of this very process, or None if it is gone. Raises OSError if no descriptor is free."""
    try:
        process = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in NO_DESCRIPTOR:
            raise
        yield None
        return
    try:
        yield process if _is_alive(pid, start) else None
    finally:
        os.close(process)


def _send(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        signal.pidfd_send_signal(process, number)


def _wait_until_gone(members: dict[int, int], end: float) -> None:
    """Block until all have ended, or as many as descriptors are free, or it is *end*."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        waiting: set[int] = set()
        for pid, start in members.items():
            try:
                process = stack.enter_context(_descriptor(pid, start))
            except OSError:
                if not waiting:
                    raise
                break
            if process is not None:
                poll.register(process, select.POLLIN)
                waiting.add(process)
        while waiting and (seconds := end - time.monotonic()) > 0:
            for process, _ in poll.poll(min(seconds, _MAX_POLL) * 1000):
                poll.unregister(process)
                waiting.discard(process)


def _signal_group(group: int, number: signal.Signals) -> bool:
    """Signal a process group; False if it is empty."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _after_fork() -> None:
    global _lock  # noqa: PLW0603  (a thread that does not exist in the child may hold it)
    _lock = threading.Lock()


after_fork(_after_fork)
