"""Events of one time and turn share a row of the file; nobody who reads the log can tell."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halter.errors import NotStorable, StoreCorrupt, StoreTooNew
from halter.events import (
    Event,
    EventData,
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    MessageHeld,
    MessageRemoved,
    QuestionAnswered,
    TurnRolledBack,
    TurnStarted,
)
from halter.models.types import ReasoningDelta, TextDelta, UserMessage
from halter.stores import MemoryStore, SQLiteStore, Store, Write
from tests.support.store_events import append, numbered, numbers, says

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
COMMITS = st.lists(st.dictionaries(st.sampled_from(SESSIONS), EVENTS, min_size=1), min_size=1, max_size=6)


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


@given(COMMITS)
@settings(max_examples=60, deadline=None)
def test_it_reads_as_a_list_of_events(
    tmp_path_factory: pytest.TempPathFactory, commits: list[dict[str, list[tuple[EventData, str, int]]]]
) -> None:
    """From any number, to any number, with or without some kinds, it reads as a store that keeps each event alone."""
    memory = MemoryStore()
    with SQLiteStore(tmp_path_factory.mktemp("rows") / "store.db") as sqlite:
        last = dict.fromkeys(SESSIONS, 0)
        leases = {store: {name: store.acquire(name) for name in SESSIONS} for store in (memory, sqlite)}
        for commit in commits:
            made = {
                name: [Event(last[name] + n, at, name, turn, data) for n, (data, turn, at) in enumerate(events, 1)]
                for name, events in commit.items()
            }
            for store in (memory, sqlite):
                store.commit([Write(leases[store][name], events, len(events)) for name, events in made.items()])
            for name, events in made.items():
                last[name] += len(events)
        for name in SESSIONS:
            compare(memory, sqlite, name, last[name])
        assert sorted(sqlite.sessions(), key=lambda info: info.id) == sorted(
            memory.sessions(), key=lambda info: info.id
        )


def compare(memory: Store, sqlite: Store, name: str, last: int) -> None:
    for after in range(last + 2):
        for limit in (None, 0, 1, 2, last):
            for without in ((), ("text.delta",), ("text.delta", "reasoning.delta", "turn.started")):
                found = sqlite.read(name, after, limit=limit, without=without)
                assert found == memory.read(name, after, limit=limit, without=without)


def test_events_of_one_time_and_turn_are_one_row(store: SQLiteStore) -> None:
    """Events of the same time and turn in one write are one row, which knows their kind if it is the same."""
    lease = store.acquire("s")
    append(store, lease, *at_once(TurnStarted("m"), TextDelta("a"), TextDelta("b")))
    assert rows(store) == [(3, "")]
    append(store, lease, *at_once(TextDelta("c"), TextDelta("d")))
    assert rows(store)[1:] == [(5, "text.delta")]
    append(store, lease, *at_once(TextDelta("e")), *at_once(MessageApplied("m", "queue"), TextDelta("f"), time=2.0))
    assert rows(store)[2:] == [(6, "text.delta"), (8, "")]
    assert numbers(store) == list(range(1, 9))


@pytest.mark.parametrize("value", [object(), {(1, 2): 3}, [[object()]]])
def test_what_cannot_be_json_is_named(store: SQLiteStore, value: object) -> None:
    """An event that cannot be written as JSON is refused by its kind and session; nothing of the commit is written."""
    lease, other = store.acquire("s"), store.acquire("other")
    writes = [
        Write(other, [Event(1, 1.0, "other", "t", TextDelta("a"))], 0),
        Write(lease, numbered(1, *at_once(TurnStarted("m"), QuestionAnswered("q", value))), 0),
    ]
    with pytest.raises(NotStorable, match=r"turn\.started or question\.answered contains something") as refused:
        store.commit(writes)
    assert refused.value.session == "s"
    assert store.sessions() == []
    store.commit(writes[:1])


def test_a_value_without_an_end_is_refused(store: SQLiteStore) -> None:
    """A list that contains itself is refused like anything else that cannot be JSON."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(NotStorable):
        append(store, store.acquire("s"), Event(0, 1.0, "s", "t", QuestionAnswered("q", endless)))


def test_half_of_a_surrogate_pair_beside_what_cannot_be_json(store: SQLiteStore) -> None:
    """Escaping a text does not hide that something else in the event cannot be written."""
    with pytest.raises(NotStorable):
        append(store, store.acquire("s"), Event(0, 1.0, "s", "t", QuestionAnswered("q", ["\udc80", object()])))


def test_a_row_that_cannot_be_read(store: SQLiteStore) -> None:
    """Damage is named as exactly as it is known, and an event that only a newer Halter can know asks for an upgrade."""
    append(store, store.acquire("s"), *at_once(TurnStarted("m"), TextDelta("a")))
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


def test_a_row_of_one_event_that_cannot_be_read(store: SQLiteStore) -> None:
    """A row with a single event names that event; what is left out need not be understood."""
    append(store, store.acquire("s"), says("a"), says("b"))
    connection = sqlite3.connect(store.path)
    with connection:
        connection.execute('UPDATE log SET body = \'{"type": "text.delta", "tex\' WHERE id & 0xFF = 2')
    with pytest.raises(StoreCorrupt, match="event 2 of session 's' is damaged"):
        store.read("s")
    with connection:
        connection.execute("UPDATE log SET kind = 'dream', body = '{\"type\": \"dream\"}' WHERE id & 0xFF = 2")
    connection.close()
    with pytest.raises(StoreTooNew, match="event 2 of session 's' is 'dream'"):
        store.read("s")
    assert len(store.read("s", without=["dream"])) == 1
