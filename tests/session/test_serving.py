"""Turns as streams of events, and serve(): turn after turn as messages arrive."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from halter import CancellationToken, NothingToDo, SessionBusy
from halter.errors import LeaseLost, StoreError, StoreFull
from halter.events import Event, TurnFinished
from halter.models import ReasoningDelta, TextDelta
from halter.models.errors import ProviderError
from halter.session import background_loop
from halter.stores import Lease, MemoryStore, SQLiteStore
from halter.testing import Gate
from tests.support.background import Background
from tests.support.hooked_store import HookedStore, waiting_in
from tests.support.looped import looped
from tests.support.paused_writer import WriterPaused
from tests.support.sessions import agent_of, data_of, kinds, next_event, said, session_of
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Let threads take turns as often as they can, so that races are met."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@looped
async def test_stream_gives_the_events_of_one_turn() -> None:
    """stream() tells every event of its turn, from the acceptance of the text to the end."""
    async with session_of(["one ", "two"]) as session:
        told = [event async for event in session.stream("x")]
        assert told == session.events()
        assert kinds(told)[-1] == "turn.finished"
        assert session.turn is not None
        assert session.turn.text == "one two"


@looped
async def test_leaving_a_stream_stops_its_turn() -> None:
    """Whoever leaves stream() early stops the turn, and it is sealed when the generator is closed."""
    async with session_of(["one ", Gate()]) as session:
        async with contextlib.aclosing(session.stream("x")) as events:
            async for event in events:
                if event.kind == "text.delta":
                    break
        assert session.turn is not None
        assert (session.turn.status, session.turn.reason, session.turn.text) == ("interrupted", "disconnect", "one ")
        assert not session.is_running
        judge_session(session)


@looped
async def test_a_cancelled_reader_of_a_stream_seals_the_turn() -> None:
    """A foreign cancellation of the task that reads a stream comes out of it, after the turn was sealed."""
    gate = Gate()
    async with session_of(["one ", gate]) as session:

        async def read() -> None:
            async for _ in session.stream("x"):
                pass

        task = asyncio.create_task(read())
        await gate.await_reached()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.turn is not None
        assert session.turn.status == "interrupted"
        assert kinds(session.events())[-1] == "turn.finished"


@looped
async def test_stream_raises_what_arun_would() -> None:
    """stream() of an idle session with an empty inbox has nothing to do, and says so."""
    async with session_of() as session:
        with pytest.raises(NothingToDo):
            async for _ in session.stream():
                pass
        with pytest.raises(NothingToDo):  # and it can be used again
            await session.arun()


@looped
async def test_the_error_of_a_stream_that_is_left_is_never_logged_as_not_retrieved() -> None:
    """Whoever is cancelled just as the turn could not begin leaves no error behind of which asyncio would complain."""
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    for steps in range(8):
        async with session_of() as session:
            reading = asyncio.ensure_future(anext(session.stream()))
            for _ in range(steps):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.wait([reading])
            assert reading.cancelled() or isinstance(reading.exception(), NothingToDo)
            del reading
        gc.collect()
    assert complaints == []


@looped
async def test_a_slow_reader_of_a_stream_gets_every_event() -> None:
    """A reader that is far behind is given from the log what its queue could not hold."""
    words = [TextDelta("word "), ReasoningDelta("thought ")] * 6_000  # of two kinds: else many are written as one
    async with session_of(words) as session:  # in one iteration of the loop, more than a queue holds
        told = [event async for event in session.stream("x")]
        assert [event.seq for event in told] == list(range(1, len(session.events()) + 1))
        assert len(told) > 12_000


@looped
async def test_a_cancellation_while_a_stream_is_being_left_is_not_eaten() -> None:
    """Whoever cancels the reader of a stream just as it leaves is heard: after the turn is sealed, and not never."""
    gate = Gate()
    session = agent_of(["one ", gate]).session()

    async def read() -> None:
        events = session.stream("x")
        async for event in events:
            if event.kind == "text.delta":
                break
        reader = asyncio.current_task()
        assert reader is not None
        asyncio.get_running_loop().call_soon(reader.cancel)  # it comes in the middle of aclose()
        await events.aclose()
        left.append(1)

    left: list[int] = []
    task = asyncio.ensure_future(read())
    await asyncio.wait([task])
    assert task.cancelled()
    assert not left
    assert session.turn is not None
    assert session.turn.status == "interrupted"
    await session.aclose()


@looped
async def test_a_served_session_is_busy() -> None:
    """While a session is served, even idle, run() is refused, for it would fight over the messages."""
    async with session_of("ok") as session:
        serving = asyncio.create_task(session.serve())
        await asyncio.sleep(0)
        with pytest.raises(SessionBusy):
            await session.arun("x")
        session.close()
        await serving


@looped
async def test_serve_answers_message_after_message_until_it_is_closed() -> None:
    """serve() starts a turn as soon as a message comes, from any thread, and returns at close()."""
    session = session_of("one", "two", "three")
    listener = session.subscribe()
    serving = asyncio.create_task(session.serve())
    for number, text in enumerate(["a", "b", "c"]):
        await asyncio.to_thread(session.post, text)
        await next_event(listener, "turn.finished")
        assert session.turn is not None
        assert session.turn.text == ["one", "two", "three"][number]
    await session.aclose()
    await serving
    assert said(session.history) == ["a", "b", "c"]


@looped
async def test_serve_starts_the_next_turn_with_what_interrupted_this_one() -> None:
    """An interrupt with a text stops the turn that is served, and the text starts the next one at once."""
    gate = Gate()
    async with session_of(["one", gate], "two") as session:
        listener = session.subscribe()
        serving = asyncio.create_task(session.serve())
        session.post("a")
        await gate.await_reached()
        receipt = session.interrupt("b")
        assert receipt.stopped
        assert receipt.mode == "interrupt"
        await next_event(listener, "turn.finished")
        await next_event(listener, "turn.finished")
        assert session.turn is not None
        assert (session.turn.text, session.turn.status) == ("two", "done")
        assert receipt.state == "applied"
        assert receipt.turn_id == session.turn.id
        session.close()
        await serving


@looped
async def test_serve_waits_after_a_stop_and_goes_on_at_release() -> None:
    """What a stop holds does not start the next turn of serve(); release() does."""
    gate = Gate()
    async with session_of(["one", gate], "two") as session:
        listener = session.subscribe()
        serving = asyncio.create_task(session.serve())
        session.post("a")
        await gate.await_reached()
        queued = session.queue("b")
        session.stop()
        await next_event(listener, "turn.finished")
        for _ in range(20):  # of the loop's turns
            await asyncio.sleep(0)
        assert not session.is_running
        assert [letter.state for letter in session.inbox] == ["held"]
        session.release()
        await next_event(listener, "turn.finished")
        assert queued.state == "applied"
        session.close()
        await serving


@looped
async def test_serve_goes_on_after_a_turn_that_failed() -> None:
    """An error of the model ends the turn, not the serving."""
    async with session_of(ProviderError("no", status=400), "two") as session:
        listener = session.subscribe()
        serving = asyncio.create_task(session.serve())
        session.post("a")
        await next_event(listener, "turn.finished")
        session.post("b")
        await next_event(listener, "turn.finished")
        assert session.turn is not None
        assert session.turn.status == "done"
        session.close()
        await serving


@looped
async def test_serve_can_be_cancelled_from_outside() -> None:
    """A foreign cancellation ends serve(), idle or not; the turn is sealed, and the session can be used again."""
    gate = Gate()
    async with session_of(["one", gate], "two") as session:
        serving = asyncio.create_task(session.serve())
        session.post("a")
        await gate.await_reached()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert session.turn is not None
        assert (session.turn.status, session.turn.reason) == ("interrupted", "external")
        idle = asyncio.create_task(session.serve())
        await asyncio.sleep(0)
        idle.cancel()
        with pytest.raises(asyncio.CancelledError):
            await idle
        assert (await session.arun("b")).status == "done"


@looped
async def test_serve_survives_that_a_message_is_taken_away_under_its_hands(quick_switches: None) -> None:
    """Messages that are removed just as serve() looks at them neither end it nor start a turn by themselves."""
    gate = Gate()
    async with session_of(["half ", gate], *["ok"] * 2000) as session:
        serving = asyncio.create_task(session.serve())
        session.post("a")
        await gate.await_reached()
        session.interrupt()  # from now on there is a broken-off turn that could be gone on with

        def tease() -> None:
            for _ in range(1000):
                session.inbox.remove(session.post("b").id)

        await asyncio.to_thread(tease)
        assert not serving.done()
        started = data_of(session, "turn.started")
        assert not any(each.continues for each in started)
        assert len(started) == 1 + len(data_of(session, "message.applied")) - 1
        session.close()
        await serving


@looped
async def test_serve_survives_a_store_that_fails_for_a_moment() -> None:
    """A turn that could not begin because the store failed is tried again, and serve() goes on."""
    store = HookedStore()
    async with agent_of("one", "two").session("s", store) as session:
        with session.subscribe() as listener:
            serving = asyncio.create_task(session.serve())
            failures: list[str] = []

            def fail_twice(written: list[str]) -> None:
                if "turn.started" in written and len(failures) < 2:
                    failures.append("full")
                    raise StoreFull("full for a moment")

            store.before = fail_twice
            receipt = session.post("a")
            await next_event(listener, "turn.finished")
            assert (failures, receipt.state) == (["full", "full"], "applied")
            session.post("b")
            await next_event(listener, "turn.finished")
        assert said(session.history) == ["a", "b"]
        judge_session(session)
        session.close()
        await serving


@looped
async def test_serve_that_waits_for_its_store_can_be_closed() -> None:
    """close() does not wait until serve() tries its store again, and neither does a cancellation."""
    store = HookedStore()
    for how in ("close", "cancel"):
        session = agent_of("never").session(how, store)
        failed = asyncio.Event()

        def fail(written: list[str], failed: asyncio.Event = failed) -> None:
            if "turn.started" in written:
                failed.set()
                raise StoreFull("full")

        store.before = fail
        serving = asyncio.create_task(session.serve())
        session.post("a")
        await failed.wait()
        if how == "close":
            await session.aclose()
            await serving
        else:
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            await session.aclose()
        assert waiting_in(store, how)


@looped
async def test_serve_ends_when_another_has_taken_the_session() -> None:
    """A lease that was lost is no passing failure: serve() raises, and does not try for ever."""
    store = HookedStore()
    session = agent_of("never").session("s", store)
    serving = asyncio.create_task(session.serve())
    session.post("a")
    store.release(session._log.lease)
    with pytest.raises(LeaseLost):
        await serving
    await session.aclose()


class ExpiringStore(MemoryStore):
    """A store that finds out by itself that it has lost its sessions."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = CancellationToken()

    def expiry(self, lease: Lease) -> CancellationToken:
        return self.lost


@looped
async def test_serve_says_that_the_store_has_lost_the_session() -> None:
    """Was a defect: serve() returned as if the session had been closed when the node had lost its connection."""
    store = ExpiringStore()
    async with agent_of("one").session("s", store) as session:
        listener = session.subscribe()
        serving = asyncio.create_task(session.serve())
        session.post("a")
        await next_event(listener, "turn.finished")
        store.lost.cancel("lease_lost")
        with pytest.raises(LeaseLost):
            await serving


def test_stream_sync_gives_the_events_of_one_turn_to_a_thread() -> None:
    """A program without an event loop reads the same events, one after the other."""
    with session_of(["one ", "two"]) as session:
        told = list(session.stream_sync("x"))
        assert told == session.events()
        assert session.text == "one two"
        with pytest.raises(NothingToDo):
            list(session.stream_sync())


def test_leaving_stream_sync_stops_its_turn() -> None:
    """A `break` in a plain `for` loop stops the turn, which is sealed when the generator is closed."""
    with session_of(["one ", Gate()], "next") as session:
        events = session.stream_sync("x")
        for event in events:
            if event.kind == "text.delta":
                break
        with pytest.raises(SessionBusy):
            session.run("too early")
        events.close()
        assert session.turn is not None
        assert (session.turn.status, session.turn.reason, session.turn.text) == ("interrupted", "disconnect", "one ")
        assert session.run("y").text == "next"
        judge_session(session)


def _waiting_in() -> FrameType | None:
    """The call of `background_loop.run()` in which the main thread waits."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and frame.f_code is not background_loop.run.__code__:
        frame = frame.f_back
    return frame


def test_ctrl_c_in_stream_sync_waits_for_the_end_of_its_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Was a defect: with a busy store, Ctrl+C became a RuntimeError about asyncio, and the session stayed busy."""
    monkeypatch.setattr(background_loop, "_SECONDS_TO_STOP", 0.0)
    gate = Gate()
    with SQLiteStore(tmp_path / "store.db") as store, agent_of(["one ", gate], "next").session("s", store) as session:
        left = threading.Event()

        def press() -> None:
            gate.wait_reached()
            with WriterPaused(session):
                wait_until(lambda: "WakeSignal" in sys._current_frames()[main].f_code.co_qualname)
                step = _waiting_in()
                signal.pthread_kill(main, signal.SIGINT)
                wait_until(lambda: _waiting_in() not in (None, step) or left.is_set())

        main = threading.main_thread().ident or 0
        pressing = Background(press)
        try:
            with pytest.raises(KeyboardInterrupt):
                list(session.stream_sync("x"))
        finally:
            left.set()
            pressing.result()
        assert session.turn is not None
        assert (session.turn.status, session.turn.reason) == ("interrupted", "interrupt")
        assert session.run("y").text == "next"


def test_a_token_stops_stream_sync() -> None:
    """The turn belongs to the token of the code that reads: its deadline ends the loop, and the turn says why."""
    token = CancellationToken()
    with session_of(["one ", Gate()]) as session, token.bind():
        for event in session.stream_sync("x"):
            if event.kind == "text.delta":
                token.cancel("deadline of the job")
        assert session.turn is not None
        assert (session.turn.status, session.turn.reason) == ("interrupted", "deadline of the job")


def test_without_asyncio_the_error_names_the_other_way() -> None:
    """Under trio the error was "no running event loop", which says nothing about what to do."""
    with session_of("x") as session:
        coroutine = session.arun("hello")
        with pytest.raises(RuntimeError, match=r"trio\.to_thread\.run_sync\(session\.run"):
            coroutine.send(None)
        assert not session.inbox
        assert session.run("hello").status == "done"


@looped
async def test_a_message_whose_write_seemed_to_fail_is_applied_once() -> None:
    """The store had written it, and only its answer was lost: sent again, it is found, told of, and starts its turn."""
    store = HookedStore()
    session = agent_of("An answer.").session("s", store)
    serving = asyncio.create_task(session.serve())

    def lose_answer() -> None:
        raise StoreError("no answer")

    store.once("message.accepted", lose_answer)
    with session.subscribe() as subscription:
        with pytest.raises(StoreError, match="no answer"):
            await session.apost("Hello.", id="m1")
        receipt = await session.apost("Hello.", id="m1")
        seen = []
        async for event in subscription:
            seen.append(event.kind)
            if event.kind == "turn.finished":
                break
    assert seen.count("message.accepted") == 1
    assert receipt.state == "applied"
    await session.aclose()
    await serving


@looped
async def test_events_found_after_a_lost_answer_are_told_of_though_reading_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store failed again while the session was loaded again: subscribers never heard of what had been written."""
    store = HookedStore()
    session = agent_of("An answer.").session("s", store)

    def lose_answer() -> None:
        raise StoreError("no answer")

    store.once("message.accepted", lose_answer)
    with session.subscribe() as subscription:
        with pytest.raises(StoreError, match="no answer"):
            await session.apost("Hello.", id="m1")
        with monkeypatch.context() as patch:
            reads = []

            def read(*arguments: Any, **options: Any) -> list[Event]:
                reads.append(arguments)
                if len(reads) == 3:  # the two before are those that load the state
                    raise StoreError("cannot be read")
                return MemoryStore.read(store, *arguments, **options)

            patch.setattr(store, "read", read)
            with pytest.raises(StoreError, match="cannot be read"):
                await session.apost("Hello.", id="m1")
        await session.apost("Hello.", id="m1")
        assert [message.id for message in session.inbox] == ["m1"]
        await session.aclose()
        assert "message.accepted" in [event.kind async for event in subscription]


@looped
async def test_a_turn_whose_end_could_not_be_written_is_sealed_when_the_store_is_back() -> None:
    """Who followed the session saw a turn that ran on, until the next message came or the session was unloaded."""
    store = HookedStore()
    session = agent_of("An answer.").session("s", store)
    failures = iter([StoreError("no answer"), StoreError("no answer")])

    def fail(written: list[str]) -> None:
        if "turn.finished" in written and (error := next(failures, None)) is not None:
            raise error

    store.before = fail
    serving = asyncio.create_task(session.serve())
    with session.subscribe() as subscription:
        await session.apost("Hello.", id="m1")
        async for event in subscription:
            if isinstance(event.data, TurnFinished):
                assert (event.data.status, event.data.reason) == ("interrupted", "crash")
                break
    assert next(failures, None) is None
    assert not session.inbox
    await session.aclose()
    await serving


@looped
async def test_a_receipt_names_no_turn_that_never_began(tmp_path: Path) -> None:
    """A second stop met a turn whose messages the first one held before it could begin: clients looked for its id."""
    with SQLiteStore(tmp_path / "sessions.db") as store:
        session = agent_of("Never said.").session("s", store)
        await session.apost("Hello.", id="m1")
        with WriterPaused(session):
            first = asyncio.create_task(session.astop())
            await asyncio.sleep(0)
            serving = asyncio.create_task(session.serve())
            while session._log.control is None:  # noqa: ASYNC110  (set by serve(), which tells nobody)
                await asyncio.sleep(0)
            turn = session._log.control.turn
            second = session.astop()
        assert not (await first).stopped
        receipt = await second
        await turn.ended.wait_async()
        assert receipt.stopped
        assert receipt.turn_id == ""
        assert "turn.started" not in kinds(session.events())
        assert [each.state for each in session.inbox] == ["held"]
        await session.aclose()
        await serving
