"""What is said in one moment is one row of the file; nobody who reads it can tell."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halter.errors import StoreCorrupt, StoreError, StoreTooNew
from halter.events import (
    Event,
    EventData,
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    MessageHeld,
    MessageRemoved,
    TurnRolledBack,
    TurnStarted,
)
from halter.models.model import ReasoningDelta, TextDelta, UserMessage
from halter.stores import MemoryStore, SQLiteStore, Store
from tests.stores.storekit import numbers

SESSIONS = ("a", "b")
MESSAGES = st.sampled_from(["m", "n"])
DATA = st.one_of(
    st.builds(TextDelta, st.sampled_from(["", "x", "\udc80"])),
    st.builds(ReasoningDelta, st.just("why")),
    st.just(TurnStarted("m")),
    st.just(TurnRolledBack()),
    st.builds(MessageAccepted, MESSAGES, st.just("queue"), st.just(UserMessage.of("hello"))),
    st.builds(MessageEdited, MESSAGES, st.just(UserMessage.of("otherwise"))),
    st.builds(MessageHeld, MESSAGES),
    st.builds(MessageApplied, MESSAGES, st.just("queue")),
    st.builds(MessageRemoved, MESSAGES),
)
EVENTS = st.lists(st.tuples(DATA, st.sampled_from(["t", "u"]), st.integers(1, 2)), min_size=1, max_size=6)
WRITINGS = st.lists(st.dictionaries(st.sampled_from(SESSIONS), EVENTS, min_size=1), min_size=1, max_size=6)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "store.db") as store:
        yield store


def rows(store: SQLiteStore) -> list[tuple[int, str]]:
    connection = sqlite3.connect(store.path)
    try:
        return connection.execute("SELECT id & 0xFFFFFFFF, kind FROM log ORDER BY id").fetchall()
    finally:
        connection.close()


def at_once(*data: EventData, time: float = 1.0) -> list[Event]:
    return [Event(0, time, "s", "t", each) for each in data]


@given(WRITINGS, st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_reads_as_a_list_of_events(
    tmp_path_factory: pytest.TempPathFactory,
    writings: list[dict[str, list[tuple[EventData, str, int]]]],
    together: bool,
) -> None:
    """From any number, to any number, with or without some kinds: as what keeps each event by itself."""
    memory = MemoryStore()
    with SQLiteStore(tmp_path_factory.mktemp("pieces") / "store.db") as sqlite:
        stores: tuple[Store, ...] = (memory, sqlite)
        leases = {store: {name: store.acquire(name) for name in SESSIONS} for store in stores}
        last = dict.fromkeys(SESSIONS, 0)
        for store in stores:
            for name in SESSIONS:
                store.append(leases[store][name], [Event(0, 0.0, name, "", TextDelta("first"))])
                last[name] = 1
        for writing in writings:
            made = {
                name: [Event(last[name] + n, at, name, turn, data) for n, (data, turn, at) in enumerate(events, 1)]
                for name, events in writing.items()
            }
            for name, events in made.items():
                memory.append(leases[memory][name], events)
                if not together:
                    sqlite.append(leases[sqlite][name], events)
                last[name] += len(events)
                assert events[-1].seq == last[name]
            if together:
                sqlite.append_all([(leases[sqlite][name], events) for name, events in made.items()])
        for name in SESSIONS:
            compare(memory, sqlite, name, last[name])
        assert sorted(sqlite.sessions(), key=lambda info: info.id) == sorted(
            memory.sessions(), key=lambda info: info.id
        )


def compare(memory: Store, sqlite: Store, name: str, last: int) -> None:
    assert sqlite.inbox(name) == memory.inbox(name)
    for after in range(last + 2):
        for limit in (None, 0, 1, 2, last):
            for without in ((), ("text.delta",), ("text.delta", "reasoning.delta", "turn.started")):
                found = sqlite.read(name, after, limit=limit, without=without)
                assert found == memory.read(name, after, limit=limit, without=without)


def test_a_moment_is_one_row(store: SQLiteStore) -> None:
    """What was said at once is one row; what is about a message is one by itself."""
    lease = store.acquire("s")
    store.append(lease, at_once(TurnStarted("m"), TextDelta("a"), TextDelta("b")))
    assert rows(store) == [(3, "")]
    store.append(lease, at_once(TextDelta("c"), TextDelta("d")))
    assert rows(store)[1:] == [(5, "text.delta")]
    store.append(lease, at_once(TextDelta("e"), MessageApplied("m", "queue"), TextDelta("f"), TurnRolledBack()))
    assert rows(store)[2:] == [(6, "text.delta"), (7, "message.applied"), (9, "")]
    assert numbers(store) == list(range(1, 10))


def test_who_comes_between_is_not_overwritten(store: SQLiteStore) -> None:
    """What several write together is refused if one of its numbers is taken, and be it not the last."""
    lease = store.acquire("s")
    store.append(lease, at_once(TextDelta("a")))
    late = [Event(2, 1.0, "s", "t", TextDelta("x")), Event(3, 1.0, "s", "t", TextDelta("y"))]
    store.append(lease, at_once(TextDelta("b")))
    with pytest.raises(StoreError):
        store.append_all([(lease, late)])
    assert numbers(store) == [1, 2]


def test_what_can_not_be_written_is_named(store: SQLiteStore) -> None:
    """With it, nothing is written of what was said in the same moment."""
    lease = store.acquire("s")
    odd = TextDelta(object())  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"turn\.started or text\.delta has something in it"):
        store.append(lease, at_once(TurnStarted("m"), odd))
    assert rows(store) == []


def test_a_row_that_cannot_be_read(store: SQLiteStore) -> None:
    """Damage is named as near as it is known, and so is what only a newer Halter can know."""
    store.append(store.acquire("s"), at_once(TurnStarted("m"), TextDelta("a")))
    connection = sqlite3.connect(store.path)
    with connection:
        connection.execute("UPDATE log SET body = substr(body, 1, 20)")
    with pytest.raises(StoreCorrupt, match="event 2 of session 's', or one that was written with it, is damaged"):
        store.read("s")
    with connection:
        connection.execute("""UPDATE log SET body = '[{"type": "turn.started", "model": "m"}, {"type": "dream"}]'""")
    with pytest.raises(StoreTooNew, match="is 'dream', which only a newer Halter knows"):
        store.read("s")
    connection.close()


def test_a_file_of_the_first_format(tmp_path: Path) -> None:
    """A file in which each event is a row is read, and goes on as one of today."""
    path = tmp_path / "store.db"
    with SQLiteStore(path) as store:
        lease = store.acquire("s")
        for text in "abc":
            store.append(lease, at_once(TextDelta(text)))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with SQLiteStore(path) as store:
        assert numbers(store) == [1, 2, 3]
        store.append(store.acquire("s"), at_once(TurnStarted("m"), TextDelta("d")))
        assert numbers(store) == [1, 2, 3, 4, 5]
        assert rows(store)[-1] == (5, "")
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()
