"""What every store promises, tested with each of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from halter.errors import LeaseLost, SessionOwned, StoreError, WriteRefused
from halter.events import Event, MessageEdited, TurnStarted
from halter.models.types import Audio, TextDelta, UserMessage
from halter.stores import Lease, MemoryStore, NATSStore, SessionInfo, SQLiteStore, Store, Write
from tests.support.store_events import accepted, append, event, numbered, numbers, says, texts, waiting

NAMES = ("a", "b", "c")


@pytest.fixture(params=["memory", "sqlite", "nats"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "sqlite":
        made = SQLiteStore(tmp_path / "store.db")
    else:
        made = NATSStore(request.getfixturevalue("nats_server").url, prefix=tmp_path.name)
    yield made
    made.close()


def begin(store: Store) -> dict[str, Lease]:
    """Three sessions with one event each."""
    leases = {name: store.acquire(name) for name in NAMES}
    store.commit([Write(lease, numbered(1, accepted("m", session=name)), 1) for name, lease in leases.items()])
    return leases


# The log


def test_events_come_back_in_order(store: Store) -> None:
    """read() returns what commit() was given, with its numbers."""
    lease = store.acquire("s")
    first, more = numbered(1, says("a")), numbered(2, says("b"), says("c"), says("d"))
    store.commit([Write(lease, first, 0)])
    store.commit([Write(lease, more, 0)])
    assert store.read("s") == first + more
    assert numbers(store) == [1, 2, 3, 4]


def test_sessions_are_apart(store: Store) -> None:
    """Sessions in one store do not see each other's events, and each has its own numbers."""
    for name in ("one", "two"):
        lease = store.acquire(name)
        for text in "abc":
            append(store, lease, says(name + text, name))
    assert texts(store, "one") == ["onea", "oneb", "onec"]
    assert numbers(store, "two") == [1, 2, 3]


def test_an_event_comes_back_as_it_was(store: Store) -> None:
    """Bytes, odd characters and exact times survive being written and read."""
    lease = store.acquire("s")
    message = UserMessage.of("naïve \0 \U0001f40e", Audio(bytes(range(256))))
    written = append(
        store,
        lease,
        event(MessageEdited("m", message), turn="törn"),
        says("name of a file: \udcff"),  # how Python shows a byte that is not UTF-8
        Event(0, 1700000000.1234567, "s", "", TextDelta("exact")),
        Event(0, 0.1 + 0.2, "s", "", TextDelta("exact")),
    )
    assert store.read("s") == written
    assert [entry.time for entry in store.read("s", 2)] == [1700000000.1234567, 0.1 + 0.2]


def test_many_events_at_once(store: Store) -> None:
    """Ten thousand events in one commit keep their order."""
    lease = store.acquire("s")
    append(store, lease, says("first"))
    append(store, lease, *(says(str(n)) for n in range(10_000)))
    assert texts(store) == ["first", *map(str, range(10_000))]
    assert numbers(store) == list(range(1, 10_002))


def test_reading_a_part(store: Store) -> None:
    """read() begins after a number, ends at a limit, and leaves out kinds; the limit counts what is returned."""
    lease = store.acquire("s")
    for n in range(5):
        append(store, lease, says(str(n)), event(TurnStarted("m")))
    assert [entry.seq for entry in store.read("s", 7)] == [8, 9, 10]
    assert [entry.seq for entry in store.read("s", 7, limit=2)] == [8, 9]
    assert store.read("s", limit=0) == []
    assert [entry.seq for entry in store.read("s", 3, limit=2, without=["text.delta"])] == [4, 6]
    assert store.read("s", without={"text.delta", "turn.started"}) == []
    assert len(store.read("s", -1)) == 10
    assert store.read("s", 10) == store.read("s", 1 << 70) == []
    assert store.read("nobody") == []


def test_what_was_read_does_not_change(store: Store) -> None:
    """A list that read() returned is the caller's: later events do not appear in it."""
    lease = store.acquire("s")
    append(store, lease, says("a"))
    read = store.read("s")
    append(store, lease, says("b"))
    assert len(read) == 1


# The list of sessions


def test_sessions_are_listed_latest_first(store: Store) -> None:
    """sessions() tells when each began and was last used, how long its log is, and how many messages wait."""
    for at, name in enumerate(["old", "new", "middle"]):
        append(store, store.acquire(name), Event(0, 10.0 * at, name, "", accepted("m").data), waiting=at)
    store.acquire("empty")
    found = {info.id: info for info in store.sessions()}
    assert list(found) == ["middle", "new", "old"]
    assert found["new"] == SessionInfo("new", created_at=10, updated_at=10, events=1, waiting=1)


def test_sessions_tells_the_first_and_the_last_event(store: Store) -> None:
    """A session was created with its first event and used with its last; what waits is what the last write said."""
    lease = store.acquire("s")
    for at in (1.5, 2.5, 3.25):
        append(store, lease, Event(0, at, "s", "", TextDelta("x")), waiting=7)
    append(store, lease, *(Event(0, 9.0 + n, "s", "", TextDelta("x")) for n in range(3)), waiting=2)
    assert store.sessions() == [SessionInfo("s", created_at=1.5, updated_at=11.0, events=6, waiting=2)]
    append(store, lease, says("x"))
    assert waiting(store) == 0


# Leases


def test_a_session_has_one_owner(store: Store) -> None:
    """A session that is owned cannot be acquired; after the release it can, with a higher generation."""
    lease = store.acquire("s")
    with pytest.raises(SessionOwned, match="'s' is already open in this process"):
        store.acquire("s")
    store.release(lease)
    assert store.acquire("s").generation > lease.generation
    store.acquire("another")


def test_an_old_lease_writes_nothing(store: Store) -> None:
    """After its session was released and acquired again, a lease cannot write, and cannot release the new one."""
    old = store.acquire("s")
    append(store, old, says("a"))
    store.release(old)
    with pytest.raises(LeaseLost, match="nothing was written") as refused:
        append(store, old, says("late"), accepted("m"), waiting=1)
    assert refused.value.session == "s"
    new = store.acquire("s")
    with pytest.raises(LeaseLost):
        append(store, old, says("late"))
    store.release(old)
    append(store, new, says("b"))
    assert texts(store) == ["a", "b"]
    assert waiting(store) == 0


def test_a_lease_of_nobody(store: Store) -> None:
    """A lease for a session that was never acquired writes nothing, and its release does nothing."""
    with pytest.raises(LeaseLost):
        append(store, Lease("s", 1), says("x"))
    store.release(Lease("s", 1))
    assert store.sessions() == []


def test_close_releases(store: Store) -> None:
    """close() ends all leases, and may be called twice; a release after it does nothing."""
    lease = store.acquire("s")
    store.close()
    store.close()
    store.release(lease)
    with pytest.raises(StoreError):
        store.commit([Write(lease, numbered(1, says("late")), 0)])


def test_an_erased_session_is_gone_and_its_name_is_free(store: Store) -> None:
    """erase() leaves nothing of a session, others keep their logs, and the next log begins at number 1."""
    lease, other = store.acquire("s"), store.acquire("other")
    append(store, lease, accepted("m1"), says("a"), waiting=1)
    append(store, other, accepted("m1", session="other"), says("b", "other"), waiting=1)
    store.erase(lease)
    assert store.read("s") == []
    assert [info.id for info in store.sessions()] == ["other"]
    assert texts(store, "other") == ["b"]
    append(store, lease, Event(0, 5.0, "s", "", TextDelta("again")))
    assert numbers(store) == [1]
    assert SessionInfo("s", created_at=5.0, updated_at=5.0, events=1, waiting=0) in store.sessions()


def test_only_the_owner_can_erase(store: Store) -> None:
    """A lease that is not the newest any more erases nothing."""
    old = store.acquire("s")
    append(store, old, accepted("m1"), waiting=1)
    store.release(old)
    store.acquire("s")
    with pytest.raises(LeaseLost):
        store.erase(old)
    assert numbers(store) == [1]
    assert waiting(store) == 1


# Several sessions in one commit


def test_each_session_gets_its_own_events(store: Store) -> None:
    """What is committed for several sessions is read as if each had been written alone."""
    leases = begin(store)
    writes = [
        Write(leases["a"], numbered(2, says("x", "a"), says("y", "a")), 1),
        Write(leases["c"], numbered(2, says("z", "c")), 0),
    ]
    store.commit(writes)
    for write in writes:
        assert store.read(write.lease.session, 1) == write.events
    assert numbers(store, "b") == [1]
    assert [waiting(store, name) for name in NAMES] == [1, 1, 0]


def test_two_writes_of_one_session(store: Store) -> None:
    """One commit may have several writes of a session, if each follows the one before."""
    leases = begin(store)
    store.commit([Write(leases["a"], numbered(n, says(str(n), "a")), n) for n in (2, 3)])
    assert texts(store, "a") == ["2", "3"]
    assert waiting(store, "a") == 3
    with pytest.raises(WriteRefused):
        store.commit([Write(leases["a"], numbered(n, says(str(n), "a")), n) for n in (4, 4)])
    assert numbers(store, "a") == [1, 2, 3]


def test_a_lost_lease_keeps_all_from_being_written(store: Store) -> None:
    """If one lease is lost, nothing is written for the others either, and the error names that session."""
    leases = begin(store)
    writes = [Write(lease, numbered(2, says("x", name), says("y", name)), 5) for name, lease in leases.items()]
    store.release(leases["b"])
    for _ in range(2):
        with pytest.raises(LeaseLost) as refused:
            store.commit(writes)
        assert refused.value.session == "b"
        assert [(numbers(store, name), waiting(store, name)) for name in NAMES] == [([1], 1)] * 3
        store.release(store.acquire("b"))


@pytest.mark.parametrize("seqs", [(1, 2), (3, 4), (2, 4), (2, 2)])
def test_a_wrong_number_keeps_all_from_being_written(store: Store, seqs: tuple[int, int]) -> None:
    """A number that is taken or would leave a gap is refused with the name of its session; nothing is written."""
    leases = begin(store)
    wrong = [says("x", "b"), says("y", "b")]
    for entry, seq in zip(wrong, seqs, strict=True):
        entry.seq = seq
    writes = [Write(leases["a"], numbered(2, says("x", "a")), 5), Write(leases["b"], wrong, 5)]
    with pytest.raises(WriteRefused, match="does not follow") as refused:
        store.commit(writes)
    assert refused.value.session == "b"
    assert not isinstance(refused.value, LeaseLost)
    assert [(numbers(store, name), waiting(store, name)) for name in NAMES] == [([1], 1)] * 3
    store.commit(writes[:1])


# Threads


def test_readers_are_not_disturbed_by_the_writer(store: Store) -> None:
    """Threads that read while another writes see a log without gaps that only grows, and whole commits."""
    lease = store.acquire("s")
    is_done = threading.Event()

    def read() -> None:
        seen = 0
        while not is_done.is_set():
            found = numbers(store)
            assert found == list(range(1, len(found) + 1))
            assert len(found) >= seen
            assert len(found) % 3 == 0
            seen = len(found)
            assert all(info.events % 3 == 0 for info in store.sessions())

    def write() -> None:
        for n in range(100):
            store.commit([Write(lease, numbered(3 * n + 1, says("x"), says("y"), event(TurnStarted("m"))), 0)])
        is_done.set()

    together([read, read, read, write])
    assert len(store.read("s")) == 300


def together(work: list[Callable[[], object]]) -> None:
    """Run each in a thread of its own; what goes wrong in one goes wrong here."""
    wrong: list[BaseException] = []

    def run(one: Callable[[], object]) -> None:
        try:
            one()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if wrong:
        raise wrong[0]
