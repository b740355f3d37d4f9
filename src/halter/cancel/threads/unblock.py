"""Unblocks functions that ignore their token: ends what they wait for, so that they return.

A function that never checks its token is usually blocked in something that can be ended from outside: a child process
that it started with plain ``subprocess``, or a socket that it reads. Linux lists the children of *one thread*, so the
children of one call can be told from all others.

On Linux, child processes are always ended. Each call pays one system call for it, to know which children its thread had
before. Elsewhere they are left alone, and the call is only abandoned. A child that moved to another session *and* lost
its parent before the stop cannot be attributed to the call and is not found: use ``run_process`` for what must not
escape.

Sockets are shut down only after ``cut_sockets()``. It installs an audit hook that sees each new socket. Such a hook
slows down every audited operation of the process a little and can never be removed, so it is not installed by default.
A socket is shut down, never closed: only the thread that owns it may close it, because the number of a closed
descriptor is given to the next file that is opened.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
import weakref
from typing import Any, Final

from halter.cancel.processes import registry
from halter.cancel.processes.proc_table import HAS_PROC, children_of_thread
from halter.cancel.processes.tree import ProcessTree

_GRACE: Final = 1.0  # seconds between TERM and KILL
_NO_CHILDREN: Final[frozenset[int]] = frozenset()
# "Only children of this very thread", for waitid(2); Python has no name for it.
_WNOTHREAD: Final = 0x20000000


class ThreadWaits:
    """The child processes and sockets of one call, which runs on the thread that made this object."""

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._children_before = _children_now()
        self._sockets: list[weakref.ref[socket.socket]] = []
        self.is_over = False  # the call has ended, and its thread may run the next one
        _here.waits = self

    def can_unblock(self, since: float) -> bool:
        """Whether the call waits, some time after *since* by time.monotonic(), for something that can be ended."""
        return bool(self._open_sockets() or (_process_has_children(since) and self.children()))

    def unblock(self) -> None:
        """Shut down the sockets and end the children of the call; blocks until they have ended."""
        for connection in self._open_sockets():
            _shut_down(connection)
        children = self.children()
        if children:
            registry.stop(ProcessTree(children), _GRACE)

    def _open_sockets(self) -> list[socket.socket]:
        sockets = [reference() for reference in list(self._sockets)]
        found = [connection for connection in sockets if connection is not None and connection.fileno() >= 0]
        return [] if self.is_over else found

    def children(self) -> set[int]:
        """The child processes of the call, except those that the registry ends; none once the call has ended."""
        if not HAS_PROC:
            return set()
        found = set(children_of_thread(self._thread)) - self._children_before - registry.roots()
        # Listed first, then checked: while the call runs, its thread has no children of the next call.
        return set() if self.is_over else found


class _Here(threading.local):
    waits: ThreadWaits | None = None


_here = _Here()
_is_watching_sockets = False
_last_check = (0.0, False)  # when _process_has_children() made its last system call, and the result


def cut_sockets() -> None:
    """From now on, shut down the sockets of a blocking call that is stopped. Cannot be undone."""
    global _is_watching_sockets  # noqa: PLW0603  (one for the process, as the hook)
    if not _is_watching_sockets:
        _is_watching_sockets = True
        sys.addaudithook(_note_socket)


def end_of_call() -> None:
    """The call of this thread has ended: what the thread opens or starts from now on does not belong to it."""
    waits, _here.waits = _here.waits, None
    if waits is not None:
        waits.is_over = True


def _note_socket(event: str, args: tuple[Any, ...]) -> None:
    # Every socket passes here, also one that wraps another for TLS. So there is no need to look at "connect".
    if event == "socket.__new__" and _here.waits is not None:
        _here.waits._sockets.append(weakref.ref(args[0]))


def _shut_down(connection: socket.socket) -> None:
    # The plain method, also for TLS: another thread must not touch the TLS state.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _process_has_children(since: float) -> bool:
    """Whether this process had a child when this was last checked, which was after *since*.

    Calls that are stopped together share one check: while they hold the interpreter lock, each system call may take
    milliseconds.
    """
    global _last_check  # noqa: PLW0603  (one for the process)
    checked_at, found = _last_check
    if checked_at <= since:
        checked_at = time.monotonic()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            found = True
        except ChildProcessError:
            found = False
        _last_check = (checked_at, found)
    return found


def _children_now() -> frozenset[int]:
    """The children of this thread; one system call when there are none, which is nearly always."""
    if not HAS_PROC:
        return _NO_CHILDREN
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WNOTHREAD)
    except ChildProcessError:
        return _NO_CHILDREN
    return frozenset(children_of_thread(threading.get_native_id()))
