"""A family: some processes and everything they have started, however it tried to get away.

Members are found in four ways, for each of which there is a way out, and together none that was
ever met: as children of members; by the session they were started in; by a cookie in their
environment, which survives ``setsid`` and double forks; and by their control group, where there is
one. Finding needs Linux's ``/proc``. Elsewhere only the process group of the session is known.

A process is named by its number *and* its start time, and is signalled through a descriptor that
was checked against both, so a recycled number is never hit.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING, Final

from halter.cancel.fork import after_fork
from halter.cancel.table import HAS_PROC, children_of_process, look, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from halter.cancel.cgroup import ControlGroup

# How long a killed process may take to disappear before we say that it will not.
PATIENCE: Final = 1.0
# Those who were asked to end mostly do so within this; the whole table is looked through afterwards.
_PROMPT: Final = 0.02
# Reading and signalling takes and gives back Python's lock again and again. If many families end at once they take
# turns, so that whoever waits for control competes with one thread and not with all of them.
_turn = threading.Lock()
_NOBODY: Final[dict[int, int]] = {}


class Family:
    """Processes that belong together and are stopped together."""

    def __init__(
        self,
        roots: Iterable[int],  # children of this process
        *,
        session: int | None = None,
        cookie: bytes | None = None,
        cgroup: ControlGroup | None = None,
        reap: Callable[[], object] | None = None,
        spare: Iterable[int] = (),  # of the roots: whose children are members, and who is none itself
    ) -> None:
        self._spared = frozenset(spare)
        self._sessions = set() if session is None else {session}
        self._cookies = [] if cookie is None else [cookie]
        self._cgroups = [] if cgroup is None else [cgroup]
        # Collects the exit code of our own child, which else would stay a zombie.
        self._reapers = [] if reap is None else [reap]
        self.roots = frozenset(roots)
        # Start times by number, of everybody ever seen here: an orphan is remembered.
        self._known: dict[int, int] = {}
        self._learn(self.roots, os.getpid())

    @classmethod
    def of_families(cls, families: Iterable[Family]) -> Family:
        """All members of several families, to be stopped in one go."""
        union = cls(())
        for family in families:
            union._sessions |= family._sessions
            union._cookies += family._cookies
            union._cgroups += family._cgroups
            union._reapers += family._reapers
            union._known |= family._known
        return union

    def may_have_members(self) -> bool:
        return bool(self._known or self._sessions)

    def stop(self, grace: float) -> list[int]:
        """Ask all to end, kill after *grace* seconds, and return the numbers of those who survived even that.

        Blocks for at most ``grace + PATIENCE`` seconds; returns as soon as nobody is left.
        """
        if not HAS_PROC:
            return self._stop_groups(grace)
        end = time.monotonic() + grace
        with _turn:
            self._learn_descendants()  # before the first of them dies and its children lose their parent
            asked = self._living() if grace > 0 else {}
            self._signal(asked, signal.SIGTERM)
        if grace > 0:
            _wait_until_gone(asked, min(end, time.monotonic() + _PROMPT))
            if self._press(signal.SIGTERM, end, asked):
                return []
        if self._press(signal.SIGKILL, end + PATIENCE):
            return []
        return sorted(self.members())

    def members(self) -> dict[int, int]:
        """Everybody alive in the family, as start times by number."""
        if self._sessions or self._cookies or self._cgroups:
            members = self._search()
        else:  # children are all we know of it, and they are found without looking at everybody
            self._learn_descendants()
            members = self._living()
        self.reap()  # after the look: whoever is not among the living now leaves no zombie either
        return members

    def _search(self) -> dict[int, int]:
        """Look for members in the whole process table."""
        table = look()
        everybody = table.processes
        found = {pid for pid, start in self._known.items() if pid in everybody and everybody[pid].start == start}
        for cgroup in self._cgroups:
            found |= cgroup.members() & everybody.keys()
        marked = [table.sessions.get(session, ()) for session in self._sessions]
        marked += [table.marked.get(cookie, ()) for cookie in self._cookies]
        since = min(self._known.values(), default=0)  # a member is no older than the family
        found.update(pid for pids in marked for pid in pids if everybody[pid].start >= since)
        found = table.descendants(found)
        self._known.update((pid, everybody[pid].start) for pid in found)
        return {pid: everybody[pid].start for pid in found - self._spared if not everybody[pid].is_dead}

    def reap(self) -> None:
        for reap in self._reapers:
            reap()

    def _learn(self, pids: Iterable[int], parent: int) -> list[int]:
        """Remember those who are *parent*'s children; a number may have gone to a stranger since we got it."""
        learned = []
        for pid in pids:
            status = status_of(pid)
            if status is not None and status.parent == parent and pid not in self._known:
                self._known[pid] = status.start
                learned.append(pid)
        return learned

    def _learn_descendants(self) -> None:
        """Remember children of children, by the short way that needs no look at the whole table."""
        todo = [pid for pid, start in self._known.items() if _is_alive(pid, start)]
        while todo:
            parent = todo.pop()
            todo.extend(self._learn(children_of_process(parent), parent))

    def _living(self) -> dict[int, int]:
        known = self._known.items()
        return {pid: start for pid, start in known if pid not in self._spared and _is_alive(pid, start)}

    def _press(self, number: signal.Signals, end: float, asked: Mapping[int, int] = _NOBODY) -> bool:
        """Signal everybody, those born meanwhile too, until nobody is left (True) or it is *end* (False).

        *asked* have got the signal already: many programs take a second TERM for "at once".
        """
        told = set(asked.items())
        while members := self._signal_others(told, number):
            if time.monotonic() >= end:
                return False
            _wait_until_gone(members, end)
        return True

    def _signal_others(self, told: set[tuple[int, int]], number: signal.Signals) -> dict[int, int]:
        """Signal the members that are not in *told*, add them to it, and return all."""
        members = self.members()
        fresh = {pid: start for pid, start in members.items() if (pid, start) not in told}
        with _turn:
            self._signal(fresh, number)
        told.update(fresh.items())
        return members

    def _signal(self, members: dict[int, int], number: signal.Signals) -> None:
        for pid, start in members.items():
            with _descriptor(pid, start) as process:
                if process is not None:
                    _send(process, number)
                    if number is signal.SIGTERM:
                        _send(process, signal.SIGCONT)  # one that is paused could not obey

    def _stop_groups(self, grace: float) -> list[int]:
        """Without ``/proc`` all we know is the process groups, and waiting for them means looking again."""
        pause = threading.Event()
        left = set(self._sessions)
        for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, PATIENCE)):
            end = time.monotonic() + seconds
            while left := {group for group in left if _signal_group(group, number)}:
                if time.monotonic() >= end:
                    break
                pause.wait(0.02)
                self.reap()
        return sorted(left)


def _is_alive(pid: int, start: int) -> bool:
    status = status_of(pid)
    return status is not None and status.start == start and not status.is_dead


@contextlib.contextmanager
def _descriptor(pid: int, start: int) -> Iterator[int | None]:
    """A descriptor of exactly this process, or None if it is gone."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
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
    """Block until all have ended, or it is *end*."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        waiting = set()
        for pid, start in members.items():
            process = stack.enter_context(_descriptor(pid, start))
            if process is not None:
                poll.register(process, select.POLLIN)
                waiting.add(process)
        while waiting and (seconds := end - time.monotonic()) > 0:
            for process, _ in poll.poll(seconds * 1000):
                poll.unregister(process)
                waiting.discard(process)


def _signal_group(group: int, number: signal.Signals) -> bool:
    """Signal a process group; False if there is nobody in it."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _forget_turn() -> None:
    global _turn  # noqa: PLW0603  (a thread that does not exist here may hold it)
    _turn = threading.Lock()


after_fork(_forget_turn)
