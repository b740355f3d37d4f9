"""What a session pays for being written down: an append, a read, a list of sessions.

Backs the figures of the stores: an append that outlives the process costs tens of microseconds; one that outlives a
power cut costs a wait for the disk; a long log and thousands of sessions are read in milliseconds. A folder on the disk
to be measured can be given. Exits with 1 if a goal is missed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

from bench.measure import Goals, interleave, percentile, print_table
from halter.events import Event, MessageAccepted
from halter.models.model import TextDelta, UserMessage
from halter.stores import MemoryStore, SQLiteStore

_APPENDS = 400
_ROUNDS = 10
_EVENTS = 10_000
_SESSIONS = 5_000


def main() -> int:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        memory, sqlite = MemoryStore(), SQLiteStore(Path(folder) / "store.db")
        appends = _appends(memory, sqlite)
        read, sessions = _read(sqlite), _list(sqlite)
        sqlite.close()
    rows = [
        [name, *(f"{percentile(values, percent) * 1e6:,.1f}" for percent in (50, 99, 100))]
        for name, values in appends.items()
    ]
    print_table(f"One append, µs; the disk of {folder}", ["", "median", "99 %", "worst"], rows)
    print(f"  read {_EVENTS:,} events  {read * 1e3:.1f} ms\n  list {_SESSIONS:,} sessions  {sessions * 1e3:.1f} ms\n")
    goals = Goals()
    goals.at_most("an append that outlives the process", percentile(appends["SQLite"], 50) * 1e6, 60, " µs")
    goals.at_most(f"reading {_EVENTS:,} events", read * 1e3, 50, " ms")
    goals.at_most(f"a list of {_SESSIONS:,} sessions", sessions * 1e3, 50, " ms")
    return goals.exit_code


def _appends(memory: MemoryStore, sqlite: SQLiteStore) -> dict[str, list[float]]:
    def sample(store, name, make):
        lease = store.acquire(name)
        taken = []

        def one_round():
            for number in range(_APPENDS):
                events = [Event(0, time.time(), name, "t1", make(f"{len(taken)}-{number}"))]
                start = time.perf_counter()
                store.append(lease, events)
                taken.append(time.perf_counter() - start)
            return 0.0

        return taken, one_round

    samples = {
        "memory": sample(memory, "m", lambda _: TextDelta("a few words")),
        "SQLite": sample(sqlite, "s", lambda _: TextDelta("a few words")),
        "SQLite, a message": sample(sqlite, "d", lambda name: MessageAccepted(name, "queue", UserMessage.of("hello"))),
    }
    interleave(_ROUNDS, {name: one_round for name, (_, one_round) in samples.items()})
    return {name: taken for name, (taken, _) in samples.items()}


def _read(store: SQLiteStore) -> float:
    lease = store.acquire("long")
    for _ in range(_EVENTS // 1000):
        store.append(lease, [Event(0, time.time(), "long", "t1", TextDelta("a few words")) for _ in range(1000)])
    return _best(lambda: store.read("long"))


def _list(store: SQLiteStore) -> float:
    for number in range(_SESSIONS):
        name = f"session {number}"
        lease = store.acquire(name)
        store.append(lease, [Event(0, time.time(), name, "t1", TextDelta("a few words")) for _ in range(5)])
        store.release(lease)
    return _best(store.sessions)


def _best(act) -> float:
    taken = []
    for _ in range(7):
        start = time.perf_counter()
        act()
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    sys.exit(main())
