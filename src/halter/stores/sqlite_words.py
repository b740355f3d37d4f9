"""What is said to SQLite: the tables, and the statements of a store.

A session has a number. What was said in one moment is a row, whose id is that number and its last event's: one tree
holds all logs, each in one piece and in order. It is the row that costs, and not what is in it. An event about a
message is a row of its own, for the inbox points at it.

The inbox follows from the log by a trigger, so that one statement changes both or neither. It only points at the
events: a message with a recording in it is kept once.
"""

from __future__ import annotations

import functools

__all__ = [
    "APPLICATION",
    "DISOWN",
    "DISOWN_ALL",
    "ERASE_INBOX",
    "ERASE_LOG",
    "INBOX",
    "IS_OWNED",
    "MOST",
    "MOST_TOGETHER",
    "OWN",
    "SCHEMA",
    "SESSIONS",
    "VERSION",
    "WHO_OWNS",
    "append",
    "append_all",
    "read",
]

APPLICATION = 0x48616C74  # "Halt"
VERSION = 2  # in 1, each event was a row of its own
MOST = 4_000  # events in one append(): SQLite takes 32,766 values in one statement
MOST_TOGETHER = 2_048  # in one append_all(), where each has more of them

SCHEMA = """
BEGIN EXCLUSIVE;
CREATE TABLE session (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    generation INTEGER NOT NULL,
    owner TEXT  -- NULL if nobody owns it
);
CREATE INDEX session_owner ON session (owner) WHERE owner IS NOT NULL;
CREATE TABLE log (
    id INTEGER PRIMARY KEY,  -- session.number << 32 | seq, of its last event
    time REAL NOT NULL,
    turn TEXT NOT NULL,
    kind TEXT NOT NULL,  -- empty if it has events of several
    message TEXT,  -- which one, if it is about a message of the inbox
    body TEXT NOT NULL  -- an event, or a list of them
);
CREATE TABLE inbox (
    session INTEGER NOT NULL,
    message TEXT NOT NULL,
    accepted INTEGER NOT NULL,  -- the event that brought it
    latest INTEGER NOT NULL,  -- the event that has its text: that one, or the last edit
    held INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (session, message)
) WITHOUT ROWID;
CREATE TRIGGER log_to_inbox AFTER INSERT ON log WHEN new.message IS NOT NULL BEGIN
    INSERT OR REPLACE INTO inbox (session, message, accepted, latest)
        SELECT new.id >> 32, new.message, new.id, new.id WHERE new.kind = 'message.accepted';
    UPDATE inbox SET latest = new.id
        WHERE new.kind = 'message.edited' AND session = new.id >> 32 AND message = new.message;
    UPDATE inbox SET held = (new.kind = 'message.held')
        WHERE new.kind IN ('message.held', 'message.released') AND session = new.id >> 32 AND message = new.message;
    DELETE FROM inbox
        WHERE new.kind IN ('message.applied', 'message.removed') AND session = new.id >> 32 AND message = new.message;
END;
"""
SCHEMA += f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION}; COMMIT;"

WHO_OWNS = "SELECT generation, owner FROM session WHERE id = ?"
OWN = """
INSERT INTO session (id, generation, owner) VALUES (?, 1, ?)
ON CONFLICT (id) DO UPDATE SET generation = generation + 1, owner = excluded.owner WHERE generation = ? AND owner IS ?
"""
IS_OWNED = "SELECT 1 FROM session WHERE id = ? AND generation = ? AND owner = ?"
DISOWN = "UPDATE session SET owner = NULL WHERE id = ? AND generation = ? AND owner = ?"
DISOWN_ALL = "UPDATE session SET owner = NULL WHERE owner = ?"
ERASE_INBOX = """
DELETE FROM inbox WHERE session = (SELECT number FROM session WHERE id = ? AND generation = ? AND owner = ?)
"""
ERASE_LOG = """
DELETE FROM log WHERE id IN (
    SELECT log.id FROM session JOIN log ON log.id > session.number << 32 AND log.id < (session.number + 1) << 32
    WHERE session.id = ? AND session.generation = ? AND session.owner = ?
)
"""

INBOX = """
SELECT inbox.held, accepted.id & 0xFFFFFFFF, accepted.time, accepted.kind, accepted.body,
    latest.id & 0xFFFFFFFF, latest.kind, latest.body
FROM inbox JOIN log AS accepted ON accepted.id = inbox.accepted JOIN log AS latest ON latest.id = inbox.latest
WHERE inbox.session = (SELECT number FROM session WHERE id = ?)
ORDER BY inbox.accepted
"""
# A few steps down the tree for each session, however long its log is: its events are numbered without gaps.
SESSIONS = """
SELECT known.id, first.time, last.time, last.id & 0xFFFFFFFF,
    (SELECT count(*) FROM inbox WHERE inbox.session = known.number)
FROM (
    SELECT id, number, (
        SELECT min(log.id) FROM log WHERE log.id > session.number << 32 AND log.id < (session.number + 1) << 32
    ) AS first, (
        SELECT max(log.id) FROM log WHERE log.id > session.number << 32 AND log.id < (session.number + 1) << 32
    ) AS last
    FROM session
) AS known
JOIN log AS first ON first.id = known.first
JOIN log AS last ON last.id = known.last
ORDER BY last.time DESC
"""


def read(*, without: int) -> str:
    """The statement that reads a log, leaving out so many kinds."""
    return f"""
WITH base AS (SELECT number << 32 AS id FROM session WHERE id = ?)
SELECT id & 0xFFFFFFFF, time, turn, kind, body FROM log
WHERE id > (SELECT id FROM base) + ? AND id <= (SELECT id FROM base) + 0xFFFFFFFF
    AND kind NOT IN ({", ".join("?" * without)})
ORDER BY id LIMIT ?
"""  # noqa: S608  (only our own words and question marks)


@functools.lru_cache(maxsize=64)
def append(count: int) -> str:
    """The statement that appends *count* rows if the lease is still the newest: it numbers, writes and fences in one.

    It has no RETURNING: a statement that has rows to fetch commits only when they are fetched, in a second call into C,
    and who comes between would wait for us for ever. The last number is known as the id of the last row: of the one
    session that there is, SQLite goes through the rows as they stand here, for it does not reorder a CROSS JOIN. To
    have them sorted would cost more.
    """
    columns, rows = "?, ?, ?, ?, ?, ?", ""
    if count > 1:
        columns = ", ".join(f"row.column{1 + n}" for n in range(6))
        rows = f" CROSS JOIN (VALUES {', '.join(['(?, ?, ?, ?, ?, ?)'] * count)}) AS row"
    place, _, columns = columns.partition(", ")
    return f"""
INSERT INTO log (id, time, turn, kind, message, body)
SELECT {place} + coalesce(
    (SELECT max(id) FROM log WHERE id > session.number << 32 AND id < (session.number + 1) << 32),
    session.number << 32
), {columns}
FROM session{rows}
WHERE session.id = ? AND session.generation = ? AND session.owner = ?
"""  # noqa: S608  (only our own words and question marks)


@functools.lru_cache(maxsize=16)
def append_all(count: int) -> str:
    """The statement that appends at most *count* rows of several sessions, each with its number: all, or none.

    It writes NULL where that is not allowed, and so nothing, if a lease is not the newest any more, or if the event
    that a number follows on is not the last one. Rows of NULL are left out.
    """
    rows = ", ".join(["(?, ?, ?, ?, ?, ?, ?, ?, ?)"] * count)
    return f"""
INSERT INTO log (id, time, turn, kind, message, body)
SELECT (session.number << 32) + row.column4, row.column5,
    CASE (SELECT max(id) FROM log WHERE id > session.number << 32 AND id < (session.number + 1) << 32)
        WHEN (session.number << 32) + row.column3 THEN row.column6
    END, row.column7, row.column8, row.column9
FROM (VALUES {rows}) AS row
LEFT JOIN session ON session.id = row.column1 AND session.generation = row.column2 AND session.owner = ?
WHERE row.column1 IS NOT NULL
"""  # noqa: S608  (only our own words and question marks)
