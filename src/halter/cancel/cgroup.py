"""A control group for the processes of one call, where the administrator has given us a place for it.

``HALTER_CGROUP`` names a directory of a cgroup v2 tree that this user may write to (systemd calls
that delegation). Every process we start is then born in a group of its own below it, which nothing
but a privileged process can leave: not by ``setsid``, not by forking, not by emptying its
environment. Linux only; without the variable nothing here is used.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_VARIABLE: Final = "HALTER_CGROUP"
# Moves itself, then becomes the command. Between the two nothing can have been started.
_ENTER: Final = 'echo 0 > "$0" && exec "$@"'


class ControlGroup:
    """A directory of the cgroup tree with the processes of one call in it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def create(cls, name: str) -> ControlGroup | None:
        """Make one below ``HALTER_CGROUP``; None if that is not set."""
        parent = os.environ.get(_VARIABLE)
        if not parent:
            return None
        path = Path(parent) / name
        try:
            path.mkdir()
        except OSError as error:
            msg = f"{_VARIABLE}={parent} must name a cgroup v2 directory that this user may write to"
            raise OSError(error.errno, f"{msg}: {error.strerror}") from error
        return cls(path)

    def enter(self, argv: list[str]) -> list[str]:
        """The command that runs *argv* inside this group."""
        return ["/bin/sh", "-c", _ENTER, str(self._path / "cgroup.procs"), *argv]

    def members(self) -> set[int]:
        found: set[int] = set()
        for group in (self._path, *self._path.rglob("*/")):
            with contextlib.suppress(OSError):
                found.update(int(word) for word in (group / "cgroup.procs").read_text().split())
        return found

    def remove(self) -> None:
        """Remove the empty group; one that still holds processes stays, and so does its name."""
        for group in sorted((self._path, *self._path.rglob("*/")), reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()
