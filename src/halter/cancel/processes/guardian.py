"""The guardian: a small process that ends what this process has started, if this process is killed.

While this process runs, the registry ends its process trees, at the latest at exit. Nothing of ours runs after ``kill
-9``, a crash of the interpreter or ``os._exit()``. The guardian is for those. It is started with the first process tree
or the first tool call, waits until this process has ended, and then ends every tree that is left: TERM, and KILL 0.4 s
later.

How it notices the end of this process. It polls a descriptor of this process (a pidfd), which this process has opened
and passed on, so there is no process number that could be reused. A pipe alone would not do: a fork without exec, by a
C library for example, keeps its write end open after our end. There is a pipe too, which is closed on exec: if it
closes while we still run, we have become another program, and the guardian exits. If that program uses Halter, it
starts a guardian of its own.

How it finds our processes:

- Trees of the registry. Each has an entry in a table in shared memory while it is registered: its root with its start
  time, whether the root leads a session, and the cookie in its environment. Writing to memory takes a microsecond and
  needs no descriptor that other code could close and reuse, and the table outlives us.
- Everything else that was started below us, such as a plain ``subprocess`` in a tool. After our end it is too late to
  list our children: they belong to init by then. So our own environment gets a cookie when the guardian starts, which
  processes inherit. Not found: a process that a tool has started with an environment of its own, and a fork of ours
  that never calls exec. Forks are left alone on purpose: a program that goes into the background forks, and its parent
  ends by ``os._exit()``. But if a fork is younger than a second, the search goes on: it may be a process that was being
  started at the moment of the kill, which has its own environment only after exec.
- Descendants of all of these, remembered while they are being ended.

It is not a child of ours: a program that waits for all its children (``os.wait()`` until there are none) would wait for
it for ever. It is forked by a process that ends at once, so it belongs to init and leaves no zombie. It has its own
session, ignores Ctrl+C and TERM, and has none of our descriptors but these three, nor our working directory. A regular
exit is noted in the table, and then the guardian ends without searching.

Linux only. Elsewhere, and in a frozen program, where ``sys.executable`` is not Python, nothing is started.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from halter.cancel.fork import after_fork
from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.processes.guardian_main import DISMISSED, FOLDER, SLOT, TREE
from halter.cancel.processes.proc_table import HAS_PROC, status_of
from halter.cancel.threads import pool

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
START_SECONDS: Final = 1.0  # to wait for its start at most
_SLOTS: Final = 4096  # a tree without a slot is still found by the cookie of this process
# What Python may need to start. The rest of our environment has our secrets and our cookie, and is not passed on.
_ENVIRONMENT: Final = ("PATH", "LD_LIBRARY_PATH")
_IS_POSSIBLE: Final = (
    HAS_PROC and hasattr(os, "memfd_create") and bool(sys.executable) and not getattr(sys, "frozen", False)
)


class Guardian:
    """The guardian, as seen from the process that it belongs to: its table, and its start."""

    def __init__(self) -> None:
        self.cookie = f"HALTER_PROCESS_{secrets.token_hex(8)}"
        with contextlib.ExitStack() as undo:
            self._file = os.memfd_create("halter-guardian", os.MFD_CLOEXEC)
            undo.callback(os.close, self._file)
            os.ftruncate(self._file, SLOT * (1 + _SLOTS))
            self._table = mmap.mmap(self._file, SLOT * (1 + _SLOTS))
            self._lifeline, self._write_end = os.pipe()
            undo.pop_all()
        # Offsets of free slots. pop() and append() are atomic. A lock might be held when a fork or a signal handler
        # comes.
        self._free = list(range(SLOT * _SLOTS, 0, -SLOT))
        os.environ[self.cookie] = "1"  # every process that we start from here on inherits it
        self.started = OneShotEvent()
        """Set once the process exists, or could not be started. From then on a `kill -9` leaves nobody alive."""

    def start(self) -> None:
        """Start the process; on a worker thread, because it takes milliseconds. A boundary: an error is only logged."""
        try:
            process = os.pidfd_open(os.getpid())
            descriptors = (process, self._file, self._lifeline)
            script = Path(__file__).with_name("guardian_main.py")
            own = status_of(os.getpid())
            program = () if own is None else map(os.fsdecode, own.environment)  # exec changes it: see guardian_main.py
            try:
                guardian = subprocess.Popen(
                    [
                        *(sys.executable, "-I", "-S", script),
                        *(*map(str, descriptors), str(os.getpid()), self.cookie, *program),
                    ],
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=descriptors,
                    start_new_session=True,
                )
                self.started.set()
                guardian.wait()
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        except Exception:  # noqa: BLE001  (a boundary)
            _log.warning(
                "the guardian could not be started: if this process is killed, its children survive", exc_info=True
            )
        finally:
            self.started.set()

    def note(self, kind: bytes, entry: bytes) -> Callable[[], None]:
        """Write an entry into the table; call the result to erase it."""
        if len(entry) >= SLOT:
            return _do_nothing
        try:
            at = self._free.pop()
        except IndexError:  # the table is full
            return _do_nothing
        self._table[at + 1 : at + SLOT] = entry.ljust(SLOT - 1, b"\0")
        self._table[at : at + 1] = kind  # last: an entry that has a kind is complete

        def erase() -> None:
            self._table[at : at + 1] = b"\0"
            self._free.append(at)

        return erase

    def dismiss(self) -> None:
        self._table[0:1] = DISMISSED

    def close_in_fork(self) -> None:
        """Close the forked child's copy of the pipe: the guardian watches the parent, not the child."""
        os.close(self._write_end)


_guardian: Guardian | None = None
_lock = threading.RLock()  # re-entrant: a finalizer may end a process while its thread holds it


def ensure() -> Guardian | None:
    """Start the guardian if it does not run yet; returns at once. None if there cannot be one, now or at all.

    Raises nothing: without a guardian a process is still stopped as always, and it may be running already.
    """
    global _guardian  # noqa: PLW0603  (there is one for the process)
    if _guardian is None and _IS_POSSIBLE:
        with _lock:
            if _guardian is None:
                try:
                    guardian = Guardian()
                except OSError:  # no descriptor is left: the next call tries again
                    _log.warning("the guardian could not start: if this process is killed, its children survive")
                    return None
                _guardian = guardian
                try:
                    pool.submit(guardian.start)
                except RuntimeError:  # no thread can be started: the interpreter is exiting
                    guardian.started.set()
    return _guardian


def wait_until_started() -> None:
    """Start the guardian if it does not run yet, and block until it exists: call it before a process is started.

    Otherwise a program that is killed just then, on a busy machine, leaves the process behind. Not in an event loop.
    """
    guardian = ensure()
    if guardian is not None:
        guardian.started.wait(START_SECONDS)


async def started() -> None:
    """Start the guardian if it does not run yet, and wait until it exists."""
    guardian = ensure()
    if guardian is not None:
        await guardian.started.wait_async(START_SECONDS)


def environment() -> dict[str, str]:
    """The variable by which the guardian finds a process from its start, for one that does not inherit ours."""
    return {} if _guardian is None else {_guardian.cookie: "1"}


def watch_tree(root: int, start: int, cookie: bytes, *, leads_session: bool) -> Callable[[], None]:
    """Have the guardian end a process tree if this process is killed; call the result when the tree has ended."""
    guardian = ensure()
    if guardian is None:
        return _do_nothing
    return guardian.note(TREE, b"%d %d %d %s" % (root, start, leads_session, cookie))


def watch_folder(path: str) -> Callable[[], None]:
    """Have the guardian remove a folder if this process is killed; call the result when the folder is removed."""
    guardian = ensure()
    return _do_nothing if guardian is None else guardian.note(FOLDER, os.fsencode(path))


def dismiss() -> None:
    """Note a regular exit: processes that still run are meant to."""
    if _guardian is not None:
        _guardian.dismiss()


def _do_nothing() -> None:
    pass


def _after_fork() -> None:
    global _guardian, _lock  # noqa: PLW0603  (the child gets one of its own when it needs one)
    _lock = threading.RLock()
    if _guardian is not None:
        _guardian.close_in_fork()
        _guardian = None


after_fork(_after_fork)
