"""All the laws, for sessions that write together: stopped in every way, at every point of what they do together."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from halter import Agent, CancellationToken, Receipt, Session, SessionClosed, Turn
from halter.models import Finished, ModelEvent, ModelRequest
from halter.stores import SQLiteStore, Write
from halter.testing import interrupt_everywhere
from tests.support.stopped_turn import Obedient, check_log, check_messages, nothing_is_left
from tests.support.turn_scenarios import EVERY_POINT
from tests.support.valid_history import judge as check_history

COUNT = 3
# Where they meet; what leads there is tried, too, if every point is. The rest knows nothing of others.
MEETING = ("halter/stores/writer", "halter/stores/batch", "halter/stores/drain_claim")
LEADING = ("halter/session/", "halter/stores/", "loop step, resuming")


class Silent(Obedient):
    """A model that answers a greeting with silence: what such sessions write together first is their ends."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        if request.messages[-1].text == "hello":
            yield Finished("stop")
            return
        async for event in super().stream(request):
            yield event


class CountingStore(SQLiteStore):
    """A real store that counts what is written together."""

    together = 0

    def commit(self, writes: Sequence[Write]) -> None:
        super().commit(writes)
        self.together += len(writes) > 1


@pytest.fixture
def store(directory: Path) -> Iterator[CountingStore]:
    with CountingStore(directory / "store.db") as store:
        yield store


def is_tried(place: str) -> bool:
    return place.startswith(MEETING) or (EVERY_POINT in os.environ and place.startswith(LEADING))


def sessions_of(model: type[Obedient], store: CountingStore) -> list[Session]:
    return [Agent(model()).session(store=store) for _ in range(COUNT)]


def check(session: Session) -> None:
    check_log(check_messages(session))
    check_history(session.history)


async def check_next(sessions: Sequence[Session]) -> None:
    """Run a turn in each, which is done; and close them."""
    turns = await asyncio.gather(*(session.arun("and now?") for session in sessions))
    for session, turn in zip(sessions, turns, strict=True):
        assert turn.status == "done", (turn, turn.error)
        assert turn.text.endswith("and now?")
        assert not session.inbox.ready()
        check(session)
        await session.aclose()


WAYS: dict[str, Callable[[Session], Receipt]] = {
    "stop": lambda session: session.stop(),
    "interrupt": lambda session: session.interrupt("something else"),
    "steer": lambda session: session.steer("do it otherwise"),
    "rollback": lambda session: session.rollback(),
    "queue": lambda session: session.queue("later"),
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_is_said_to_all_of_them(store: CountingStore, way: str) -> None:
    """Laws 1 and 3 to 6: each ends as if it were alone, and goes on, wherever all are stopped, steered or told."""

    async def scenario(token: CancellationToken) -> None:
        sessions = sessions_of(Silent, store)
        receipts: list[Receipt] = []
        registration = token.on_cancel(lambda: receipts.extend(WAYS[way](session) for session in sessions))
        turns = await asyncio.gather(*(session.arun("hello") for session in sessions))
        registration()
        for session, turn in zip(sessions, turns, strict=True):
            check_turn(turn, way)
            check(session)
        if way == "rollback":
            for session, turn, receipt in zip(sessions, turns, receipts, strict=False):
                assert receipt.turn_id != turn.id or not session.history
        await check_next(sessions)

    try_everywhere(scenario, store)


def check_turn(turn: Turn, *reasons: str) -> None:
    if turn.status == "done":
        assert not turn.text or turn.text.startswith("Answer to ")
    else:
        assert turn.status == "interrupted", (turn, turn.error)
        assert turn.reason in reasons


def test_one_of_them_is_stopped(store: CountingStore) -> None:
    """Law 4: those that write with one that is stopped are done."""

    async def scenario(token: CancellationToken) -> None:
        sessions = sessions_of(Obedient, store)
        registration = token.on_cancel(sessions[1].stop)
        turns = await asyncio.gather(*(session.arun("hello") for session in sessions))
        registration()
        check_turn(turns.pop(1), "stop")
        assert [turn.status for turn in turns] == ["done"] * (COUNT - 1)
        await check_next(sessions)

    try_everywhere(scenario, store)


def test_their_tasks_are_cancelled(store: CountingStore) -> None:
    """Law 2: tasks that a stranger cancels end, with their turns in the log, also while these wait to be written."""

    async def scenario(token: CancellationToken) -> None:
        sessions = sessions_of(Silent, store)
        loop = asyncio.get_running_loop()
        tasks = [asyncio.ensure_future(session.arun("hello")) for session in sessions]
        with token.on_cancel(lambda: [loop.call_soon_threadsafe(task.cancel) for task in tasks]):
            await asyncio.wait(tasks)
        for session, task in zip(sessions, tasks, strict=True):
            assert task.cancelled() or task.result().status == "done"
            if session.turn is not None:  # else it was cancelled before its first step
                check_turn(session.turn, "external")
            check(session)
        await check_next(sessions)

    try_everywhere(scenario, store)


def test_they_are_closed(store: CountingStore) -> None:
    """Law 7: each can be closed at any point, and its turn is sealed; whoever opens it again finds all."""

    async def scenario(token: CancellationToken) -> None:
        sessions = sessions_of(Silent, store)
        registration = token.on_cancel(lambda: [session.close(timeout=0) for session in sessions])
        ended = await asyncio.gather(*(session.arun("hello") for session in sessions), return_exceptions=True)
        registration()
        for turn in ended:
            if not isinstance(turn, SessionClosed):
                assert isinstance(turn, Turn), turn
                check_turn(turn, "shutdown")
        for session in sessions:
            await session.aclose()
        again = [session.agent.session(session.id, store) for session in sessions]
        await check_next(again)

    try_everywhere(scenario, store)


def try_everywhere(scenario: Callable[[CancellationToken], object], store: CountingStore) -> None:
    repeat = COUNT if EVERY_POINT in os.environ else 2
    report = interrupt_everywhere(scenario, check=nothing_is_left, repeat=repeat, only=is_tried)
    assert len(report.points) > 100
    assert len(report.missed) < len(report.points) / 10
    assert store.together > 0
