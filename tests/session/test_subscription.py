"""Listeners: each at its own pace, and nobody slows anybody."""

from __future__ import annotations

import asyncio
import collections
import threading

import pytest

from halter.events import Event, MessageAccepted, MessageHeld, Missed, TurnFinished, TurnStarted
from halter.session.subscription import Subscription
from halter.testing import Gate
from tests.support.background import Background, RunningTurn
from tests.support.looped import looped
from tests.support.sessions import AT_MOST, kinds, session_of, wait_for


def drain(listener: Subscription) -> list[int]:
    """Take what there is, and give the numbers of all events that it stands for."""
    numbers: list[int] = []
    while (event := listener.get_nowait()) is not None:
        if isinstance(event.data, Missed):
            numbers += range(event.data.first, event.data.last + 1)
        else:
            numbers.append(event.seq)
    return numbers


def test_many_listeners_hear_everything_in_order() -> None:
    """Every listener hears of every event, from the moment from which it listens."""
    with session_of("one", "two") as session:
        listeners = [session.subscribe() for _ in range(20)]
        session.run("a")
        late = session.subscribe()
        before = len(session.events())
        session.run("b")
        everything = [event.seq for event in session.events()]
        for listener in listeners:
            assert drain(listener) == everything
        assert drain(late) == everything[before:]


def test_a_listener_may_want_some_kinds_only() -> None:
    """Of other kinds it hears nothing, and they take no place in its queue."""
    with session_of(["word "] * 50) as session:
        listener = session.subscribe(max_queued=2, only={TurnStarted, TurnFinished})
        session.run("x")
        heard = [listener.get(0), listener.get(0)]
        assert [event.kind for event in heard if event is not None] == ["turn.started", "turn.finished"]
        assert listener.get_nowait() is None


def test_a_listener_may_hear_while_it_is_written() -> None:
    """In the thread that writes, in one piece what is written in one piece; then nothing waits. The end is heard of."""
    heard: list[tuple[str, list[str]]] = []
    with session_of("one") as session:
        listener = session.subscribe(
            only={MessageAccepted, MessageHeld, TurnFinished},
            on_events=lambda events: heard.append((threading.current_thread().name, kinds(events))),
        )
        writer = threading.Thread(target=session.post, args=("a",), name="writer")
        writer.start()
        writer.join()
        session.post("b")
        session.stop()
        assert heard == [
            ("writer", ["message.accepted"]),
            ("MainThread", ["message.accepted"]),
            ("MainThread", ["message.held", "message.held"]),
        ]
        assert listener.get_nowait() is None
        listener.close()
        session.release()
        session.run()
        assert heard[3:] == [("MainThread", [])]  # the end, and nothing behind it


def test_a_function_that_fails_slows_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A subscriber's function that raises is logged; the turn and the other subscribers hear nothing of it."""

    def fail(_: object) -> None:
        raise ValueError("on purpose")

    with session_of("ok") as session:
        session.subscribe(on_events=fail)
        with session.subscribe() as listener:
            turn = RunningTurn(session, "x").end()
            assert turn.status == "done"
            assert wait_for(listener, "turn.finished").turn == turn.id
    assert "on purpose" in caplog.text


def test_a_slow_listener_is_told_what_it_missed() -> None:
    """A listener that is too far behind gets one event that names the gap, and the log has what is in it."""
    with session_of(["word "] * 50) as session:
        slow, quick = session.subscribe(max_queued=5), session.subscribe()
        session.run("x")
        log = session.events()
        assert drain(quick) == [event.seq for event in log]
        heard = []
        while (event := slow.get_nowait()) is not None:
            heard.append(event)
        assert [event.seq for event in heard[:5]] == [1, 2, 3, 4, 5]
        assert heard[5].kind == "subscription.missed"
        assert heard[5].data == Missed(6, log[-1].seq)
        assert len(heard) == 6
        missed = heard[5].data
        assert isinstance(missed, Missed)
        assert len(session.events(missed.first - 1)) == missed.last - missed.first + 1


def test_a_listener_that_catches_up_hears_on() -> None:
    """After a gap, what comes when there is room again is told as always."""
    with session_of() as session, session.subscribe(max_queued=2) as listener:
        for number in range(6):
            session.post(f"{number}")
        assert drain(listener) == [1, 2, 3, 4, 5, 6]
        session.post("more")
        event = listener.get_nowait()
        assert event is not None
        assert (event.seq, event.kind) == (7, "message.accepted")


def test_no_event_is_lost_to_a_reader_that_is_always_a_little_behind() -> None:
    """Events and gaps together cover the whole log, whatever the pace of the reader; some may be told twice."""
    with session_of() as session, session.subscribe(max_queued=3) as listener:
        covered: set[int] = set()

        def read() -> None:
            while (event := listener.get(AT_MOST)) is not None:
                if isinstance(event.data, Missed):
                    covered.update(range(event.data.first, event.data.last + 1))
                else:
                    covered.add(event.seq)

        reader = Background(read)
        for number in range(2000):
            session.post(f"{number}")
        session.close()
        reader.result()
        assert covered == set(range(1, 2001))


def test_a_listener_that_never_reads_slows_nobody() -> None:
    """A turn runs to its end although a listener with room for one event never takes any."""
    with session_of(["word "] * 1000) as session, session.subscribe(max_queued=1) as listener:
        assert session.run("x").status == "done"
        assert drain(listener) == [event.seq for event in session.events()]


def test_get_waits_for_the_next_event_with_a_bound() -> None:
    """get() gives None when its time is over, and an event as soon as there is one."""
    with session_of() as session, session.subscribe() as listener:
        assert listener.get(0.01) is None
        assert listener.get(0) is None
        waiting = Background(lambda: listener.get(AT_MOST))
        session.post("x")
        assert waiting.result().kind == "message.accepted"


def test_close_ends_a_listener_that_waits() -> None:
    """close() from another thread wakes who waits in get(), and nothing is heard any more."""
    with session_of() as session:
        listener = session.subscribe()
        waiting = Background(lambda: listener.get(AT_MOST))
        listener.close()
        assert waiting.result() is None
        session.post("x")
        assert listener.get(0) is None
        listener.close()  # again


def test_what_was_heard_before_the_end_can_still_be_read() -> None:
    """A listener that is ended gives what it has, and then None."""
    with session_of("ok") as session:
        listener = session.subscribe()
        session.run("x")
    assert len(drain(listener)) == len(session.events())
    assert listener.get(0) is None


@looped
async def test_async_listeners_in_several_loops() -> None:
    """Listeners in other loops and threads hear the same as the one in the turn's own loop, each to the end."""
    async with session_of(["a", "b", "c"]) as session:
        here, there = session.subscribe(), session.subscribe()

        async def collect(listener: Subscription) -> list[str]:
            return [event.kind async for event in listener]

        elsewhere = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(collect(there))))
        mine = asyncio.create_task(collect(here))
        await session.arun("x")
        await session.aclose()
        assert await mine == await elsewhere == kinds(session.events())


@looped
async def test_a_cancelled_reader_can_read_on() -> None:
    """A cancellation while it waits costs a listener nothing."""
    async with session_of() as session:
        with session.subscribe() as listener:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(listener), 0.01)
            session.post("x")
            assert (await asyncio.wait_for(anext(listener), AT_MOST)).kind == "message.accepted"


def test_leaving_a_listener_never_stops_a_turn() -> None:
    """A listener that closes in the middle of a turn leaves the turn alone."""
    gate = Gate()
    with session_of(["one ", gate, "two"]) as session:
        with session.subscribe() as listener:
            running = RunningTurn(session)
            wait_for(listener, "text.delta")
        gate.open()
        assert running.end().text == "one two"


def test_nothing_comes_twice_after_a_notice_of_what_was_missed() -> None:
    """Was a defect: what was written just as the queue became empty could be told of as missed, and come as well."""

    class Refilled(collections.deque[Event]):
        """A queue that the writer fills, and more than fills, just after the reader found it empty."""

        def __len__(self) -> int:
            count = super().__len__()
            if count == 0 and events:
                now, events[:] = events[:], []
                listener.put(now)
            return count

    with session_of("one") as session:
        session.run("x")
        events = session.events()[:3]
        listener = Subscription(lambda _: None, 0, max_queued=2)
        listener._events = Refilled()
        assert drain(listener) + drain(listener) == [1, 2, 3]
