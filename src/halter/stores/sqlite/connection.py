"""The SQLite file of a store: opened, checked, created or upgraded; and the connections to it.

A call takes a connection that no other call has, and puts it back: `list.pop` and `list.append` are atomic, so there is
no lock. There are connections for writing and for reading. SQLite's write-ahead log lets readers go on during a
write, so no reader waits for the writer. In practice there is one connection for writing, as a store has one writer.

A file that is removed or replaced while it is open can still be written, and all of it would be lost. So every
transaction compares the files at the paths with those that were opened.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from halter.errors import StoreCorrupt, StoreError, StoreTooNew
from halter.stores.sqlite.errors import from_os, from_sqlite, is_busy, is_damage, read_only, replaced, too_old
from halter.stores.sqlite.owner import pid_of, remove_dead
from halter.stores.sqlite.statements import APPLICATION, CREATE, UPGRADE, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["SQLiteFile"]

LOCK_TIMEOUT = 5.0  # seconds that another process's lock is waited for
# Seconds. SQLite pauses for longer each time that the file is locked. So we let it wait briefly, and call it again.
_BUSY_TIMEOUT = 0.005
_CHECKPOINT = 4_000  # pages of 4 KB in the write-ahead log: moving many into the file at once costs less
_MAX_IDLE = 16  # connections of each kind; more are closed

T = TypeVar("T")


class SQLiteConnection(sqlite3.Connection):
    """A connection to the file."""

    wal: tuple[int, int] | None = None  # the identity of the write-ahead log that it has open
    _synchronous = ""

    def set_synchronous(self, level: str) -> None:
        """NORMAL: a commit is in the system's hands. FULL: it is on the disk. Only between two transactions."""
        if level != self._synchronous:
            self.execute(f"PRAGMA synchronous = {level}")
            self._synchronous = level


class SQLiteFile:
    """One file, and the connections to it that are open."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # The real path: all names of a file must lead to the same owners. And absolute: chdir() may come.
        self.path = os.path.realpath(path)
        self._closed = False
        self._inherited = False
        self._writers: list[SQLiteConnection] = []
        self._readers: list[SQLiteConnection] = []
        self._open: set[sqlite3.Connection] = set()
        if sqlite3.threadsafety == 0:  # pragma: no cover  (no such build is at hand)
            raise StoreError(
                "this Python's SQLite was built without support for threads; a store needs one that has it"
            )
        if str(path) in {"", ":memory:"}:
            raise StoreError(
                f"SQLiteStore needs the path of a file, not {str(path)!r}; MemoryStore() keeps sessions in memory"
            )
        _create_if_missing(self.path)
        # From before it is opened: whatever replaces it later is noticed.
        self._identity = _identity(self.path)
        self.writable = _can_write(self.path)

    def prepare(self) -> None:
        """Check what the file is. Fill an empty one, upgrade one of an older format, and leave anything else alone."""
        self._retry_while_locked(self._prepare)

    def write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = False) -> T:
        """Do *work* in one transaction. If anything is raised, nothing was changed.

        When it returns, the change outlives the process; if *durable*, a power cut too.
        """
        self.check()
        if not self.writable:
            raise read_only(self.path)
        connection = self._retry_while_locked(lambda: self._take(self._writers))
        try:
            connection.set_synchronous("FULL" if durable else "NORMAL")
            self._retry_while_locked(lambda: connection.execute("BEGIN IMMEDIATE"))
            self._check_files(connection)
            result = work(connection)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise from_sqlite(self.path, error) from error
        finally:
            self._put_back(self._writers, connection)
        return result

    def read(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run one statement that only reads."""
        self.check()
        try:
            return self._retry_while_locked(lambda: self._rows(sql, values))
        except UnicodeEncodeError as error:
            raise StoreError(
                f"{error.object!r} is not text that can be stored: it contains a lone surrogate"
            ) from error

    def check(self) -> None:
        """Raises `StoreError` if it cannot be used any more."""
        if self._inherited:
            raise StoreError(
                f"{self.path} was opened before this process was forked; open a store of your own in the forked child"
            )
        if self._closed:
            raise StoreError(f"the store {self.path} is closed; open it again")

    def close(self) -> None:
        """Close every connection; those in use when they are put back."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close idle connections; new ones are opened when needed."""
        for idle in (self._readers, self._writers):
            with contextlib.suppress(IndexError):
                while True:
                    self._close(idle.pop())

    def forget_in_child(self) -> set[sqlite3.Connection]:
        """Make it unusable in a forked child. Returns the parent's connections: do not use or close them here."""
        self._inherited = True
        self._readers.clear()
        self._writers.clear()
        return self._open

    def _retry_while_locked(self, act: Callable[[], T]) -> T:
        """Retry while another process has the file locked, for `LOCK_TIMEOUT` seconds."""
        end = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                return act()
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() > end:
                    raise from_sqlite(self.path, error) from error
            self.check()

    def _rows(self, sql: str, values: Sequence[Any]) -> list[Any]:
        connection = self._take(self._readers)
        try:
            rows = connection.execute(sql, values).fetchall()
        except BaseException:  # perhaps half read: it would keep its old snapshot of the file
            self._close(connection)
            raise
        self._put_back(self._readers, connection)
        return rows

    def _take(self, idle: list[SQLiteConnection]) -> SQLiteConnection:
        with contextlib.suppress(IndexError):
            return idle.pop()
        if not self.writable:
            return self._connect_read_only()
        if _identity(self.path) != self._identity:
            raise replaced(self.path)
        connection = self._open_as("mode=rw")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
        return connection

    def _put_back(self, idle: list[SQLiteConnection], connection: SQLiteConnection) -> None:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        if connection.in_transaction or len(idle) >= _MAX_IDLE or not self.writable:
            self._close(connection)
            return
        idle.append(connection)
        # Checked after it was put back: either close() finds it there, or we find that close() was called.
        if self._closed:
            self.close_idle()

    def _check_files(self, connection: SQLiteConnection) -> None:
        """Raises `StoreError` if the files at the paths are not those that a transaction has open."""
        if _identity(self.path) != self._identity:
            raise replaced(self.path)
        wal = _identity(self.path + "-wal")
        connection.wal = connection.wal or wal
        if wal is None or wal != connection.wal:
            raise replaced(self.path + "-wal")

    def _connect_read_only(self) -> SQLiteConnection:
        """Without the right to write beside the file, SQLite can read it only as one that nobody changes.

        That is so while no journal lies beside it; and a connection that believes it is used for one call only.
        """
        connection = self._open_as("mode=ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            self._close(connection)
            if is_damage(error) or is_busy(error) or self.writable or self._has_journal():
                raise
            return self._open_as("mode=ro&immutable=1")
        return connection

    def _has_journal(self) -> bool:
        for end in ("-wal", "-journal"):
            with contextlib.suppress(OSError):
                if Path(self.path + end).stat().st_size:
                    return True
        return False

    def _open_as(self, how: str) -> SQLiteConnection:
        connection = sqlite3.connect(
            f"file:{quote(self.path)}?{how}",
            uri=True,
            timeout=_BUSY_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
            factory=SQLiteConnection,
        )
        self._open.add(connection)
        return connection

    def _close(self, connection: sqlite3.Connection) -> None:
        self._open.discard(connection)
        with contextlib.suppress(sqlite3.Error):
            connection.close()

    def _prepare(self) -> None:
        version = self._check_format()
        if not self.writable:
            if version == VERSION:
                return
            raise too_old(self.path) if version else read_only(self.path)
        connection = self._open_as("mode=rw")
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StoreError(
                    f"the file system of {self.path} has no shared memory, which SQLite needs for its write-ahead log; "
                    "it may be a network drive. Put the store on a local disk"
                )
            if version < VERSION:
                self._upgrade(connection)
        finally:
            self._close(connection)

    def _check_format(self) -> int:
        """The format of the file; 0 if it is empty. Opens the file for reading only."""
        try:
            connection = self._connect_read_only()
        except sqlite3.Error as error:
            if is_damage(error) or not self.writable:
                raise
            connection = self._open_as("mode=rw")  # a process died while writing, and SQLite has to recover first
        try:
            connection.execute("BEGIN")
            return self._version(connection)
        finally:
            self._close(connection)

    def _version(self, connection: sqlite3.Connection) -> int:
        """The format of the file, as one transaction sees it."""
        application, version, tables = (
            connection.execute(sql).fetchone()[0]
            for sql in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
        )
        if not (application or version or tables):
            return 0
        if application != APPLICATION:
            raise StoreCorrupt(
                f"{self.path} is a SQLite database of another program, not a store of Halter; nothing was changed. "
                "Give the store a file of its own"
            )
        if version > VERSION:
            raise StoreTooNew(
                f"{self.path} was written by a newer Halter (format {version}, this one knows {VERSION}); nothing was "
                "changed. Upgrade halter, or give this one another file"
            )
        return int(version)

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        """Create the tables, or upgrade an older format. If several processes try at once, one does it."""
        connection.execute("BEGIN IMMEDIATE")
        version = self._version(connection)
        if version == VERSION:
            return
        if version and (owners := remove_dead(self.path)):
            raise StoreError(
                f"{self.path} is in use by an older Halter, in process {pid_of(owners[0])}; nothing was changed. End "
                "that process, and the file is upgraded when it is opened next"
            )
        for statement in UPGRADE if version else CREATE:
            connection.execute(statement)
        connection.execute("COMMIT")


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116  (for every transaction: a Path costs more)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _create_if_missing(path: str) -> None:
    """Create an empty file, for this user alone, if there is none. SQLite uses its mode for the files beside it."""
    try:
        _create(path)
    except FileExistsError:
        if Path(path).is_dir():
            raise StoreError(f"{path} is a directory; a store needs the path of a file in it") from None
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StoreError(f"there is no directory {Path(path).parent}; create it first, or check the path") from error
    except OSError as error:
        raise from_os(path, error) from error


def _create(path: str) -> None:
    # Not by opening and closing it: when a process closes a file, all its locks on that file go, and another thread may
    # have opened it meanwhile.
    if sys.platform == "linux":
        os.mknod(path, 0o600)
    else:  # pragma: no cover  (elsewhere only root may do that)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _can_write(path: str) -> bool:
    effective = os.access in os.supports_effective_ids
    return all(os.access(name, os.W_OK, effective_ids=effective) for name in (path, Path(path).parent))
