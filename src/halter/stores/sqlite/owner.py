"""The owners of a store's leases, and whether they are alive.

An open store is an owner. It has a small empty file beside the database, named after its process, and holds a lock on
it that the system drops when the process is gone, by whatever end. So an owner is dead if its file is absent or if
nobody holds its lock; no clock is asked, and a process that was only asleep is alive. The lock is the kernel's: it is
seen in every container that shares the directory and the kernel. A child that a process was just starting when it died
holds the lock a moment longer, until it has become its own program: `is_gone()` tells that there is something to wait
for.

Without `fcntl` (on Windows) there is no such lock, and none is needed: there a file that is open cannot be removed.
That way has not been tried on a Windows machine.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows)
    fcntl = None  # type: ignore[assignment]

__all__ = ["Owner", "is_alive", "is_gone", "pid_of", "remove_dead"]


class Owner:
    """An open store, as other processes see it."""

    def __init__(self, database: str) -> None:
        """Raises `OSError` if the directory cannot be written."""
        while True:
            self.id = f"{os.getpid()}-{secrets.token_hex(8)}"
            self._path = _path(database, self.id)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
            if _lock(self._file):
                return
            os.close(self._file)

    def let_go(self) -> None:
        """End the ownership: other processes find no file."""
        with contextlib.suppress(OSError):
            if fcntl is None:  # pragma: no cover  (Windows: while it is open it cannot be removed)
                self.forget_in_child()
            self._path.unlink()
        self.forget_in_child()

    def forget_in_child(self) -> None:
        """Forget the lock that a forked child has inherited; it is the parent's, and stays with the parent."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def is_alive(database: str, owner: str) -> bool:
    """Whether the process of *owner* still has its store open. What a dead one has left is removed."""
    path = _path(database, owner)
    if fcntl is None:  # pragma: no cover  (Windows)
        try:
            path.unlink(missing_ok=True)
        except PermissionError:
            return True
        return False
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError:
        return True  # another user's: assume that it is alive
    try:
        # Shared, so that two processes that check at the same time do not take each other for the owner.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(file)


def remove_dead(database: str) -> list[str]:
    """Remove the files of owners that have died. Returns the owners that live."""
    start = _path(database, "")
    living = []
    for path in start.parent.iterdir():
        if path.name.startswith(start.name):
            owner = path.name.removeprefix(start.name)
            with contextlib.suppress(OSError):  # not ours to remove, or removed already
                if is_alive(database, owner):
                    living.append(owner)
    return living


def pid_of(owner: str) -> int:
    """The process that *owner* was made in."""
    return int(owner.partition("-")[0])


def is_gone(owner: str) -> bool:
    """Whether there is no process with this number. A container sees only its own processes."""
    try:
        os.kill(pid_of(owner), 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # another user's
    return False


def _path(database: str, owner: str) -> Path:
    return Path(f"{database}-owner-{owner}")


def _lock(file: int) -> bool:
    """Lock the file that was just created; False if another process took it for a dead owner's and removed it."""
    if fcntl is None:  # pragma: no cover  (Windows)
        return True
    fcntl.flock(file, fcntl.LOCK_EX)  # a process that checks it holds the lock only briefly
    return os.fstat(file).st_nlink > 0
