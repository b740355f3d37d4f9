"""Cutting what deaf code waits for, so that its thread comes back.

A function that never looks at its token is usually blocked in something that can be ended from
outside: a child process that it started with plain ``subprocess``, or a socket that it reads. Linux
lists the children of *one thread*, so those of a single call can be told from everybody else's.

Children are always cut on Linux; a call pays one system call for it, to know which of its thread's
children were there before. Elsewhere they are left alone, and the call is only abandoned. A child
that moved to another session *and* lost its parent before the stop cannot be attributed to the call
and is not found: what must not escape belongs in ``run_process``.

Sockets are cut only after ``cut_sockets()``. Python offers an audit hook to see them being made, and
such a hook slows down every audited operation of the process a little and can never be taken out
again, so nobody gets one without asking. A socket is shut down and never closed: closing is for the
thread that owns it, since the number of a closed descriptor is given to the next file at once.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import weakref
from typing import Any, Final

from halter.cancel import families
from halter.cancel.family import Family
from halter.cancel.table import HAS_PROC, children_of_thread

_GRACE: Final = 1.0
_NO_CHILDREN: Final[frozenset[int]] = frozenset()
# "Only children of this very thread", for waitid(2); Python has no name for it.
_WNOTHREAD: Final = 0x20000000


class Waits:
    """What one call, on the thread that made this object, may come to wait for."""

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._children_before = _children_now()
        self._sockets: list[weakref.ref[socket.socket]] = []
        _here.waits = self

    def can_be_cut(self) -> bool:
        """Whether there is anything that the call may be waiting for and that can be ended."""
        return bool(self._open_sockets() or self.children())

    def cut(self) -> None:
        """Shut the sockets and end the children of the call; blocks until they have ended."""
        for connection in self._open_sockets():
            _shut_down(connection)
        children = self.children()
        if children:
            families.stop(Family(children), _GRACE)

    def _open_sockets(self) -> list[socket.socket]:
        sockets = [reference() for reference in list(self._sockets)]
        return [connection for connection in sockets if connection is not None and connection.fileno() >= 0]

    def children(self) -> set[int]:
        """The processes that the call has started, and that nobody but the call looks after."""
        if not HAS_PROC:
            return set()
        return set(children_of_thread(self._thread)) - self._children_before - families.roots()


class _Here(threading.local):
    waits: Waits | None = None


_here = _Here()
_is_watching_sockets = False


def cut_sockets() -> None:
    """From now on, shut down the sockets of a blocking call that is stopped. Cannot be undone."""
    global _is_watching_sockets  # noqa: PLW0603  (as the hook itself, it is the process's)
    if not _is_watching_sockets:
        _is_watching_sockets = True
        sys.addaudithook(_note_socket)


def end_of_call() -> None:
    """The thread has finished its call; what it opens from now on belongs to nobody."""
    _here.waits = None


def _note_socket(event: str, args: tuple[Any, ...]) -> None:
    # Making and wrapping (TLS) are seen here, so connecting needs no look of its own.
    if event == "socket.__new__" and _here.waits is not None:
        _here.waits._sockets.append(weakref.ref(args[0]))


def _shut_down(connection: socket.socket) -> None:
    # The plain method, also for TLS: a stranger's thread must not touch the TLS state.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _children_now() -> frozenset[int]:
    """The children of this thread; one system call when there are none, which is nearly always."""
    if not HAS_PROC:
        return _NO_CHILDREN
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _WNOTHREAD)
    except ChildProcessError:
        return _NO_CHILDREN
    return frozenset(children_of_thread(threading.get_native_id()))
