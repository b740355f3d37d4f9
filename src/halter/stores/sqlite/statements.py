"""The tables of a store, and the SQL statements that use them.

A session has a number. Its events of the same time and turn that are committed together are one row of the log: a row
costs more than what is in it. The row's id is made of the session's number and the number of the row's last event, so
one tree holds all logs, each in one piece and in order.

The session's row tells what lists of sessions show. It is updated with every write, and this update is also the fence:
it changes no row if the lease is not the newest, or if the events do not follow the last one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = [
    "APPLICATION",
    "CREATE",
    "DISOWN",
    "DISOWN_ALL",
    "ERASE_LOG",
    "ERASE_SESSION",
    "LAST",
    "OWN",
    "OWNER_OF",
    "SEQ",
    "SESSIONS",
    "UPGRADE",
    "VERSION",
    "extend",
    "in_chunks",
    "insert",
    "read",
]

APPLICATION = 0x48616C74  # "Halt"
VERSION = 3  # 1: a row for each event. 2: the number of waiting messages came from a table `inbox`
SEQ = 0xFFFFFFFF  # the part of a row's id that is the number of an event

T = TypeVar("T")
_CHUNKS: Final = (256, 64, 16, 4, 1)
_STAMP = (f"PRAGMA application_id = {APPLICATION}", f"PRAGMA user_version = {VERSION}")

CREATE = (
    """
CREATE TABLE session (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    generation INTEGER NOT NULL,
    owner TEXT,  -- NULL if nobody owns it
    last INTEGER NOT NULL DEFAULT 0,  -- the number of its last event
    waiting INTEGER NOT NULL DEFAULT 0,  -- messages in its inbox
    created_at REAL,  -- the time of its first event
    updated_at REAL  -- the time of its last event
)""",
    "CREATE INDEX session_owner ON session (owner) WHERE owner IS NOT NULL",
    """
CREATE TABLE log (
    id INTEGER PRIMARY KEY,  -- session.number << 32 | the number of its last event
    time REAL NOT NULL,
    turn TEXT NOT NULL,
    kind TEXT NOT NULL,  -- empty if it has events of several kinds
    body TEXT NOT NULL  -- JSON: an event, or a list of them
)""",
    *_STAMP,
)

_IN_LOG = "FROM log WHERE id > session.number << 32 AND id < (session.number + 1) << 32"

# Formats 1 and 2 have the same tables. In their log, a column `message` stays behind; it is NULL from now on.
UPGRADE = (
    "ALTER TABLE session ADD COLUMN last INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE session ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE session ADD COLUMN created_at REAL",
    "ALTER TABLE session ADD COLUMN updated_at REAL",
    f"""
UPDATE session SET
    last = coalesce((SELECT max(id) & {SEQ} {_IN_LOG}), 0),
    waiting = (SELECT count(*) FROM inbox WHERE inbox.session = session.number),
    created_at = (SELECT time FROM log WHERE id = (SELECT min(id) {_IN_LOG})),
    updated_at = (SELECT time FROM log WHERE id = (SELECT max(id) {_IN_LOG}))
""",  # noqa: S608  (only our own words)
    "DROP TRIGGER log_to_inbox",
    "DROP TABLE inbox",
    *_STAMP,
)

OWNER_OF = "SELECT number, generation, owner FROM session WHERE id = ?"
OWN = """
INSERT INTO session (id, generation, owner) VALUES (?, 1, ?)
ON CONFLICT (id) DO UPDATE SET generation = generation + 1, owner = excluded.owner WHERE generation = ? AND owner IS ?
"""
DISOWN = "UPDATE session SET owner = NULL WHERE number = ? AND generation = ? AND owner = ?"
DISOWN_ALL = "UPDATE session SET owner = NULL WHERE owner = ?"

LAST = "SELECT last FROM session WHERE id = ? AND generation = ? AND owner = ?"
ERASE_SESSION = """
UPDATE session SET last = 0, waiting = 0, created_at = NULL, updated_at = NULL
WHERE number = ? AND generation = ? AND owner = ?
"""
ERASE_LOG = "DELETE FROM log WHERE id > ? AND id < ?"

SESSIONS = "SELECT id, created_at, updated_at, last, waiting FROM session WHERE last > 0 ORDER BY updated_at DESC"


def in_chunks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """Cut *rows* into chunks of a few sizes, so that few different statements have to be prepared."""
    start = 0
    for size in _CHUNKS:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@functools.cache
def extend(count: int) -> str:
    """The statement that updates *count* sessions: number, last, waiting, first and last time, generation, last before.

    One statement for many, because the interpreter lock is given up with each, and taking it back from a busy event
    loop may take milliseconds.
    """
    return f"""
UPDATE session SET last = row.column2, waiting = row.column3, created_at = coalesce(created_at, row.column4),
    updated_at = row.column5
FROM (VALUES {", ".join(["(?, ?, ?, ?, ?, ?, ?)"] * count)}) AS row
WHERE session.number = row.column1 AND session.generation = row.column6 AND session.last = row.column7
    AND session.owner = ?
"""  # noqa: S608  (only our own words and question marks)


@functools.cache
def insert(count: int) -> str:
    """The statement that adds *count* rows to the log."""
    return f"INSERT INTO log (id, time, turn, kind, body) VALUES {', '.join(['(?, ?, ?, ?, ?)'] * count)}"  # noqa: S608


def read(*, without: int) -> str:
    """The statement that reads a log, leaving out so many kinds."""
    return f"""
WITH base AS (SELECT number << 32 AS id FROM session WHERE id = ?)
SELECT id & {SEQ}, time, turn, kind, body FROM log
WHERE id > (SELECT id FROM base) + ? AND id <= (SELECT id FROM base) + {SEQ}
    AND kind NOT IN ({", ".join("?" * without)})
ORDER BY id LIMIT ?
"""  # noqa: S608  (only our own words and question marks)
