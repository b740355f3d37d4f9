"""Full-text search in earlier sessions.

The index is made from the store's log and can be made again. Each search first adds the events since the last one, by
the number of the last indexed event of each session. The index is in a file of its own beside the store's
(`...-search`), which processes share, or in memory if the store has no file.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from msgspec import Meta

from halter.cancel.context import checkpoint, current_token
from halter.events import MessageAccepted, MessageApplied, MessageEdited, MessageRemoved, TurnRolledBack
from halter.events.requests import RequestCancelled, RequestFinished
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

    from halter.events import Event
    from halter.stores.base import SessionInfo, Store

__all__ = ["Hit", "SessionSearch"]

_GRACE: Final = 0.03  # seconds
_VERSION: Final = 1  # of the tables
_PAGE: Final = 200  # events that are read and indexed together
_REPORT_INTERVAL: Final = 20  # pages between two reports
_BUSY_TIMEOUT: Final = 5.0  # seconds to wait for others that write the index
_MAX_TEXT: Final = 100_000  # characters of one message that are indexed
# Frequent events without text of their own.
_WITHOUT: Final = (
    "text.delta",
    "reasoning.delta",
    "tool.progress",
    "tool.started",
    "tool.cancelling",
    "tool.finished",
    "tool.finished_late",
    "request.started",
    "request.retry",
)
_TABLES: Final = (
    "CREATE TABLE progress (session TEXT PRIMARY KEY, seq INTEGER NOT NULL)",
    """CREATE TABLE entries (
        id INTEGER PRIMARY KEY, session TEXT NOT NULL, turn TEXT NOT NULL, message TEXT NOT NULL,
        time REAL NOT NULL, role TEXT NOT NULL
    )""",
    "CREATE INDEX entries_turn ON entries (session, turn)",
    "CREATE INDEX entries_message ON entries (session, message)",
    "CREATE VIRTUAL TABLE words USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2')",
)
_FIND: Final = """
    SELECT session, time, role, snippet(words, 0, '**', '**', ' ... ', 32)
    FROM words JOIN entries ON entries.id = words.rowid
    WHERE words MATCH ? AND (session = ? OR (? IS NULL AND session != ?)) ORDER BY rank LIMIT ?
"""


class Hit(NamedTuple):
    """One message that was found."""

    session: str
    time: float
    role: str
    snippet: str


class SessionSearch:
    """The tool `session_search`, for the sessions of one store. *index* is the file to keep the index in."""

    def __init__(self, store: Store, index: str | os.PathLike[str] | None = None) -> None:
        self._store = store
        beside = getattr(store, "path", None)
        if index is None and beside is not None:
            index = f"{os.fspath(beside)}-search"
        self._index = _Index(None if index is None else Path(index))

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """It, for `Agent(tools=...)`."""
        return [self.session_search]

    @tool(grace=_GRACE)
    def session_search(
        self,
        query: str,
        ctx: ToolContext,
        session: str | None = None,
        limit: Annotated[int, Meta(ge=1, le=50)] = 10,
    ) -> Iterator[str]:
        """Search earlier conversations; returns the best matches with their session and time.

        Args:
            query: words that must all occur; "double quotes" for an exact phrase.
            session: search only this session; by default all but the current one.
            limit: the maximum number of matches.

        """
        terms = _terms(query)
        if not terms:
            raise ValueError("the query has no words")
        with self._index.connected() as connection:
            for pages, name in enumerate(self._update(connection)):
                if pages % _REPORT_INTERVAL == 0:
                    ctx.report(f"reading session {name}")
            hits = self._index.find(connection, " ".join(terms), session, ctx.session_id, limit)
            note = ""
            if not hits and len(terms) > 1:
                hits = self._index.find(connection, " OR ".join(terms), session, ctx.session_id, limit)
                note = "[No message contains all of these words; these contain some.]"
        checkpoint()
        yield "\n".join([*([note] if hits and note else []), *map(_line, hits)]) if hits else "No matches."

    def find(self, query: str, limit: int = 10) -> list[Hit]:
        """The best matches in all sessions. The last word may be the beginning of one. Blocks."""
        terms = _terms(query)
        if not terms:
            return []
        if not query.endswith('"'):
            terms[-1] += "*"
        with self._index.connected() as connection:
            for _ in self._update(connection):
                pass
            return self._index.find(connection, " ".join(terms), None, "", limit)

    def _update(self, connection: sqlite3.Connection) -> Iterator[str]:
        """Update the index, some events at a time; yields the ids of the sessions that it reads."""
        known = self._index.progress(connection)
        for info in self._store.sessions():
            seq = known.get(info.id, 0)
            while seq < info.events:
                checkpoint()
                yield info.id
                seq = self._add_page(connection, info, seq)

    def _add_page(self, connection: sqlite3.Connection, info: SessionInfo, seq: int) -> int:
        page = self._store.read(info.id, seq, limit=_PAGE, without=_WITHOUT)
        reached = page[-1].seq if page else seq
        if len(page) < _PAGE:  # all there is, and what was left out of it
            reached = max(reached, info.events)
        return self._index.add(connection, info.id, page, seq, reached)


class _Index:
    """The index: each call has its own connection to the file. One in memory has one connection for all calls."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._memory: sqlite3.Connection | None = None
        self._lock = threading.RLock()  # for the one in memory; held for one page or one search

    @contextlib.contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """A connection that a stop of this call interrupts, if it is its own."""
        import sqlite3

        if self._path is None:
            with self._lock:
                if self._memory is None:
                    memory = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
                    _prepare(memory)
                    self._memory = memory
            yield self._memory
            return
        connection = _opened(self._path)

        def interrupt() -> None:
            with contextlib.suppress(sqlite3.ProgrammingError):  # it was closed in this moment
                connection.interrupt()

        try:
            with current_token().on_cancel(interrupt):
                yield connection
        except sqlite3.OperationalError:
            checkpoint()  # an error that a stop has caused is a stop
            raise
        except sqlite3.DatabaseError as error:
            self._path.unlink(missing_ok=True)
            raise RuntimeError("the search index was damaged and will be rebuilt: search again") from error
        finally:
            connection.close()

    def progress(self, connection: sqlite3.Connection) -> dict[str, int]:
        with self._alone():
            return dict(connection.execute("SELECT session, seq FROM progress"))

    def add(self, connection: sqlite3.Connection, session: str, events: list[Event], after: int, reached: int) -> int:
        """Add some events, all or none. Returns the last indexed event of the session, which others may have added."""
        with self._alone(), _transaction(connection):
            row = connection.execute("SELECT seq FROM progress WHERE session = ?", (session,)).fetchone()
            now: int = row[0] if row else 0
            if now == after:  # else another one was faster
                for event in events:
                    _add(connection, event)
                connection.execute("INSERT OR REPLACE INTO progress VALUES (?, ?)", (session, reached))
                now = reached
        return now

    def find(self, connection: sqlite3.Connection, words: str, session: str | None, this: str, limit: int) -> list[Hit]:
        with self._alone():
            rows = connection.execute(_FIND, (words, session, session, this, limit)).fetchall()
        return [Hit(*row) for row in rows]

    def _alone(self) -> contextlib.AbstractContextManager[object]:
        return self._lock if self._path is None else contextlib.nullcontext()


def _opened(path: Path) -> sqlite3.Connection:
    """Open the index; one that cannot be read is made anew, since all that is in it is in the store."""
    import sqlite3

    for is_last in (False, True):
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # conversations are readable by their owner only
        connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT, check_same_thread=False, isolation_level=None)
        try:
            # After a power cut the index is made again, and a stop never waits for the disk.
            connection.execute("PRAGMA synchronous = OFF")
            _prepare(connection)
        except sqlite3.DatabaseError as error:
            connection.close()
            if is_last or isinstance(error, sqlite3.OperationalError):
                raise
            path.unlink()
        else:
            return connection
    raise AssertionError


def _prepare(connection: sqlite3.Connection) -> None:
    if _version(connection) == _VERSION:
        return
    with _transaction(connection):
        if _version(connection) == _VERSION:  # another process has made it meanwhile
            return
        for table in ("progress", "entries", "words"):
            connection.execute(f"DROP TABLE IF EXISTS {table}")
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")


def _version(connection: sqlite3.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _add(connection: sqlite3.Connection, event: Event) -> None:
    """Apply one event to the index."""
    data, session = event.data, event.session
    if isinstance(data, MessageAccepted):
        _insert(connection, event, "user", data.message.text, data.id)
    elif isinstance(data, MessageApplied):
        connection.execute(
            "UPDATE entries SET turn = ? WHERE session = ? AND message = ?", (event.turn, session, data.id)
        )
    elif isinstance(data, MessageEdited):
        connection.execute(
            "UPDATE words SET text = ? WHERE rowid IN (SELECT id FROM entries WHERE session = ? AND message = ?)",
            (_clean(data.message.text), session, data.id),
        )
    elif isinstance(data, MessageRemoved):
        _delete(connection, "message", session, data.id)
    elif isinstance(data, TurnRolledBack):
        _delete(connection, "turn", session, event.turn)
    elif isinstance(data, (RequestFinished, RequestCancelled)) and data.answer is not None and data.answer.text:
        _insert(connection, event, "assistant", data.answer.text, "")


def _insert(connection: sqlite3.Connection, event: Event, role: str, text: str, message: str) -> None:
    row = connection.execute(
        "INSERT INTO entries (session, turn, message, time, role) VALUES (?, ?, ?, ?, ?)",
        (event.session, event.turn, message, event.time, role),
    )
    connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (row.lastrowid, _clean(text)))


def _delete(connection: sqlite3.Connection, column: str, session: str, value: str) -> None:
    for statement in (
        f"DELETE FROM words WHERE rowid IN (SELECT id FROM entries WHERE session = ? AND {column} = ?)",  # noqa: S608  (ours)
        f"DELETE FROM entries WHERE session = ? AND {column} = ?",  # noqa: S608  (a column's name, from us)
    ):
        connection.execute(statement, (session, value))


def _clean(text: str) -> str:
    return text[:_MAX_TEXT].replace("\0", " ").encode("utf-8", "replace").decode()


def _terms(query: str) -> list[str]:
    """The words and phrases of a query, quoted: nothing in it is an operator."""
    found = [phrase or word for phrase, word in re.findall(r'"([^"]*)"|([^\s"]+)', query)]
    return ['"' + _clean(each) + '"' for each in found if re.search(r"\w", each)][:20]


def _line(hit: Hit) -> str:
    when = dt.datetime.fromtimestamp(hit.time).astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{when}, session {hit.session}, {hit.role}: {' '.join(hit.snippet.split())}"
