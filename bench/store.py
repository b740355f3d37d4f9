"""What a store costs: a commit, a read, a list of sessions, beside bare `sqlite3` in the same run.

Backs the figures of the stores: a commit that outlives the process costs tens of microseconds, and a fraction of that
for each event if many sessions share it; one that outlives a power cut waits for the disk; a long log and thousands of
sessions are read in milliseconds. A folder on the disk to be measured can be given. Exits with 1 if a goal is missed.
"""

from __future__ import annotations

import functools
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

from bench.measure import Goals, interleave, percentile, print_table
from halter.events import Event, MessageAccepted
from halter.models.types import TextDelta, UserMessage
from halter.stores import MemoryStore, SQLiteStore, Write

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.events import EventData
    from halter.stores import Store

_COMMITS = 200
_ROUNDS = 20
_TOGETHER = 100
_EVENTS = 10_000
_SESSIONS = 5_000
_BODY = '{"type":"text.delta","text":"a few words"}'


def main() -> int:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        commits = _commits(folder)
        reads = _reads(folder)
    bare, bare_many = (percentile(commits[f"bare sqlite3, {what}"], 50) for what in ("a row", f"{_TOGETHER} rows"))
    base = {name: bare_many if str(_TOGETHER) in name else bare for name in commits}
    rows = [
        [name, *(f"{percentile(values, percent) * 1e6:,.1f}" for percent in (50, 99)), f"{_ratio(values, base[name])}x"]
        for name, values in commits.items()
    ]
    print_table(f"One commit, µs; the disk of {folder}", ["", "median", "99 %", "beside bare"], rows)
    rows = [[name, f"{ours * 1e3:.1f}", f"{ours / theirs:.1f}x"] for name, (ours, theirs) in reads.items()]
    print_table("Reading, ms", ["", "best", "beside bare"], rows)
    one, many = (percentile(commits[f"SQLite, {what}"], 50) for what in ("an event", f"{_TOGETHER} sessions x 1 event"))
    goals = Goals()
    goals.at_most("a commit of an event beside a bare row", one / bare, 4)
    goals.at_most(f"a commit for {_TOGETHER} sessions beside {_TOGETHER} bare rows", many / bare_many, 3)
    goals.at_most(f"an event among {_TOGETHER}, beside one alone", many / _TOGETHER / one, 0.5)
    for name, (ours, _) in reads.items():
        goals.at_most(name, ours * 1e3, 50, " ms")
    return goals.exit_code


def _ratio(values: list[float], base: float) -> str:
    return f"{percentile(values, 50) / base:,.1f}"


def _commits(folder: str) -> dict[str, list[float]]:
    memory, sqlite, bare = MemoryStore(), SQLiteStore(Path(folder) / "commits.db"), _Bare(Path(folder) / "bare.db")

    def words(_: str) -> EventData:
        return TextDelta("a few words")

    def message(name: str) -> EventData:
        return MessageAccepted(name, "queue", UserMessage.of("hello"))

    samples: dict[str, Callable[[int], Callable[[], object]]] = {
        "bare sqlite3, a row": lambda number: lambda: bare.insert(1, number),
        f"bare sqlite3, {_TOGETHER} rows": lambda number: lambda: bare.insert(_TOGETHER, number),
        "memory, an event": _committing(memory, 1, words),
        "SQLite, an event": _committing(sqlite, 1, words),
        f"SQLite, {_TOGETHER} sessions x 1 event": _committing(sqlite, _TOGETHER, words),
        "SQLite, a message, on the disk": _committing(sqlite, 1, message),
    }
    taken: dict[str, list[float]] = {name: [] for name in samples}

    def one_round(name: str) -> float:
        # Fewer of those that take long: all are measured over the same time.
        count = _COMMITS // (10 if str(_TOGETHER) in name or "disk" in name else 1)
        for _ in range(count):
            act = samples[name](len(taken[name]) + 1)
            start = time.perf_counter()
            act()
            taken[name].append(time.perf_counter() - start)
        return 0.0

    interleave(_ROUNDS, {name: functools.partial(one_round, name) for name in samples})
    sqlite.close()
    bare.close()
    return taken


def _committing(store: Store, sessions: int, make: Callable[[str], EventData]) -> Callable[[int], Callable[[], object]]:
    leases = [store.acquire(f"{make.__name__} {sessions} {number}") for number in range(sessions)]

    def prepare(number: int) -> Callable[[], object]:
        now = time.time()
        writes = [
            Write(lease, [Event(number, now, lease.session, "t1", make(f"m{number}"))], number) for lease in leases
        ]
        return lambda: store.commit(writes)

    return prepare


class _Bare:
    """The least that SQLite does for durable rows: the same tables, no lease, no list of sessions, no check."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for sql in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = NORMAL",
            "PRAGMA wal_autocheckpoint = 4000",
            "CREATE TABLE log (id INTEGER PRIMARY KEY, time REAL, turn TEXT, kind TEXT, body TEXT)",
        ):
            self._connection.execute(sql)

    def insert(self, sessions: int, number: int) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        for session in range(sessions):
            place = (session + sessions << 32) + number
            execute("INSERT INTO log VALUES (?, ?, ?, ?, ?)", (place, time.time(), "t1", "text.delta", _BODY))
        execute("COMMIT")

    def read(self) -> list[object]:
        return self._connection.execute("SELECT id, time, turn, kind, body FROM log ORDER BY id").fetchall()

    def close(self) -> None:
        self._connection.close()


def _reads(folder: str) -> dict[str, tuple[float, float]]:
    store = SQLiteStore(Path(folder) / "reads.db")
    log, names = _Bare(Path(folder) / "log.db"), _Bare(Path(folder) / "names.db")
    lease = store.acquire("long")
    now = time.time()
    for first in range(1, _EVENTS + 1, 1000):
        # As a model says them: each with a time of its own.
        events = [Event(seq, now + seq, "long", "t1", TextDelta("a few words")) for seq in range(first, first + 1000)]
        store.commit([Write(lease, events, 0)])
    for number in range(1, _EVENTS + 1):
        log.insert(1, number)
    leases = [store.acquire(f"session {number}") for number in range(_SESSIONS)]
    store.commit([Write(each, [Event(1, now, each.session, "t1", TextDelta("x"))], 0) for each in leases])
    for number in range(1, _SESSIONS + 1):
        names.insert(1, number)
    figures = {
        f"{_EVENTS:,} events": (_best(lambda: store.read("long")), _best(log.read)),
        f"a list of {_SESSIONS:,} sessions": (_best(store.sessions), _best(names.read)),
    }
    for each in (store, log, names):
        each.close()
    return figures


def _best(act: Callable[[], object]) -> float:
    taken = []
    for _ in range(7):
        start = time.perf_counter()
        act()
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    sys.exit(main())
