"""Every law during a compaction: stopped, steered, taken back or killed at any point of it, nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from halter import Agent, CancellationToken, Session, tool
from halter.events import Event
from halter.session.log import SessionSnapshot, SessionState
from halter.stores import MemoryStore
from halter.stores.base import Write
from halter.testing import interrupt_everywhere
from tests.support.sessions import kinds, said
from tests.support.stopped_turn import check_log, check_messages, nothing_is_left
from tests.support.valid_history import judge
from tests.support.windowed_model import WindowedModel

WINDOW = 2048
TASK = "look once more"
STEER = "and mind the gap"
# What a compaction consists of; the request for the summary is stopped at each of its own points by its own tests.
PARTS = (
    "session/compaction/compactor.py",
    "session/compaction/between_turns.py",
    "in TurnRunner._ask_with_room",
    "in TurnWriter.write_compaction",
)


@tool
def look(number: int) -> str:
    """Look at something long."""
    return f"thing {number}: " + "all kinds of words that somebody has to read. " * 60


def agent() -> Agent:
    return Agent(WindowedModel(WINDOW, context_window=WINDOW, calls=100), tools=[look])


def make_events() -> list[Event]:
    """The log of a session whose next request would fill the window."""
    with Agent(WindowedModel(100_000), tools=[look]).session("tried") as session:
        session.run("fact-1 is green")
        for _ in range(2):
            session.run("look")
        return session.events()


EVENTS = make_events()


def store_with(events: list[Event]) -> MemoryStore:
    store = MemoryStore()
    lease = store.acquire("tried")
    store.commit([Write(lease, events, 0)])
    store.release(lease)
    return store


STOPS: dict[str, Callable[[Session], object]] = {
    "stop": lambda session: session.stop(),
    "steer": lambda session: session.steer(STEER),
    "interrupt": lambda session: session.interrupt(STEER),
    "rollback": lambda session: session.rollback(),
}


def is_tried(place: str) -> bool:
    return any(part in place for part in PARTS)


@pytest.mark.parametrize("name", STOPS)
def test_a_compaction_in_a_turn_loses_nothing(name: str) -> None:
    """At any point: the history is the old one or the compacted one, valid, and the first turn's fact is known."""
    compacted = set()

    async def scenario(token: CancellationToken) -> None:
        store = store_with(EVENTS)
        dead: list[list[Event]] = []
        session = agent().session("tried", store)
        before = session.history

        def stop() -> None:
            dead.append(store.read("tried"))
            STOPS[name](session)

        registration = token.on_cancel(stop)
        turn = await session.arun(TASK)
        registration()
        session.release()  # a command behind a rollback, which could not wait inside the writer's own work
        assert turn.status in ("done", "interrupted"), (turn, turn.error)
        compacted.add("context.compacted" in kinds(session.events()[len(EVENTS) :]))
        await judge_session(session, before)
        await session.aclose()
        if dead and name == "stop":
            await judge_the_dead(dead[0], before)

    report = interrupt_everywhere(scenario, check=nothing_is_left, repeat=1, only=is_tried)
    assert len(report.points) > 70
    assert len(report.missed) < len(report.points) / 10
    assert compacted == ({True} if name == "steer" else {True, False})


@pytest.mark.parametrize("name", ["stop", "rollback"])
def test_compact_loses_nothing(name: str) -> None:
    """The same between turns: compact() is done, or nothing has changed."""
    compacted = set()

    async def scenario(token: CancellationToken) -> None:
        session = agent().session("tried", store_with(EVENTS))
        before = session.history
        registration = token.on_cancel(lambda: STOPS[name](session))
        record = await session.acompact()
        registration()
        session.release()
        events = kinds(session.events()[len(EVENTS) :])
        assert (record is not None) == ("context.compacted" in events)
        compacted.add(record is not None)
        await judge_session(session, before)
        await session.aclose()

    report = interrupt_everywhere(scenario, check=nothing_is_left, repeat=1, only=is_tried)
    assert len(report.points) > 50
    assert compacted == {True, False}


def test_a_foreign_cancellation_of_a_compaction_loses_nothing() -> None:
    """Asyncio's own cancel() at any point of a turn that compacts, as wait_for() does it."""

    async def scenario(token: CancellationToken) -> None:
        session = agent().session("tried", store_with(EVENTS))
        before = session.history
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(session.arun(TASK))
        with token.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel)):
            await asyncio.wait([task])
        await judge_session(session, before)
        await session.aclose()

    assert len(interrupt_everywhere(scenario, check=nothing_is_left, repeat=1, only=is_tried).points) > 70


async def judge_session(session: Session, before: list[Any]) -> None:
    """The log is sound, the history follows from it and is valid, and the next turn knows the first one's fact."""
    events = check_messages(session)
    judge(session.history)
    check_log(events)
    state = SessionState()
    for event in events:
        state.apply(event)
    assert SessionSnapshot(state).history.messages == session.history
    new = kinds(events[len(EVENTS) :])
    if "context.compacted" not in new and "turn.rolled_back" not in new:
        assert session.history[: len(before)] == before
    if "turn.rolled_back" not in new and TASK in str(events[len(EVENTS) :]):
        assert any(text.endswith(TASK) for text in said(session.history))
    turn = await session.arun("what do you know?")
    assert turn.status == "done", (turn, turn.error)
    assert "fact-1 is green" in turn.text


async def judge_the_dead(events: list[Event], before: list[Any]) -> None:
    """Go on with what the store had at the instant of the stop, as after kill -9."""
    session = agent().session("tried", store_with(events))
    await judge_session(session, before)
    await session.aclose()
