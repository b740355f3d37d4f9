"""What every store promises, asked of each of them."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from halter.errors import LeaseLost, SessionOwned, StoreError
from halter.events import (
    Event,
    MessageApplied,
    MessageEdited,
    MessageHeld,
    MessageReleased,
    MessageRemoved,
    TurnStarted,
)
from halter.models.model import Audio, TextDelta, UserMessage
from halter.stores import Lease, MemoryStore, SessionInfo, SQLiteStore, Store, Waiting
from tests.stores.storekit import accepted, event, numbers, says, texts


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store = MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "store.db")
    yield made
    made.close()


def test_events_are_numbered_from_one_in_the_order_in_which_they_come(store: Store) -> None:
    """append() gives each event its number, without gaps from 1, and read() returns them as they were."""
    lease = store.acquire("s")
    first, more = [says("a")], [says("b"), says("c"), says("d")]
    store.append(lease, first)
    store.append(lease, more)
    assert [entry.seq for entry in first + more] == [1, 2, 3, 4]
    assert store.read("s") == first + more


def test_each_session_counts_for_itself(store: Store) -> None:
    """Sessions in one store do not see each other's events or numbers."""
    for name in ("one", "two"):
        lease = store.acquire(name)
        for text in "abc":
            store.append(lease, [says(name + text, name)])
    assert texts(store, "one") == ["onea", "oneb", "onec"]
    assert numbers(store, "two") == [1, 2, 3]


def test_an_event_comes_back_as_it_was(store: Store) -> None:
    """Bytes, odd characters and exact times survive being written and read."""
    lease = store.acquire("s")
    message = UserMessage.of("naïve \0 \U0001f40e", Audio(bytes(range(256))))
    written = [
        event(MessageEdited("m", message), turn="törn"),
        says("name of a file: \udcff"),  # how Python shows a byte that is not UTF-8
        Event(0, 1700000000.1234567, "s", "", TextDelta("exact")),
        Event(0, 0.1 + 0.2, "s", "", TextDelta("exact")),
    ]
    for entry in written[:2]:
        store.append(lease, [entry])
    store.append(lease, written[2:])
    assert store.read("s") == written
    assert [entry.time for entry in store.read("s", 2)] == [1700000000.1234567, 0.1 + 0.2]


def test_many_events_at_once(store: Store) -> None:
    """A thousand events in one append keep their order."""
    lease = store.acquire("s")
    store.append(lease, [says("first")])
    store.append(lease, [says(str(n)) for n in range(1000)])
    assert texts(store) == ["first", *map(str, range(1000))]
    assert numbers(store) == list(range(1, 1002))


def test_nothing_at_once(store: Store) -> None:
    """An append of no events writes none; but it does say if the lease is lost."""
    lease = store.acquire("s")
    store.append(lease, [])
    assert store.read("s") == []
    store.release(lease)
    with pytest.raises(LeaseLost):
        store.append(lease, [])


def test_reading_a_part(store: Store) -> None:
    """read() begins after a number, ends at a limit, and leaves out kinds; the limit counts what is returned."""
    lease = store.acquire("s")
    for n in range(5):
        store.append(lease, [says(str(n)), event(TurnStarted("m"))])
    assert [entry.seq for entry in store.read("s", 7)] == [8, 9, 10]
    assert [entry.seq for entry in store.read("s", 7, limit=2)] == [8, 9]
    assert store.read("s", limit=0) == []
    assert [entry.seq for entry in store.read("s", 3, limit=2, without=["text.delta"])] == [4, 6]
    assert store.read("s", without={"text.delta", "turn.started"}) == []
    assert len(store.read("s", -1)) == 10
    assert store.read("s", 10) == store.read("s", 1 << 70) == []
    assert store.read("nobody") == []


def test_the_inbox_follows_from_the_log(store: Store) -> None:
    """A message waits from its acceptance until it is applied or removed; it can be edited, held and released."""
    lease = store.acquire("s")
    came = [accepted(name) for name in "abcd"]
    store.append(lease, came)
    assert store.inbox("s") == [
        Waiting(name, "queue", UserMessage.of("hello"), accepted_at=entry.time)
        for name, entry in zip("abcd", came, strict=True)
    ]

    edit = event(MessageEdited("b", UserMessage.of("bye")))
    store.append(lease, [edit, event(MessageHeld("b")), event(MessageHeld("c"))])
    bye = Waiting("b", "queue", UserMessage.of("bye"), held=True, accepted_at=came[1].time)
    assert store.inbox("s")[1] == bye
    assert [(one.id, one.held) for one in store.inbox("s")] == [("a", False), ("b", True), ("c", True), ("d", False)]

    store.append(lease, [event(MessageReleased("c")), event(MessageApplied("a", "queue")), event(MessageRemoved("d"))])
    assert [(one.id, one.held) for one in store.inbox("s")] == [("b", True), ("c", False)]
    store.append(lease, [event(MessageEdited("b", UserMessage.of("again")))])
    assert store.inbox("s")[0].held
    assert store.inbox("s")[0].message.text == "again"


def test_what_is_no_longer_in_the_inbox_cannot_be_changed(store: Store) -> None:
    """An edit, a hold or a release of a message that was applied does not bring it back."""
    lease = store.acquire("s")
    store.append(lease, [accepted("a"), event(MessageApplied("a", "queue"))])
    edit = event(MessageEdited("a", UserMessage.of("x")))
    store.append(lease, [edit, event(MessageHeld("a")), event(MessageReleased("a"))])
    assert store.inbox("s") == store.inbox("nobody") == []


def test_inboxes_are_apart(store: Store) -> None:
    """The same id in two sessions is two messages."""
    for name in ("one", "two"):
        store.append(store.acquire(name), [accepted("a", name, name)])
    lease = store.acquire("three")
    store.append(lease, [accepted("a", session="three"), event(MessageApplied("a", "queue"), "three")])
    assert [one.message.text for name in ("one", "two", "three") for one in store.inbox(name)] == ["one", "two"]


def test_sessions_are_listed_latest_first(store: Store) -> None:
    """sessions() tells of each when it began and was last used, how long it is, and what waits in it."""
    for at, name in enumerate(["old", "new", "middle"]):
        store.append(store.acquire(name), [Event(0, 10.0 * at, name, "", accepted("m").data)])
    store.acquire("empty")
    found = {info.id: info for info in store.sessions()}
    assert list(found) == ["middle", "new", "old"]
    assert found["new"] == SessionInfo("new", created_at=10, updated_at=10, events=1, waiting=1)


def test_sessions_tells_the_first_and_the_last_event(store: Store) -> None:
    """A session was created with its first event, and used with its last."""
    lease = store.acquire("s")
    for at in (1.5, 2.5, 3.25):
        store.append(lease, [Event(0, at, "s", "", TextDelta("x"))])
    store.append(lease, [accepted("a"), accepted("b"), Event(0, 9.0, "s", "", MessageRemoved("a"))])
    (info,) = store.sessions()
    assert (info.created_at, info.updated_at, info.events, info.waiting) == (1.5, 9.0, 6, 1)


def test_a_session_has_one_owner(store: Store) -> None:
    """A session that is owned cannot be acquired; after the release it can, with a higher generation."""
    lease = store.acquire("s")
    with pytest.raises(SessionOwned, match="'s' is open already, in this process"):
        store.acquire("s")
    store.release(lease)
    assert store.acquire("s").generation > lease.generation
    store.acquire("another")


def test_an_old_lease_writes_nothing(store: Store) -> None:
    """After its session was released and acquired again, a lease cannot write, and cannot release the new one."""
    old = store.acquire("s")
    store.append(old, [says("a")])
    store.release(old)
    for entries in ([says("late")], [says("late"), accepted("m")]):
        with pytest.raises(LeaseLost, match="nothing was written"):
            store.append(old, entries)
    new = store.acquire("s")
    with pytest.raises(LeaseLost):
        store.append(old, [says("late")])
    store.release(old)
    store.append(new, [says("b")])
    assert texts(store) == ["a", "b"]
    assert store.inbox("s") == []


def test_an_erased_session_is_gone_and_its_name_is_free(store: Store) -> None:
    """erase() leaves neither log nor inbox, others keep theirs, and whoever begins again begins at number 1."""
    lease, other = store.acquire("s"), store.acquire("other")
    store.append(lease, [accepted("m1"), says("a")])
    store.append(other, [accepted("m1", session="other"), says("b", "other")])
    store.erase(lease)
    assert store.read("s") == []
    assert store.inbox("s") == []
    assert [info.id for info in store.sessions()] == ["other"]
    assert [waiting.id for waiting in store.inbox("other")] == ["m1"]
    store.append(lease, [says("again")])
    assert numbers(store) == [1]


def test_only_the_owner_can_erase(store: Store) -> None:
    """A lease that is not the newest any more erases nothing."""
    old = store.acquire("s")
    store.append(old, [accepted("m1")])
    store.release(old)
    store.acquire("s")
    with pytest.raises(LeaseLost):
        store.erase(old)
    assert numbers(store) == [1]
    assert len(store.inbox("s")) == 1


def test_a_lease_of_nobody(store: Store) -> None:
    """A lease for a session that was never acquired writes nothing, and its release does nothing."""
    with pytest.raises(LeaseLost):
        store.append(Lease("s", 1), [says("x")])
    store.release(Lease("s", 1))
    assert store.sessions() == []


def test_close_releases(store: Store) -> None:
    """close() ends all leases, and may be called twice; a release after it does nothing."""
    lease = store.acquire("s")
    store.close()
    store.close()
    store.release(lease)
    with pytest.raises(StoreError):
        store.append(lease, [says("late")])


def test_one_of_many_gets_the_session(store: Store) -> None:
    """Of threads that acquire a session together, exactly one succeeds, each time."""
    for _ in range(20):
        start, won = threading.Barrier(4), []

        def race() -> None:
            start.wait(10)
            with contextlib.suppress(SessionOwned):
                won.append(store.acquire("s"))

        _together([race] * 4)
        assert len(won) == 1
        store.release(won[0])


def test_threads_write_at_the_same_time(store: Store) -> None:
    """Threads that write to sessions of their own and to a shared one lose nothing, and every log is without gaps."""
    shared = store.acquire("shared")

    def write(name: str) -> None:
        own = store.acquire(name)
        for n in range(40):
            store.append(own, [says(str(n), name)])
            store.append(shared, [accepted(f"{name}{n}", session="shared"), says(f"{name}{n}", "shared")])
            assert numbers(store, name) == list(range(1, n + 2))

    _together([lambda name=name: write(name) for name in "abcdef"])
    for name in "abcdef":
        assert texts(store, name) == [str(n) for n in range(40)]
        assert [text for text in texts(store, "shared") if text[0] == name] == [f"{name}{n}" for n in range(40)]
    assert sorted(numbers(store, "shared")) == list(range(1, 6 * 80 + 1))
    assert len(store.inbox("shared")) == 6 * 40


def test_a_signal_handler_may_use_the_store(store: Store) -> None:
    """A handler that interrupts calls of the store appends to the same session and to another one, and reads: nothing
    waits for itself, and nothing is lost or written twice.
    """
    own, other = store.acquire("s"), store.acquire("other")
    calls = count(1)
    heard = 0

    def handler(number: int, frame: object) -> None:
        nonlocal heard
        if heard < 150:
            heard += 1
            store.append(own, [accepted(f"m{heard}"), says(f"handler {heard}")])
            store.append(other, [says(str(heard), "other")])
            assert len(texts(store, "other")) == heard
            signal.setitimer(signal.ITIMER_REAL, 0.00002 + next(calls) % 17 * 0.00001)

    before = signal.signal(signal.SIGALRM, handler)
    written = 0
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001)
        while heard < 150:
            written += 1
            store.append(own, [says(f"loop {written}")] * (written % 2) + [event(MessageHeld("x"))])
            store.read("s", max(0, 2 * written - 5))
            store.inbox("other")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    told = texts(store)
    assert [text for text in told if "loop" in text] == [f"loop {n}" for n in range(1, written + 1, 2)]
    assert [text for text in told if "handler" in text] == [f"handler {n}" for n in range(1, 151)]
    assert [one.id for one in store.inbox("s")] == [f"m{n}" for n in range(1, 151)]
    found = numbers(store)
    assert found == list(range(1, len(found) + 1))


def test_an_interruption_at_every_instruction_may_use_the_store(store: Store) -> None:
    """Whatever instruction of append() a handler comes after, what it appends is in the log and in the inbox when it
    looks, and the interrupted append is whole.
    """
    lease = store.acquire("s")
    for moment in count():
        seen: list[bool] = []

        def handler(moment: int = moment, seen: list[bool] = seen) -> None:
            mine = accepted(f"m{moment}")
            store.append(lease, [mine, says(f"handler {moment}")])
            seen.append(mine in store.read("s") and f"m{moment}" in [one.id for one in store.inbox("s")])

        pair = [says(f"first {moment}"), says(f"second {moment}")]
        with at_instruction(moment, handler):
            store.append(lease, pair)
        found = store.read("s")
        assert [entry.seq for entry in found] == list(range(1, len(found) + 1))
        assert pair[1].seq == pair[0].seq + 1
        assert found[pair[0].seq - 1 : pair[1].seq] == pair
        if not seen:
            break
        assert seen == [True]
    assert moment > 20


def test_an_exception_at_every_instruction_leaves_the_store_whole(store: Store) -> None:
    """Whatever instruction of append() a handler raises after, the events are all there or none is, and what comes next
    can be read: Ctrl-C must not leave a hole that hides the rest of the log.
    """
    lease = store.acquire("s")
    for moment in count():
        before = len(store.read("s"))
        try:
            with at_instruction(moment, interrupt):
                store.append(lease, [says("first"), says("second")])
            came = True
        except KeyboardInterrupt:
            came = False
        after = says("after")
        store.append(lease, [after])
        found = store.read("s")
        assert [entry.seq for entry in found] == list(range(1, len(found) + 1))
        assert len(found) - before - 1 in ({2} if came else {0, 2})
        assert found[-1] == after
        if came:
            break
    assert moment > 20


def test_an_exception_at_every_instruction_of_a_read(store: Store) -> None:
    """Whatever instruction of read() or inbox() a handler raises after, the store can be written and read; also while
    somebody keeps the exception, and with it what was being read.
    """
    kept: list[BaseException] = []
    store.append(store.acquire("s"), [accepted("a"), says("x")])
    lease = store.acquire("other")
    for read in (store.read, store.inbox):
        for moment in count():
            try:
                with at_instruction(moment, interrupt):
                    read("s")
                break
            except KeyboardInterrupt as error:
                kept.append(error)
                store.append(lease, [accepted(f"m{moment}", session="other")])
                store.append(lease, [says(f"after {moment}", "other")])
                assert texts(store, "other")[-1] == f"after {moment}"
        assert moment > 20


def interrupt() -> None:
    raise KeyboardInterrupt


@contextlib.contextmanager
def at_instruction(moment: int, act: Callable[[], None]) -> Iterator[None]:
    """Have *act* run once, where a signal's handler could: after so many instructions of the stores' own code."""
    left = moment

    def trace(frame: FrameType, what: str, arg: object) -> Any:
        nonlocal left
        if frame.f_globals.get("__name__", "").startswith("halter.stores."):
            frame.f_trace_opcodes = True
            if what == "opcode":
                left -= 1
                if left == -1:
                    act()
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces instructions only if some frame wants it already
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _together(work: list[Callable[[], object]]) -> None:
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
