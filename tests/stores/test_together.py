"""Writing for several sessions at once: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from halter.errors import StoreError
from halter.events import Event, MessageApplied
from halter.stores import Lease, SQLiteStore
from tests.stores.storekit import accepted, event, line, numbers, program, says, texts
from tests.stores.test_store import at_instruction, interrupt

NAMES = ("a", "b", "c")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    with SQLiteStore(tmp_path / "store.db") as store:
        yield store


def begin(store: SQLiteStore) -> dict[str, Lease]:
    """Three sessions, with one event each."""
    leases = {name: store.acquire(name) for name in NAMES}
    for name, lease in leases.items():
        store.append(lease, [accepted(f"m-{name}", session=name)])
    return leases


def numbered(first: int, *events: Event) -> list[Event]:
    for number, each in enumerate(events, first):
        each.seq = number
    return list(events)


def pair(text: str, name: str, first: int) -> list[Event]:
    return numbered(first, says(f"{text} 1", name), says(f"{text} 2", name))


def test_each_session_has_its_own(store: SQLiteStore) -> None:
    """What is written for several is read as if each had written it alone, and so is what follows; the inbox too."""
    leases = begin(store)
    writings = [
        (leases["a"], pair("x", "a", 2)),
        (leases["c"], numbered(2, event(MessageApplied("m-c", "queue"), "c"))),
    ]
    store.append_all(writings)
    assert store.read("a", 1) == writings[0][1]
    assert store.read("c", 1) == writings[1][1]
    assert numbers(store, "b") == [1]
    assert [[each.id for each in store.inbox(name)] for name in NAMES] == [["m-a"], ["m-b"], []]
    after = says("after", "a")
    store.append(leases["a"], [after])
    assert after.seq == 4


@pytest.mark.parametrize("size", [*range(1, 10), 127, 128, 129, 2_048])
def test_any_number_of_events(store: SQLiteStore, size: int) -> None:
    """However many there are, each is written once and in order."""
    leases = begin(store)
    events = numbered(2, *(says(str(number), "a") for number in range(size)))
    for each in events:
        each.time = each.seq  # else several would be one row
    store.append_all([(leases["a"], events)])
    assert texts(store, "a") == [str(number) for number in range(size)]


def test_too_many_events(store: SQLiteStore) -> None:
    """More than SQLite takes in one statement are refused."""
    leases = begin(store)
    events = numbered(2, *(says("x", "a") for _ in range(2_049)))
    for each in events:
        each.time = each.seq
    with pytest.raises(StoreError, match="too many"):
        store.append_all([(leases["a"], events)])
    assert numbers(store, "a") == [1]


def test_a_lost_lease_keeps_all_from_being_written(store: SQLiteStore) -> None:
    """If one of them is not ours any more, nothing is written for the others either."""
    leases = begin(store)
    store.release(leases["b"])
    with pytest.raises(StoreError):
        store.append_all([(leases[name], pair("x", name, 2)) for name in NAMES])
    store.acquire("b")
    with pytest.raises(StoreError):
        store.append_all([(leases[name], pair("x", name, 2)) for name in NAMES])
    assert [numbers(store, name) for name in NAMES] == [[1]] * 3


@pytest.mark.parametrize("first", [1, 3])
def test_a_wrong_number_keeps_all_from_being_written(store: SQLiteStore, first: int) -> None:
    """A number that is taken, or that would leave a gap, is refused, and with it all of it."""
    leases = begin(store)
    with pytest.raises(StoreError):
        store.append_all([(leases["a"], pair("x", "a", 2)), (leases["b"], pair("x", "b", first))])
    assert [numbers(store, name) for name in NAMES] == [[1]] * 3


@pytest.mark.parametrize("moment", range(4))
def test_kill_leaves_all_or_nothing(tmp_path: Path, moment: int) -> None:
    """A process that is killed in the middle has written for all sessions or for none, and all that it has told of."""
    code = """
        store = SQLiteStore(path)
        leases = [store.acquire(name) for name in "abcde"]
        for lease in leases:
            store.append(lease, [says("0", lease.session)])
        for n in range(1, 1_000_000):
            events = [says(str(n), lease.session) for lease in leases]
            for each in events:
                each.seq = n + 1
            store.append_all([(lease, [each]) for lease, each in zip(leases, events)])
            print(n)
    """
    path = tmp_path / "killed.db"
    with program(code, path) as process:
        told = 0
        for _ in range(moment * 37 + 1):
            told = int(line(process))
        process.kill()
        assert process.stdout is not None
        rest = process.stdout.read().split()
        told = int(rest[-1]) if rest else told
    with SQLiteStore(path) as store:
        found = [numbers(store, name) for name in "abcde"]
        assert found == [list(range(1, len(found[0]) + 1))] * 5
        assert len(found[0]) - 1 in {told, told + 1}


def test_an_exception_at_every_instruction_leaves_all_or_nothing(store: SQLiteStore) -> None:
    """Whatever instruction a handler raises after, it is written for all or for none, and the next one goes well."""
    leases = begin(store)
    for moment in count():
        first = len(numbers(store, "a")) + 1
        came = False
        try:
            with at_instruction(moment, interrupt):
                store.append_all([(lease, pair("x", name, first)) for name, lease in leases.items()])
            came = True
        except KeyboardInterrupt:
            pass
        found = [numbers(store, name) for name in NAMES]
        assert found == [list(range(1, len(found[0]) + 1))] * 3
        assert len(found[0]) - first + 1 in ({2} if came else {0, 2})
        if came:
            break
    assert moment > 20


def test_whoever_comes_between_is_not_written_over(store: SQLiteStore) -> None:
    """Whatever instruction a handler comes after that appends to one of them, its events stay: then the others are not
    written, or they were before.
    """
    leases = begin(store)
    for moment in count():
        first = len(numbers(store, "a")) + 1
        for name in NAMES[1:]:
            missing = [says("even", name) for _ in range(first - 1 - len(numbers(store, name)))]
            store.append(leases[name], missing)
        heard: list[Event] = []

        def handler(heard: list[Event] = heard) -> None:
            heard.append(says("handler", "a"))
            store.append(leases["a"], heard)

        is_written = True
        with at_instruction(moment, handler):
            try:
                store.append_all([(lease, pair("x", name, first)) for name, lease in leases.items()])
            except StoreError:
                is_written = False
        assert all(each in store.read("a") for each in heard)
        assert [len(numbers(store, name)) - first + 1 for name in NAMES] == (
            [2 + len(heard), 2, 2] if is_written else [1, 0, 0]
        )
        if not heard:
            break
    assert moment > 20
