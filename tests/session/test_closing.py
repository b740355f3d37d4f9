"""The end of sessions, and stores that fail."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halter import SessionClosed, ToolContext, tool
from halter.cancel import abandoned
from halter.errors import SessionOwned, StoreFull
from halter.stores import MemoryStore, Store
from halter.testing import Gate
from tests.support.background import Background, RunningTurn
from tests.support.hooked_store import HookedStore
from tests.support.looped import looped
from tests.support.sessions import AT_MOST, agent_of, call, data_of, said, session_of
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until


@tool
def look() -> str:
    """Look."""
    return "seen"


class Kept:
    """Something that a tool keeps in the session."""

    closed = 0

    def close(self) -> None:
        type(self).closed += 1


@tool
async def keeps(ctx: ToolContext) -> str:
    """Keep something."""
    ctx.keep(Kept)
    return "kept"


class SlowEnd:
    """A tool that keeps something, and takes its time to end when it is stopped."""

    def __init__(self) -> None:
        self.started, self.stopped, self.may_end = threading.Event(), threading.Event(), threading.Event()

    def tool(self) -> Any:
        @tool(grace=AT_MOST)
        async def work(ctx: ToolContext) -> str:
            ctx.keep(Kept)
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()
                await asyncio.to_thread(self.may_end.wait, AT_MOST)
            return "never"

        return work


# -- closing -------------------------------------------------------------------------------------------------------


def test_close_stops_the_turn_and_refuses_what_comes_later() -> None:
    """close() stops the running turn for a shutdown, seals it, and everything after it says how to open it again."""
    gate = Gate()
    store = MemoryStore()
    agent = agent_of(["one", gate], "two")
    session = agent.session("s", store)
    running = RunningTurn(session)
    gate.wait_reached()
    session.post("later")
    session.close()
    assert (running.end().status, running.end().reason) == ("interrupted", "shutdown")
    for refused in (lambda: session.post("x"), lambda: session.run("x"), session.release, session.rollback):
        with pytest.raises(SessionClosed, match="open it again"):
            refused()
    session.close()  # again
    assert not session.stop().stopped
    with agent.session("s", store) as again:
        assert [letter.text for letter in again.inbox] == ["later"]
        assert again.run().text == "two"


def test_close_is_bounded_by_its_timeout() -> None:
    """A turn whose loop is blocked does not keep close(): it is sealed without it, and what it says then is dropped."""
    blocked, go = threading.Event(), threading.Event()

    @tool
    async def block() -> str:
        blocked.set()
        go.wait(AT_MOST)  # blocks the whole loop
        return "x"

    store = MemoryStore()
    agent = agent_of(call("block"), "more", tools=[block])
    session = agent.session("s", store)
    running = Background(lambda: asyncio.run(session.arun("x")))
    assert blocked.wait(AT_MOST)
    session.close(timeout=0.05)
    with agent.session("s", store) as again:
        assert again.turn is not None
        assert again.turn.status == "interrupted"
        written = len(again.events())
        go.set()
        assert running.result().status == "interrupted"
        assert len(again.events()) == written
        judge_session(again)


@looped
async def test_close_in_the_turns_own_loop_does_not_wait() -> None:
    """close() in the loop that runs the turn returns at once; the lease is given back when the turn has ended."""
    gate = Gate()
    store = MemoryStore()
    agent = agent_of(["one", gate])
    session = agent.session("s", store)
    task = asyncio.create_task(session.arun("x"))
    await gate.await_reached()
    session.close()
    with pytest.raises(SessionOwned, match="already open"):
        agent.session("s", store)
    assert (await task).reason == "shutdown"
    agent.session("s", store).close()


@looped
async def test_aclose_waits_for_the_end_of_the_turn() -> None:
    """aclose() in the turn's own loop comes back when the turn is sealed and the session is free."""
    gate = Gate()
    store = MemoryStore()
    agent = agent_of(["one", gate])
    session = agent.session("s", store)
    task = asyncio.create_task(session.arun("x"))
    await gate.await_reached()
    await session.aclose()
    assert (await task).reason == "shutdown"
    agent.session("s", store).close()


@looped
async def test_a_tool_may_close_its_own_session() -> None:
    """A tool that awaits aclose() of the session it runs in is stopped like all others, and nothing waits in a ring."""
    closed = asyncio.Event()

    @tool
    async def leave() -> str:
        closed.set()
        await session.aclose()
        return "left"

    session = session_of(call("leave"), tools=[leave])
    turn = await session.arun("x")
    assert (turn.status, turn.reason) == ("interrupted", "shutdown")


@looped
async def test_a_cancelled_aclose_closes_the_rest_without_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Was a defect: who cancelled aclose() while it waited for the turn kept the lease, the browser and the jobs."""
    monkeypatch.setattr(Kept, "closed", 0)
    slow = SlowEnd()
    agent = agent_of(call("work"), "two", tools=[slow.tool()])
    session = agent.session("s", store)
    turn = asyncio.create_task(session.arun("x"))
    await asyncio.to_thread(slow.started.wait, AT_MOST)
    closing = asyncio.create_task(session.aclose(AT_MOST))
    await asyncio.to_thread(slow.stopped.wait, AT_MOST)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.to_thread(wait_until, lambda: Kept.closed == 1)
    assert not turn.done()
    slow.may_end.set()
    assert (await turn).reason == "shutdown"
    async with agent.session("s", store) as again:  # the lease was released with the end of the turn
        judge_session(again)


def test_ctrl_c_in_close_closes_the_rest_without_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Was a defect: after Ctrl+C in a close() that waited for the turn, the session could not be opened again."""
    monkeypatch.setattr(Kept, "closed", 0)
    slow = SlowEnd()
    agent = agent_of(call("work"), "two", tools=[slow.tool()])
    session = agent.session("s", store)
    running = RunningTurn(session)
    assert slow.started.wait(AT_MOST)
    main = threading.main_thread().ident or 0

    def press() -> None:
        assert slow.stopped.wait(AT_MOST)
        wait_until(lambda: "WakeSignal" in sys._current_frames()[main].f_code.co_qualname)
        signal.pthread_kill(main, signal.SIGINT)

    pressing = Background(press)
    with pytest.raises(KeyboardInterrupt):
        session.close(AT_MOST)
    pressing.result()
    wait_until(lambda: Kept.closed == 1)
    slow.may_end.set()
    assert running.end().reason == "shutdown"
    agent.session("s", store).close()


def test_an_idle_session_that_is_closed_ends_its_listeners() -> None:
    """Listeners end with their session."""
    session = session_of()
    listener = session.subscribe()
    session.close()
    assert listener.get(AT_MOST) is None


def test_a_session_that_was_dropped_can_be_opened_again() -> None:
    """A session that nobody closed gives its lease back when it is collected."""
    store = MemoryStore()
    agent = agent_of("one", "two")
    agent.session("s", store).run("x")
    gc.collect()
    with agent.session("s", store) as session:
        assert session.turn is not None
        assert session.turn.text == "one"
        assert session.run("y").text == "two"


# -- a store that fails --------------------------------------------------------------------------------------------


def test_a_message_that_could_not_be_written_was_not_accepted() -> None:
    """post() to a full store raises, and the message is neither in the inbox nor known by its id."""
    store = HookedStore()
    with agent_of("one").session(store=store) as session:
        store.fill_up("message.accepted")
        with pytest.raises(StoreFull):
            session.post("x", id="m")
        assert len(session.inbox) == 0
        store.empty()
        receipt = session.post("y", id="m")
        assert receipt.state == "accepted"
        assert session.run().status == "done"
        assert said(session.history) == ["y"]


@pytest.mark.parametrize("kind", ["request.started", "text.delta", "request.finished", "tool.finished"])
def test_a_store_that_fills_up_fails_the_turn_and_harms_nothing_else(kind: str) -> None:
    """A turn whose store is full fails with that error; when there is space again, the next goes on from the log."""
    store = HookedStore()
    with agent_of(["I look. ", call("look")], *["done"] * 3, tools=[look]).session(store=store) as session:
        store.fill_up(kind)
        turn = session.run("x")
        assert turn.status == "failed"
        assert isinstance(turn.error, StoreFull)
        assert not session.is_running
        judge_session(session)
        store.empty()
        assert session.run("y").text == "done"
        assert [text.splitlines()[-1] for text in said(session.history)] == ["x", "y"]
        judge_session(session)


def test_a_stop_works_with_a_store_that_is_full() -> None:
    """stop() of a turn whose store can not be written any more stops it all the same."""
    store = HookedStore()
    gate = Gate()
    with agent_of(["one", gate], "two").session(store=store) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        queued = session.post("later")
        store.fill_up("message.held")
        store.fill_up("turn.stopping")
        receipt = session.stop()
        assert receipt.stopped
        assert running.end().status == "failed"
        assert not session.is_running
        store.empty()
        assert queued.state in ("held", "accepted")
        session.release()
        assert session.run().text == "two"


@pytest.mark.parametrize("kind", ["plain", "finish", "coroutine", "generator"])
def test_a_call_whose_start_cannot_be_written_does_not_start(kind: str, tmp_path: Path) -> None:
    """With a full store nothing is done that nobody would know of: the call is not run, and told of as not started."""
    effect = tmp_path / "effect"

    @tool
    def plain() -> None:
        effect.touch()

    @tool(on_steer="finish")
    def finish() -> None:
        effect.touch()

    @tool
    async def coroutine() -> None:
        effect.touch()

    @tool
    def generator() -> Iterator[str]:
        effect.touch()
        yield "x"

    store = HookedStore()
    agent = agent_of(call(kind), "done", tools=[plain, finish, coroutine, generator])
    with agent.session(store=store) as session:
        store.fill_up("tool.started")
        turn = session.run("x")
        assert turn.status == "failed"
        assert isinstance(turn.error, StoreFull)
        assert not effect.exists()
        store.empty()
        assert session.run("y").text == "done"
        assert [each.outcome.status for each in data_of(session, "tool.finished")] == ["not_started"]
        judge_session(session)


def test_close_at_the_limit_of_abandoned_threads(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many threads are stuck elsewhere: close() raises nothing, closes what was kept, and frees the session."""
    monkeypatch.setattr(Kept, "closed", 0)
    agent = agent_of(call("keeps"), "done", tools=[keeps])
    session = agent.session("one", store)
    assert session.run("go").status == "done"
    monkeypatch.setattr(abandoned, "limit", 0)
    session.close()
    assert Kept.closed == 1
    agent.session("one", store).close()


def test_a_closed_session_says_that_it_is_closed(store: Store) -> None:
    """Every method of a closed session raises SessionClosed, with the cure, and not that a lease was lost."""
    session = agent_of("never").session("s", store)
    receipt = session.queue("x")
    session.close()
    calls: list[Callable[[], object]] = [
        lambda: session.queue("y"),
        lambda: session.steer("y"),
        lambda: session.interrupt("y"),
        lambda: session.inbox.remove(receipt.id),
        lambda: session.inbox.edit(receipt.id, "z"),
        lambda: session.prepared(receipt.id, "z"),
        session.release,
        session.rollback,
        lambda: session.answer("q", 1),
        lambda: session.run("z"),
    ]
    for each in calls:
        with pytest.raises(SessionClosed, match="open it again"):
            each()
    stop = session.stop()  # there is nothing to stop, and that is no error
    assert not stop.stopped
    assert "closed" in stop.note
    assert receipt.state == "accepted"  # it waits in the store
    with agent_of("answer").session("s", store) as again:
        assert [each.text for each in again.inbox] == ["x"]
