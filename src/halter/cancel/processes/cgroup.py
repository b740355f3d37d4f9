"""A control group for the processes of one call, if the administrator has delegated one to us.

``HALTER_CGROUP`` names a directory of a cgroup v2 tree that this user may write to (systemd calls this delegation).
Each command then starts in a group of its own below it. Only a privileged process can leave such a group: ``setsid``,
forking and an empty environment do not help. Linux only; without the variable nothing here is used.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

_VARIABLE: Final = "HALTER_CGROUP"
# The shell moves itself into the group and then becomes the command, so nothing is started outside of the group.
_ENTER: Final = 'echo 0 > "$0" && exec "$@"'


class ControlGroup:
    """The directory of one control group, with the processes of one call."""

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
        """Remove the group if it is empty; a group that still has processes stays."""
        for group in sorted((self._path, *self._path.rglob("*/")), reverse=True):
            with contextlib.suppress(OSError):
                group.rmdir()
