"""Sessions in a SQLite file: the store for one machine.

What `commit()` has written outlives the process, whatever ends it. What a person was told outlives a power cut too (a
message was accepted, changed or removed, an answer was taken), and with it everything that was written before it.

Several processes may use one file; each session has one owner at a time, and it is free for the next one as soon as the
owner closes it or is gone. The file, and what SQLite and we put beside it (`-wal`, `-shm`, `-owner-...`), belong
together on one local disk: network drives do not keep what SQLite needs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
import weakref
from typing import TYPE_CHECKING, Any

from halter.cancel.context import current_token
from halter.cancel.fork import after_fork
from halter.cancel.token import NEVER
from halter.errors import SessionOwned, StoreError, WriteRefused
from halter.events import (
    ApprovalAnswered,
    Event,
    EventData,
    MessageAccepted,
    MessageEdited,
    MessageRemoved,
    QuestionAnswered,
    kind_of,
)
from halter.stores.base import Lease, SessionInfo
from halter.stores.refusals import lease_lost, open_here, out_of_order
from halter.stores.rows import from_body, to_rows
from halter.stores.sqlite.connection import SQLiteFile
from halter.stores.sqlite.errors import from_os, read_only
from halter.stores.sqlite.owner import Owner, is_alive, is_gone, pid_of, remove_dead
from halter.stores.sqlite.statements import (
    DISOWN,
    DISOWN_ALL,
    ERASE_LOG,
    ERASE_SESSION,
    LAST,
    OWN,
    OWNER_OF,
    SEQ,
    SESSIONS,
    extend,
    in_chunks,
    insert,
    read,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Sequence
    from typing import Self

    from halter.cancel.token import CancellationToken
    from halter.stores.base import Write

__all__ = ["SQLiteStore"]

_DEAD_OWNER_TIMEOUT = 1.0  # seconds that a dead owner's last child may take to begin its own program
_OWNER_CHECK_INTERVAL = 0.005  # seconds

# Events that are confirmed to a person: they have to survive a power cut.
_CONFIRMED = {MessageAccepted, MessageEdited, MessageRemoved, QuestionAnswered, ApprovalAnswered}


class SQLiteStore:
    """Keeps sessions in the file *path*, which is made if it does not exist; its directory has to.

    A file that cannot be written can still be read. Use it in a `with` block, or `close()` it. A forked child needs a
    store of its own.
    """

    blocks = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = SQLiteFile(path)
        if self._file.path in _in_use_at_fork:
            raise StoreError(
                f"this process was forked while {self._file.path} was in use: SQLite would take the parent's locks for "
                "its own. Start the process with spawn, or fork it before the store is used"
            )
        self._owner: Owner | None = None
        self._numbers: dict[Lease, int] = {}  # of the sessions in the file
        # A store that is dropped, or still open at exit, releases its leases as well.
        self._release_all = weakref.finalize(self, _release_all, self._file, None)
        _live[id(self)] = self  # from now on a fork may come
        self._file.prepare()
        if self._file.writable:
            try:
                remove_dead(self._file.path)
                self._owner = Owner(self._file.path)
            except OSError as error:
                raise from_os(self._file.path, error) from error
            self._release_all.detach()
            self._release_all = weakref.finalize(self, _release_all, self._file, self._owner)

    @property
    def path(self) -> str:
        """The file."""
        return self._file.path

    def acquire(self, session: str) -> Lease:
        """Take the lease of *session*."""
        me = self._owner_id()
        end = time.monotonic() + _DEAD_OWNER_TIMEOUT
        while True:
            rows = self._file.read(OWNER_OF, (session,))
            _, generation, owner = rows[0] if rows else (0, 0, None)
            if owner is not None and self._is_leased(Lease(session, generation), owner):
                if not is_gone(owner) or time.monotonic() > end:
                    raise _owned(session, pid_of(owner))
                current_token().sleep(_OWNER_CHECK_INTERVAL)  # a child that it was just starting still holds its lock
                continue
            number = self._file.write(functools.partial(_take_over, (session, me, generation, owner)))
            if number:
                lease = Lease(session, generation + 1)
                self._numbers[lease] = number
                return lease

    def release(self, lease: Lease) -> None:
        """Give a lease back. If the file cannot be written, other processes get the session only when we end."""
        number = self._numbers.pop(lease, None)
        if number is not None and self._owner is not None and self._release_all.alive:
            values = number, lease.generation, self._owner.id
            self._file.write(lambda connection: connection.execute(DISOWN, values))

    def expiry(self, lease: Lease) -> CancellationToken:  # noqa: ARG002
        """A lease does not end by time."""
        return NEVER

    def commit(self, writes: Sequence[Write]) -> None:
        """Append the events of several sessions: all of them or none."""
        me = self._owner_id()
        updates: list[tuple[Any, ...]] = []
        rows: list[tuple[Any, ...]] = []
        for write in writes:
            lease, events, waiting = write
            number, first, last = self._number(lease), events[0], events[-1]
            before = last.seq - len(events)
            if first.seq != before + 1:
                raise out_of_order(lease, first.seq, before)
            updates.append((number, last.seq, waiting, first.time, last.time, lease.generation, before))
            rows += [((number << 32) + seq, at, turn, kind, body) for seq, at, turn, kind, body in to_rows(write)]
        durable = any(
            type(event.data) in _CONFIRMED and _is_confirmed(event.data) for write in writes for event in write.events
        )

        def append(connection: sqlite3.Connection) -> None:
            updated = 0
            for chunk in in_chunks(updates):
                values = [*itertools.chain.from_iterable(chunk), me]
                updated += connection.execute(extend(len(chunk)), values).rowcount
            if updated != len(updates):
                raise _refused(connection, writes, me)
            for chunk in in_chunks(rows):
                connection.execute(insert(len(chunk)), [*itertools.chain.from_iterable(chunk)])

        self._file.write(append, durable=durable)

    def erase(self, lease: Lease) -> None:
        """Delete the session's log. Its name and generation stay, so that a stale owner cannot write."""
        me, number = self._owner_id(), self._number(lease)

        def erase(connection: sqlite3.Connection) -> None:
            if not connection.execute(ERASE_SESSION, (number, lease.generation, me)).rowcount:
                raise lease_lost(lease)
            connection.execute(ERASE_LOG, (number << 32, (number + 1) << 32))

        self._file.write(erase, durable=True)

    def read(
        self, session: str, after: int = 0, *, limit: int | None = None, without: Collection[str] = ()
    ) -> list[Event]:
        """The events with higher numbers than *after*."""
        # With *without* there is no limit of rows: all events of a row may be left out, which is seen only here.
        max_rows = -1 if limit is None or without else limit
        rows = self._file.read(read(without=len(without)), (session, min(max(after, 0), SEQ), *without, max_rows))
        events = []
        for last, at, turn, kind, body in rows:
            data = from_body(session, last, kind, body)
            for seq, each in enumerate(data, last - len(data) + 1):
                if seq > after and not (without and kind_of(each) in without):
                    events.append(Event(seq, at, session, turn, each))
        return events if limit is None else events[:limit]

    def sessions(self) -> list[SessionInfo]:
        """All sessions, the most recently used first."""
        return [SessionInfo(*row) for row in self._file.read(SESSIONS)]

    def close(self) -> None:
        """Release every lease and close the files. Nothing can be read or written afterwards."""
        self._release_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _owner_id(self) -> str:
        self._file.check()
        if self._owner is None:
            raise read_only(self._file.path)
        return self._owner.id

    def _number(self, lease: Lease) -> int:
        try:
            return self._numbers[lease]
        except KeyError:
            raise lease_lost(lease) from None

    def _is_leased(self, lease: Lease, owner: str) -> bool:
        if self._owner is not None and owner == self._owner.id:
            return lease in self._numbers  # if not, release() could not write that it ended
        try:
            return is_alive(self._file.path, owner)
        except OSError as error:
            raise from_os(self._file.path, error) from error

    def _forget_in_child(self) -> None:
        self._release_all.detach()
        if self._owner is not None:
            self._owner.forget_in_child()
        connections = self._file.forget_in_child()
        if connections:
            _in_use_at_fork[self._file.path] = connections


def _is_confirmed(data: EventData) -> bool:
    """Whether an event of `_CONFIRMED` was confirmed to a person."""
    if isinstance(data, QuestionAnswered):
        return not data.withdrawn
    return not isinstance(data, ApprovalAnswered) or data.granted


def _take_over(values: tuple[str, str, int, str | None], connection: sqlite3.Connection) -> int:
    """Take a session if it has not changed since it was read, so that only one caller succeeds. Its number, or 0."""
    if not connection.execute(OWN, values).rowcount:
        return 0
    number: int = connection.execute(OWNER_OF, values[:1]).fetchone()[0]
    return number


def _owned(session: str, pid: int) -> SessionOwned:
    if pid == os.getpid():
        return open_here(session)
    return SessionOwned(
        f"session {session!r} is open in process {pid}; close it there, or wait: it is free as soon as that process is "
        "gone"
    )


def _refused(connection: sqlite3.Connection, writes: Sequence[Write], owner: str) -> WriteRefused:
    """Find the write that is at fault. Some sessions are updated already: a write that fits has its own last number."""
    for lease, events, _ in writes:
        row = connection.execute(LAST, (lease.session, lease.generation, owner)).fetchone()
        if row is None:
            return lease_lost(lease)
        if row[0] != events[-1].seq:
            return out_of_order(lease, events[0].seq, row[0])
    lease = writes[0].lease
    return WriteRefused(f"session {lease.session!r} has two writes in one commit; nothing was written", lease.session)


def _release_all(file: SQLiteFile, owner: Owner | None) -> None:
    if owner is not None:
        with contextlib.suppress(StoreError):  # no space, perhaps: but an owner without a file is dead, which will do
            file.write(lambda connection: connection.execute(DISOWN_ALL, (owner.id,)))
        owner.let_go()
    file.close()


# Every store that is open in this process.
_live: weakref.WeakValueDictionary[int, SQLiteStore] = weakref.WeakValueDictionary()
# In a forked child: files that were in use, and their connections. SQLite believes that this process has the locks on
# them, which are the parent's; and closing a connection here would harm the parent.
_in_use_at_fork: dict[str, set[sqlite3.Connection]] = {}


def _stores() -> list[SQLiteStore]:
    return [store for ref in _live.valuerefs() if (store := ref()) is not None]


def _before_fork() -> None:
    """Close idle connections: in the child, SQLite would believe that it holds our locks."""
    for store in _stores():
        store._file.close_idle()


def _in_child() -> None:
    for store in _stores():
        store._forget_in_child()


after_fork(_in_child)
if hasattr(os, "register_at_fork"):  # pragma: no branch  (Windows cannot fork)
    os.register_at_fork(before=_before_fork)
