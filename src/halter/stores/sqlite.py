"""Sessions in a SQLite file: the store for one machine.

What `append()` has written outlives the process, whatever ends it. What a person was told is so (that a message was
accepted, changed or removed) outlives a power cut too, and with it everything that was written before it.

Several processes may use one file; each session has one owner at a time, and it is free for the next one as soon as the
owner closes it or is gone. The file, and what SQLite and we put beside it (`-wal`, `-shm`, `-owner-...`), belong
together on one local disk: network drives do not keep what SQLite needs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
import weakref
from typing import TYPE_CHECKING, Any

import msgspec

from halter.cancel.context import current_token
from halter.cancel.fork import after_fork
from halter.errors import LeaseLost, SessionOwned, StoreCorrupt, StoreError, StoreTooNew
from halter.events import (
    Event,
    EventData,
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    MessageHeld,
    MessageReleased,
    MessageRemoved,
    kind_of,
)
from halter.stores.owner import Owner, is_alive, is_gone, pid_of, remove_dead
from halter.stores.sqlite_errors import from_os, read_only
from halter.stores.sqlite_file import SQLiteFile
from halter.stores.sqlite_words import (
    DISOWN,
    DISOWN_ALL,
    ERASE_INBOX,
    ERASE_LOG,
    INBOX,
    IS_OWNED,
    MOST,
    MOST_TOGETHER,
    OWN,
    SESSIONS,
    WHO_OWNS,
    append,
    append_all,
    read,
)
from halter.stores.store import Lease, SessionInfo, Waiting

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["SQLiteStore"]

_PATIENCE = 1.0  # seconds that a dead owner's last child may take to begin its own program
_PAUSE = 0.005
_SEQ = 0xFFFFFFFF  # the part of an event's id that is its number in the session

_encode = msgspec.json.Encoder().encode
_decoder: msgspec.json.Decoder[EventData | list[EventData]] = msgspec.json.Decoder(EventData | list[EventData])
_KINDS = {kind.__struct_config__.tag for kind in EventData.__args__}
# Asked by `type()`, with every event: isinstance costs more.
_OF_MESSAGES = {MessageAccepted, MessageEdited, MessageApplied, MessageHeld, MessageReleased, MessageRemoved}
_TOLD = {MessageAccepted, MessageEdited, MessageRemoved}


class SQLiteStore:
    """Keeps sessions in the file *path*, which is made if it does not exist; its directory has to.

    A file that cannot be written can still be read. Use it in a `with` block, or `close()` it. A forked child needs a
    store of its own.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file = SQLiteFile(path)
        if self._file.path in _torn:
            msg = (
                f"this process was forked while {self._file.path} was in use, and SQLite's view of it is torn here; "
                "start the process by spawn, or fork it before the store is used"
            )
            raise StoreError(msg)
        self._owner: Owner | None = None
        # A store that is dropped, or still there at exit, lets go as well.
        self._let_go = weakref.finalize(self, _let_go, self._file, None)
        _live[id(self)] = weakref.ref(self, functools.partial(_forget, id(self)))  # from now on a fork may come
        self._file.prepare()
        if self._file.writable:
            try:
                remove_dead(self._file.path)
                self._owner = Owner(self._file.path)
            except OSError as error:
                raise from_os(self._file.path, error) from error
            self._let_go.detach()
            self._let_go = weakref.finalize(self, _let_go, self._file, self._owner)

    @property
    def path(self) -> str:
        """The file."""
        return self._file.path

    def acquire(self, session: str) -> Lease:
        """Own *session* from now on."""
        me = self._own()
        patience = time.monotonic() + _PATIENCE
        while True:
            rows = self._file.rows(WHO_OWNS, (session,))
            generation, owner = rows[0] if rows else (0, None)
            if owner is not None and self._lives(owner):
                if not is_gone(owner) or time.monotonic() > patience:
                    raise SessionOwned(_owned(session, pid_of(owner)))
                current_token().sleep(_PAUSE)  # its lock is with a child that it was just starting
                continue
            # It is ours if it still is as we saw it; of several who saw the same, one succeeds.
            taken, _ = self._file.write(
                OWN,
                (session, me, generation, owner),
            )
            if taken:
                return Lease(session, generation + 1)

    def release(self, lease: Lease) -> None:
        """Own it no longer."""
        if self._owner is not None and self._let_go.alive:
            self._file.write(DISOWN, (lease.session, lease.generation, self._owner.id))

    def append(self, lease: Lease, events: Sequence[Event]) -> None:
        """Write *events* to the log, at most 4,000 at once."""
        right = (lease.session, lease.generation, self._own())
        count = len(events)
        if count > MOST:
            msg = f"{count} events are too many for one append(); nothing was written. Append at most {MOST} at once"
            raise StoreError(msg)
        if not count:
            if not self._file.rows(IS_OWNED, right):
                raise LeaseLost(_lost(lease))
            return
        rows = _rows(events)
        values: list[Any] = []
        for row in rows:
            values += row
        values += right
        durable = any(type(event.data) in _TOLD for event in events)
        written, last = self._file.write(append(len(rows)), values, durable=durable)
        if not written:
            raise LeaseLost(_lost(lease))
        for seq, event in enumerate(events, (last & _SEQ) - count + 1):
            event.seq = seq

    def append_all(self, writings: Sequence[tuple[Lease, Sequence[Event]]]) -> None:
        """Write the events of several sessions at once."""
        values: list[Any] = []
        count = 0
        for lease, events in writings:
            last = events[0].seq - 1
            rows = _rows(events)
            for place, *columns in rows:
                values += (lease.session, lease.generation, last, last + place, *columns)
            count += len(rows)
        if count > MOST_TOGETHER:
            msg = f"these are too many events for one append_all(), in {count} rows; nothing was written"
            raise StoreError(msg)
        room = 1 << (count - 1).bit_length()  # so that there are few statements, which SQLite then knows
        values += (None,) * (9 * (room - count))
        values.append(self._own())
        durable = any(type(event.data) in _TOLD for _, events in writings for event in events)
        self._file.write(append_all(room), values, durable=durable)

    def erase(self, lease: Lease) -> None:
        """Forget the session's log and its inbox. Its name stays, with the generation: a stale owner stays fenced."""
        right = (lease.session, lease.generation, self._own())
        if not self._file.rows(IS_OWNED, right):
            raise LeaseLost(_lost(lease))
        # The log goes last: it is the truth, and after a kill in between a session that is loaded finds all in it.
        self._file.write(ERASE_INBOX, right)
        self._file.write(ERASE_LOG, right, durable=True)

    def read(
        self, session: str, after: int = 0, *, limit: int | None = None, without: Collection[str] = ()
    ) -> list[Event]:
        """The events with higher numbers than *after*."""
        most = -1 if limit is None or without else limit  # of some rows all may be left out, which is seen only here
        rows = self._file.rows(read(without=len(without)), (session, min(max(after, 0), _SEQ), *without, most))
        events = []
        for last, at, turn, kind, body in rows:
            said = _said(session, last, kind, body)
            if not isinstance(said, list):
                events.append(Event(last, at, session, turn, said))
                continue
            for seq, data in enumerate(said, last - len(said) + 1):
                if seq > after and not (without and kind_of(data) in without):
                    events.append(Event(seq, at, session, turn, data))
        return events if limit is None else events[:limit]

    def inbox(self, session: str) -> list[Waiting]:
        """The messages that wait."""
        rows = self._file.rows(INBOX, (session,))
        waiting = []
        for held, seq, at, kind, body, latest, latest_kind, latest_body in rows:
            first = _said(session, seq, kind, body)
            last = first if latest == seq else _said(session, latest, latest_kind, latest_body)
            assert isinstance(first, MessageAccepted)
            assert isinstance(last, (MessageAccepted, MessageEdited))
            waiting.append(Waiting(first.id, first.mode, last.message, bool(held), first.note, at))
        return waiting

    def sessions(self) -> list[SessionInfo]:
        """All sessions, the latest used first."""
        return [SessionInfo(*row) for row in self._file.rows(SESSIONS)]

    def close(self) -> None:
        """Release every lease and let go of the files. Nothing can be read or written any more."""
        self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _own(self) -> str:
        self._file.check()
        if self._owner is None:
            raise read_only(self._file.path)
        return self._owner.id

    def _lives(self, owner: str) -> bool:
        try:
            return is_alive(self._file.path, owner)
        except OSError as error:
            raise from_os(self._file.path, error) from error

    def _let_go_in_child(self) -> None:
        self._let_go.detach()
        if self._owner is not None:
            self._owner.let_go_in_child()
        connections = self._file.let_go_in_child()
        if connections:
            _inherited.append(connections)
            _torn.add(self._file.path)


def _rows(events: Sequence[Event]) -> list[tuple[int, float, str, str, str | None, str]]:
    """As rows of the log, each with the place of its last event: what was said in one moment is one of them."""
    rows = []
    piece: list[EventData] = []
    for place, event in enumerate(events, 1):
        piece.append(event.data)
        if place == len(events) or not _are_one(event, events[place]):
            kind, message = _what(piece)
            rows.append((place, event.time, event.turn, kind, message, _body(piece)))
            piece = []
    return rows


def _are_one(event: Event, following: Event) -> bool:
    if event.time != following.time or event.turn != following.turn:
        return False
    return type(event.data) not in _OF_MESSAGES and type(following.data) not in _OF_MESSAGES


def _what(piece: list[EventData]) -> tuple[str, str | None]:
    first, kind = piece[0], kind_of(piece[0])
    if type(first) in _OF_MESSAGES:
        return kind, first.id  # type: ignore[union-attr]
    return (kind if all(type(each) is type(first) for each in piece) else ""), None


def _body(piece: list[EventData]) -> str:
    said = piece if len(piece) > 1 else piece[0]
    try:
        return _encode(said).decode()
    except UnicodeEncodeError:
        # A file's name that is not UTF-8 has halves of pairs in it, which only JSON's escapes can carry.
        return json.dumps(msgspec.to_builtins(said))
    except TypeError as error:
        kinds = " or ".join(dict.fromkeys(kind_of(each) for each in piece))
        msg = f"{kinds} has something in it that can not be written as JSON ({error}); nothing was written"
        raise StoreError(msg) from error


def _said(session: str, seq: int, kind: str, body: str) -> EventData | list[EventData]:
    """What a row says whose last event has the number *seq*: one thing, or several."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        plain: Any = None
        try:
            plain = json.loads(body)  # see _body()
            escaped: EventData | list[EventData] = msgspec.convert(plain, EventData | list[EventData])
        except (ValueError, msgspec.MsgspecError):
            pass
        else:
            return escaped
        which = f"event {seq} of session {session!r}{'' if kind else ', or one that was written with it,'}"
        for each in [kind] if kind else _kinds(plain):
            if each not in _KINDS:
                msg = f"{which} is {each!r}, which only a newer Halter knows; upgrade halter"
                raise StoreTooNew(msg) from error
        msg = f"{which} is damaged: {error}"
        raise StoreCorrupt(msg) from error


def _kinds(plain: object) -> list[str]:
    events = plain if isinstance(plain, list) else []
    return [str(event.get("type")) for event in events if isinstance(event, dict)]


def _owned(session: str, pid: int) -> str:
    if pid == os.getpid():
        return (
            f"session {session!r} is open already, in this process; use that object, or close() it before you open the "
            "session again"
        )
    return (
        f"session {session!r} is open in process {pid}; close it there, or wait: it is free as soon as that process is "
        "gone"
    )


def _lost(lease: Lease) -> str:
    return f"session {lease.session!r} was closed, or taken over by another: nothing was written"


def _let_go(file: SQLiteFile, owner: Owner | None) -> None:
    if owner is not None:
        with contextlib.suppress(StoreError):  # no space, perhaps: but an owner without a file is dead, which will do
            file.write(DISOWN_ALL, (owner.id,))
        owner.let_go()
    file.close()


# Every store that is open in this process.
_live: dict[int, weakref.ref[SQLiteStore]] = {}
# In a forked child: connections of the parent that were in use at that moment. Closing one would end it for the parent.
_inherited: list[set[sqlite3.Connection]] = []
# And their files: SQLite believes that this process has locks on them, which are the parent's.
_torn: set[str] = set()


def _forget(key: int, _: object) -> None:
    _live.pop(key, None)


def _stores() -> list[SQLiteStore]:
    return [store for ref in list(_live.values()) if (store := ref()) is not None]


def _before_fork() -> None:
    """Close what nobody uses, for in the child SQLite would believe that it has the locks which are ours."""
    for store in _stores():
        store._file.close_idle()  # noqa: SLF001  (this module's own)


def _in_child() -> None:
    for store in _stores():
        store._let_go_in_child()  # noqa: SLF001  (this module's own)


after_fork(_in_child)
if hasattr(os, "register_at_fork"):  # pragma: no branch  (Windows cannot fork)
    os.register_at_fork(before=_before_fork)
