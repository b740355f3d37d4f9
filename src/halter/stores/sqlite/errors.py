"""Errors of SQLite and of the file system as those of `halter.errors`, with what to do about them."""

from __future__ import annotations

import errno
import sqlite3

from halter.errors import StoreCorrupt, StoreError, StoreFull, StoreReadOnly

__all__ = ["from_os", "from_sqlite", "is_busy", "is_damage", "read_only", "replaced", "too_old"]

# A write that fails for another reason than a full disk is an I/O error to SQLite: a quota, or a limit of file size.
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else was writing, so that it may succeed in a moment."""
    return _plain(_code(error)) == sqlite3.SQLITE_BUSY


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is not what it should be."""
    return _plain(_code(error)) in _DAMAGE


def from_sqlite(path: str, error: sqlite3.Error) -> StoreError:
    """Translate an error of SQLite."""
    code = _code(error)
    if code in _FULL:
        return _full(path)
    if _plain(code) in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}:
        return read_only(path)
    if _plain(code) in _DAMAGE:
        return StoreCorrupt(
            f"{path} is damaged, or is not a SQLite database ({error}); nothing was changed. Restore it from a "
            "backup, or move it away to start with an empty store"
        )
    if _plain(code) == sqlite3.SQLITE_BUSY:
        return StoreError(
            f"{path} is locked: another process is holding the file, or has been writing to it for too long. Nothing "
            "was done; end that process (`fuser` names it), or try again"
        )
    if _plain(code) == sqlite3.SQLITE_CANTOPEN:
        return StoreError(f"{path} cannot be opened; check that the path is right and that you may read and write it")
    return StoreError(f"{path}: {error}; nothing was done")


def from_os(path: str, error: OSError) -> StoreError:
    """Translate an error of the file system."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return _full(path)
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        return read_only(path)
    return StoreError(f"{path} cannot be opened: {error.strerror}")


def read_only(path: str) -> StoreReadOnly:
    """The error for a write to a store that can only be read."""
    return StoreReadOnly(
        f"{path} cannot be written: the file or its directory is read-only for this user, and SQLite needs both. "
        "Nothing was changed; grant write access, or copy the file elsewhere and open the copy"
    )


def too_old(path: str) -> StoreReadOnly:
    """The store has an older format, and cannot be upgraded."""
    return StoreReadOnly(
        f"{path} has the older format of an earlier Halter and cannot be upgraded: it is read-only for this user. Open "
        "it once with write access, or copy the file elsewhere and open the copy"
    )


def replaced(path: str) -> StoreError:
    """The file at *path* is not the one that is open."""
    return StoreError(
        f"{path} was removed or replaced while the store was open. Nothing was written: it would be lost. Put the file "
        "back, or restart the program to use what is there now"
    )


def _full(path: str) -> StoreFull:
    return StoreFull(
        f"{path} cannot grow: the disk is full, or a quota or a limit of file size is reached. Nothing was written; "
        "free some space, and the store works again"
    )


def _code(error: sqlite3.Error) -> int:
    # Errors that the sqlite3 module raises by itself have no code.
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code


def _plain(code: int) -> int:
    return code & 0xFF
