"""Atomic writes: a file is replaced completely or not at all, wherever the program is stopped.

A `Draft` is the new content, on disk but not visible yet. `commit()` puts it in place by a rename, which is atomic. On
Linux a draft has no name until just before the rename, so that even the death of the process nearly never leaves
anything behind; elsewhere it has a temporary name in the same directory.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from halter.toolbox.files.workspace import Place

__all__ = ["Draft", "locked_folder", "write_whole"]

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_NAMELESS: Final = getattr(os, "O_TMPFILE", 0)
_MODE: Final = 0o666  # before the umask is applied


class Draft:
    """New content for a place. Commit or discard it; the place must stay open until then."""

    def __init__(self, place: Place, data: bytes, mode: int | None = None) -> None:
        """Write *data* to the disk. *mode* is that of the file that is there, unless it is given."""
        self._place = place
        self._name = ""  # the temporary one, while there is one
        old = place.stat()
        if old is not None:
            place.check_regular(old)
            _check_writable(place)
            mode = stat.S_IMODE(old.st_mode) if mode is None else mode
        self._descriptor = self._create(_MODE if mode is None else 0o600)  # nobody else reads it before it has *mode*
        try:
            _write_all(self._descriptor, data)
            if old is not None:
                self._keep_owner(old)
            if mode is not None:
                os.chmod(self._descriptor if os.chmod in os.supports_fd else self._name, mode)  # noqa: PTH101  (mostly a descriptor)
            os.fsync(self._descriptor)
        except BaseException:
            self.discard()
            raise

    def _create(self, mode: int) -> int:
        place = self._place
        if _NAMELESS and place.directory is not None and os.path.isdir("/proc/self/fd"):  # noqa: PTH112  (no Path needed)
            with contextlib.suppress(OSError):  # not every file system can
                return os.open(".", _NAMELESS | os.O_WRONLY, mode, dir_fd=place.directory)
        name = self._fresh_name()
        descriptor = os.open(name, _NEW, mode, dir_fd=place.directory)
        self._name = name
        return descriptor

    def _fresh_name(self) -> str:
        head, _ = os.path.split(self._place.name)
        return os.path.join(head, f".halter-{secrets.token_hex(8)}.tmp")  # noqa: PTH118  (a name, mostly without a directory)

    def _keep_owner(self, old: os.stat_result) -> None:
        now = os.fstat(self._descriptor)
        if hasattr(os, "fchown") and (now.st_uid, now.st_gid) != (old.st_uid, old.st_gid):
            with contextlib.suppress(OSError):  # only some may give files away
                os.fchown(self._descriptor, old.st_uid, old.st_gid)

    def commit(self, *, sync: bool = True) -> None:
        """Put it in its place. With *sync*, the new name also survives a power cut."""
        place = self._place
        try:
            if not self._name:
                name = self._fresh_name()
                os.link(f"/proc/self/fd/{self._descriptor}", name, dst_dir_fd=place.directory, follow_symlinks=True)
                self._name = name
            os.replace(self._name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
            self._name = ""
        finally:
            self.discard()
        if sync:
            sync_directory(place)

    def discard(self) -> None:
        """Remove it, unless it was committed. Safe at any time, and more than once."""
        name, self._name = self._name, ""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        if name:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._place.directory)


def write_whole(place: Place, data: bytes, mode: int | None = None) -> None:
    """Replace the file at *place*, or create it."""
    Draft(place, data, mode).commit()


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder, which is created if need be, against other processes that change files in it.

    Its owner reads and writes one file, so the wait is short; the lock of a process that has died is free.
    """
    import fcntl

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync_directory(place: Place) -> None:
    """Make the new name survive a power cut, where the system can."""
    if place.directory is None:
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=place.directory)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _check_writable(place: Place) -> None:
    """Refuse a read-only file, which a rename would replace as well."""
    options = {"follow_symlinks": False} if os.access in os.supports_follow_symlinks else {}
    if not os.access(place.name, os.W_OK, dir_fd=place.directory, **options):
        raise PermissionError(f"{place.path} is read-only")


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
