"""The SQLite file of a store: opened, checked, and made if there is none; and its connections.

A call takes a connection that nobody else has, and gives it back. So no two threads share one (prepared statements and
row counts belong to a connection, and Python does not guard them), and neither do a call and the signal handler that
interrupts it: the handler takes another. Taking and giving back are single operations of a list. There is no lock.

A write is one statement, without results to fetch, and runs from its beginning to its commit inside one call into C. A
signal handler of Python runs before that or after it, and never finds a transaction open that its own thread would have
to end first.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from halter.errors import StoreCorrupt, StoreError, StoreTooNew
from halter.stores.sqlite_errors import from_os, from_sqlite, is_busy, is_damage, is_refused, read_only
from halter.stores.sqlite_words import APPLICATION, SCHEMA, VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SQLiteFile"]

PATIENCE = 5.0
# SQLite waits in C, where no signal is heard, and for longer each time: so it does that in short pieces.
_PIECE = 0.005
_AHEAD = 4_000  # pages in the log ahead, of 4 KB: to move them into the file costs less if it is done for many
_KEPT = 16  # idle connections; more are closed


class SQLiteFile:
    """One file, and the connections to it that are open."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # The real path, for all names of a file must lead to the same owners; and absolute, for chdir() may come.
        self.path = os.path.realpath(path)
        self._closed = False
        self._inherited = False
        self._idle: dict[bool, list[sqlite3.Connection]] = {False: [], True: []}
        self._open: set[sqlite3.Connection] = set()
        if sqlite3.threadsafety == 0:  # pragma: no cover  (no such build is at hand)
            msg = "this Python's SQLite was built without support for threads; a store needs one that has it"
            raise StoreError(msg)
        if str(path) in {"", ":memory:"}:
            msg = f"SQLiteStore needs the path of a file, not {str(path)!r}; MemoryStore() keeps sessions in memory"
            raise StoreError(msg)
        _make(self.path)
        self.writable = _can_write(self.path)

    def prepare(self) -> None:
        """See what the file is; make it a store if it is empty. Anything else is left as it is."""
        patience = _Patience(self.path)
        while True:
            try:
                if not self._is_store():
                    self._fill()
                if self.writable:
                    self._log_ahead()
            except sqlite3.Error as error:
                patience.try_again_or_raise(error)
            else:
                return

    def write(self, sql: str, values: Sequence[Any], *, durable: bool = False) -> tuple[int, int]:
        """Run one statement that changes something; returns how many rows it changed, and the last new one's id.

        When it returns, the change outlives the process; if *durable*, a power cut too.
        """
        self.check()
        if not self.writable:
            raise read_only(self.path)
        return self._run(sql, values, durable=durable)[:2]

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run one statement that only reads."""
        return self._run(sql, values, durable=False)[2]

    def check(self) -> None:
        """Raises `StoreError` if it cannot be used any more."""
        if self._inherited:
            msg = f"{self.path} was opened before this process was forked; open a store of your own in the forked child"
            raise StoreError(msg)
        if self._closed:
            msg = f"the store {self.path} is closed; open it again"
            raise StoreError(msg)

    def close(self) -> None:
        """Close every connection: those in use, when they are given back."""
        self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close what nobody uses; what is needed later is opened again."""
        for idle in self._idle.values():
            with contextlib.suppress(IndexError):
                while True:
                    self._end(idle.pop())

    def let_go_in_child(self) -> set[sqlite3.Connection]:
        """In a forked child: be unusable. Returns the parent's connections, which nobody may use or close here."""
        self._inherited = True
        for idle in self._idle.values():
            idle.clear()
        return self._open

    def _run(self, sql: str, values: Sequence[Any], *, durable: bool) -> tuple[int, int, list[Any]]:
        patience: _Patience | None = None
        while True:
            self.check()
            connection = self._take(durable=durable)
            try:
                cursor = connection.execute(sql, values)
                done = cursor.rowcount, cursor.lastrowid or 0, cursor.fetchall()
                # A cursor that goes later would reset a statement that is somebody else's by then.
                cursor.close()
            except sqlite3.Error as error:
                self._give(connection, durable=durable)  # a statement that fails is undone, and leaves nothing behind
                patience = patience or _Patience(self.path)
                patience.try_again_or_raise(error)
            except UnicodeEncodeError as error:
                self._end(connection)
                msg = f"{error.object!r} is not text that can be stored: it has half of a surrogate pair in it"
                raise StoreError(msg) from error
            except BaseException:  # a signal's handler has raised, perhaps with a statement half read
                self._end(connection)
                raise
            else:
                self._give(connection, durable=durable)
                return done

    def _take(self, *, durable: bool) -> sqlite3.Connection:
        try:
            return self._idle[durable].pop()
        except IndexError:
            pass
        try:
            return self._connect(durable=durable)
        except sqlite3.Error as error:
            raise from_sqlite(self.path, error) from error

    def _give(self, connection: sqlite3.Connection, *, durable: bool) -> None:
        idle = self._idle[durable]
        if len(idle) >= _KEPT or not self.writable:
            self._end(connection)
            return
        idle.append(connection)
        # Put back, then look: either close() finds it there, or we see that close() has been.
        if self._closed:
            self.close_idle()

    def _connect(self, *, durable: bool) -> sqlite3.Connection:
        if not self.writable:
            return self._connect_read_only()
        connection = self._open_as("mode=rw")
        try:
            # In NORMAL a commit is in the system's hands, in FULL it is on the disk.
            connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute(f"PRAGMA wal_autocheckpoint = {_AHEAD}")
        except BaseException:
            self._end(connection)
            raise
        return connection

    def _connect_read_only(self) -> sqlite3.Connection:
        """Without the right to write beside the file, SQLite can read it only as one that nobody changes.

        That is so while no journal lies beside it; and a connection that believes it is used for one call only.
        """
        connection = self._open_as("mode=ro")
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            self._end(connection)
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

    def _open_as(self, how: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"file:{quote(self.path)}?{how}",
            uri=True,
            timeout=_PIECE,
            isolation_level=None,
            check_same_thread=False,
        )
        self._open.add(connection)
        return connection

    def _end(self, connection: sqlite3.Connection) -> None:
        self._open.discard(connection)
        with contextlib.suppress(sqlite3.Error):
            connection.close()

    def _is_store(self) -> bool:
        """Whether it is a store of ours, as opposed to an empty file. Looks without the right to change anything."""
        try:
            connection = self._connect_read_only()
        except sqlite3.Error as error:
            if is_damage(error) or not self.writable:
                raise
            connection = self._open_as("mode=rw")  # somebody died while writing, and SQLite has to clear up first
        try:
            connection.execute("BEGIN")  # one look, before or after another who fills it just now, and not both
            application, version, tables = (
                connection.execute(sql).fetchone()[0]
                for sql in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
            )
        finally:
            self._end(connection)
        if not (application or version or tables):
            return False
        if application != APPLICATION:
            msg = (
                f"{self.path} is a SQLite database of another program, not a store of Halter; nothing was changed. "
                "Give the store a file of its own"
            )
            raise StoreCorrupt(msg)
        if version > VERSION:
            msg = (
                f"{self.path} was written by a newer Halter (format {version}, this one knows {VERSION}); nothing was "
                "changed. Upgrade halter, or give this one another file"
            )
            raise StoreTooNew(msg)
        return True

    def _fill(self) -> None:
        """Make an empty file a store. Where several do that at once, one does, and the others find it done."""
        if not self.writable:
            raise read_only(self.path)
        connection = self._open_as("mode=rw")
        try:
            connection.executescript(SCHEMA)  # one call into C, like every write
        except sqlite3.OperationalError as error:
            if not is_refused(error):
                raise
            # The tables exist: another was faster. Whatever it has made is looked at next.
            self._end(connection)
            self._is_store()
        finally:
            self._end(connection)

    def _log_ahead(self) -> None:
        """Have SQLite write to a log first, where readers and a writer do not wait for each other.

        And say in a file of an earlier format that from now on it is of this one, which has all that the earlier had.
        """
        connection = self._open_as("mode=rw")
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if connection.execute("PRAGMA user_version").fetchone()[0] < VERSION:
                connection.execute(f"PRAGMA user_version = {VERSION}")
        finally:
            self._end(connection)
        if mode != "wal":
            msg = (
                f"the file system of {self.path} has no shared memory, which SQLite needs for its write-ahead log; it "
                "may be a network drive. Put the store on a local disk"
            )
            raise StoreError(msg)


class _Patience:
    """How long others are waited for."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._end = time.monotonic() + PATIENCE

    def try_again_or_raise(self, error: sqlite3.Error) -> None:
        if not is_busy(error) or time.monotonic() > self._end:
            raise from_sqlite(self._path, error) from error


def _make(path: str) -> None:
    """Make the file, empty, if there is none: for this user alone. SQLite gives what it puts beside it that mode."""
    try:
        _create(path)
    except FileExistsError:
        if Path(path).is_dir():
            msg = f"{path} is a directory; a store needs the path of a file in it"
            raise StoreError(msg) from None
    except (FileNotFoundError, NotADirectoryError) as error:
        msg = f"there is no directory {Path(path).parent}; create it first, or check the path"
        raise StoreError(msg) from error
    except OSError as error:
        raise from_os(path, error) from error


def _create(path: str) -> None:
    # To open and close it would cost another thread, that has found it meanwhile, its locks: when a process closes a
    # file once, all its locks on that file go.
    if sys.platform == "linux":
        os.mknod(path, 0o600)
    else:  # pragma: no cover  (elsewhere only root may do that)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def _can_write(path: str) -> bool:
    effective = os.access in os.supports_effective_ids
    return all(os.access(name, os.W_OK, effective_ids=effective) for name in (path, Path(path).parent))
