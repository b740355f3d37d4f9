"""Puts files back: one after the other, each of them completely or not at all.

A file is restored if it is as the turn left it. One that is as it was before the turn is done already, so restoring
again after a stop, or after the death of the process, completes the work. Every other file was changed by others, and
is kept. No step follows a link, so nothing outside of the workspace is read or written.

A write by others between the comparison and the rename of one file would be lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from typing import TYPE_CHECKING, Final

from halter.cancel.context import checkpoint
from halter.toolbox.files.atomic import Draft, sync_directory
from halter.toolbox.files.checkpoints.changes import LINK, PROGRAM, Entry, TurnChange, display_path, entry_at
from halter.toolbox.files.workspace import Place
from halter.tools.file_history import RestoredFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    ReadBlobs = Callable[[Iterable[str]], Iterator[tuple[str, bytes]]]

__all__ = ["find_kept", "find_place", "may_restore_any", "restore_files"]

_DIRECTORY: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
CHANGED: Final = "changed since"


def restore_files(root: Path, changes: Sequence[TurnChange], read: ReadBlobs, max_size: int) -> RestoredFiles:
    """Restore what is as the turn left it. Raises Cancelled between two files after a stop."""
    result = RestoredFiles()
    created = [change for change in changes if change.before is None]
    others = [change for change in changes if change.before is not None]
    for change in created:  # first: they may be in the way of what the turn deleted
        checkpoint()
        if _may_restore(root, change, max_size, result):
            _restore(root, change, b"", max_size, result)
    wanted: dict[str, list[TurnChange]] = {}
    for change in others:
        checkpoint()
        if _may_restore(root, change, max_size, result):
            assert change.before is not None
            wanted.setdefault(change.before.blob, []).append(change)
    for blob, data in read(list(wanted)):
        for change in wanted.pop(blob):
            checkpoint()
            _restore(root, change, data, max_size, result)
    for change in (each for left in wanted.values() for each in left):
        result.kept[display_path(change.path)] = "its earlier content is no longer stored"
    result.restored.sort()
    return result


def _may_restore(root: Path, change: TurnChange, max_size: int, result: RestoredFiles) -> bool:
    decision = _decide(root, change, max_size)
    if decision not in ("restore", "done"):
        result.kept[display_path(change.path)] = decision
    return decision == "restore"


def find_kept(root: Path, change: TurnChange, max_size: int) -> str:
    """Why a restore would keep a file as it is; empty if it would restore it, or need not."""
    decision = _decide(root, change, max_size)
    return "" if decision in ("restore", "done") else decision


def may_restore_any(root: Path, changes: Sequence[TurnChange], max_size: int) -> bool:
    """Whether a restore would restore a file: each of the others is as it was before the turn, or kept."""
    return any(_decide(root, change, max_size) == "restore" for change in changes)


def _decide(root: Path, change: TurnChange, max_size: int) -> str:
    """What to do with a file: "restore", "done", or the reason to keep it."""
    if change.before is not None and not change.before.blob:
        return "its earlier content was not kept"
    try:
        with find_place(root, change.path) as place:
            now = entry_at(place, max_size) if place is not None else None
    except OSError as error:
        return error.strerror or str(error)
    if now == change.before:
        return "done"
    # "other" may be an empty folder, which `_restore()` removes.
    if now == change.after or (now == "other" and change.after is None):
        return "restore"
    return CHANGED


def _restore(root: Path, change: TurnChange, data: bytes, max_size: int, result: RestoredFiles) -> None:
    """Restore one file; if it cannot be, it is kept, with the reason."""
    name = display_path(change.path)
    try:
        with find_place(root, change.path, make=change.before is not None) as place:
            if place is None:  # its folder was removed meanwhile, and it with it
                return
            now = entry_at(place, max_size)
            if now == "other" and change.after is None and change.before is not None:
                os.rmdir(place.name, dir_fd=place.directory)  # fails unless it is an empty folder, left by the turn
                now = None
            if now != change.after:
                result.kept[name] = CHANGED
                return
            _write(place, change.before, data)
    except OSError as error:
        result.kept[name] = error.strerror or str(error)
    else:
        result.restored.append(name)


def _write(place: Place, entry: Entry | None, data: bytes) -> None:
    if entry is None:
        os.unlink(place.name, dir_fd=place.directory)
        sync_directory(place)
        return
    old = place.stat()
    if entry.kind == LINK or (old is not None and stat.S_ISLNK(old.st_mode)):
        _write_link_or_over_link(place, entry, data)
        return
    Draft(place, data, _mode(place, old, entry)).commit()


def _write_link_or_over_link(place: Place, entry: Entry, data: bytes) -> None:
    """A link is replaced by a rename as well, whatever was there."""
    name = f".halter-{secrets.token_hex(8)}.tmp"
    try:
        if entry.kind == LINK:
            os.symlink(os.fsdecode(data), name, dir_fd=place.directory)
        else:
            Draft(Place(place.directory, name, place.path), data, _mode(place, None, entry)).commit()
        os.replace(name, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=place.directory)
        raise
    sync_directory(place)


def _mode(place: Place, old: os.stat_result | None, entry: Entry) -> int | None:
    """The permissions of the file that is there, executable or not. A new file gets those of a new file."""
    is_program = entry.kind == PROGRAM
    if old is None or not stat.S_ISREG(old.st_mode):
        folder = os.stat(".", dir_fd=place.directory).st_mode if place.directory is not None else 0o755
        return 0o755 & (folder | 0o700) if is_program else None  # not more than its folder allows others
    mode = stat.S_IMODE(old.st_mode)
    return mode | (mode & 0o444) >> 2 if is_program else mode & ~0o111


@contextlib.contextmanager
def find_place(root: Path, path: str, *, make: bool = False) -> Iterator[Place | None]:
    """The place of a path; None if one of its directories is missing. A link among them is an error."""
    *folders, name = path.split("/")
    folder = os.open(root, _DIRECTORY)
    try:
        for each in folders:
            try:
                inner = os.open(each, _DIRECTORY, dir_fd=folder)
            except FileNotFoundError:
                if not make:
                    break
                os.mkdir(each, dir_fd=folder)
                inner = os.open(each, _DIRECTORY, dir_fd=folder)
            except OSError as error:
                if error.errno == errno.ENOTDIR and not make:
                    break  # a file is there instead: see entry_at() of that path
                raise
            os.close(folder)
            folder = inner
        else:
            place = Place(os.dup(folder), name, path)
            with place:
                yield place
            return
        yield None
    finally:
        os.close(folder)
