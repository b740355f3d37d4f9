"""What a turn writes, and in how many transactions: each one is a wait for the disk, between a stop and its end too."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from halter import Agent, Session, tool
from halter.errors import StoreError
from halter.models import ToolCall
from halter.stores import MemoryStore, SQLiteStore, Store, Write
from halter.testing import Gate, ScriptedModel
from tests.support.background import RunningTurn
from tests.support.looped import looped


class CountingStore(MemoryStore):
    """Remembers the kinds of each write, and fails with those that hold a certain kind."""

    def __init__(self, failing: str = "") -> None:
        super().__init__()
        self.writes: list[list[str]] = []
        self._failing = failing

    def commit(self, writes: Sequence[Write]) -> None:
        kinds = [event.kind for write in writes for event in write.events]
        if self._failing in kinds:
            raise StoreError("the disk is full")
        super().commit(writes)
        self.writes.append(kinds)


def _session(store: Store, *script: object, tools: Sequence[object] = ()) -> Session:
    return Agent(ScriptedModel(*script), tools).session("s", store)  # type: ignore[arg-type]


def test_end_of_request_and_turn_are_one_write() -> None:
    """An answer without calls ends the turn: both ends are in one transaction, in this order."""
    store = CountingStore()
    turn = _session(store, "Hello.").run("hi")
    assert turn.status == "done"
    assert store.writes[-1][-2:] == ["request.finished", "turn.finished"]


def test_stop_of_request_is_one_write() -> None:
    """From the stop of a request to the end of its turn nothing waits for more than one transaction."""
    gate = Gate()
    store = CountingStore()

    async def main() -> None:
        session = _session(store, ["some ", gate])
        running = asyncio.ensure_future(session.arun("hi"))
        await gate.await_reached()
        await asyncio.sleep(0)
        session.interrupt()
        assert (await running).text == "some "

    asyncio.run(main())
    assert store.writes[-1] == ["turn.stopping", "request.cancelled", "turn.finished"]


def test_calls_are_written_before_they_run() -> None:
    """A call that runs is in the log with the answer that asked for it, so that a crash finds both."""
    seen: list[str] = []
    store = CountingStore()

    @tool
    def look() -> str:
        """Look at the log."""
        seen.extend(event.kind for event in store.read("s"))
        return "seen"

    _session(store, ToolCall("c1", "look", "{}"), "Done.", tools=[look]).run("go")
    assert "request.finished" in seen


def test_steer_finds_the_broken_request_written() -> None:
    """The request that a steer broke off ends in the log before the steer is applied."""
    gate = Gate()

    async def main() -> list[str]:
        session = _session(MemoryStore(), ["some ", gate], "Well then.")
        running = asyncio.ensure_future(session.arun("hi"))
        await gate.await_reached()
        session.steer("no, that")
        assert (await running).text == "Well then."
        return [event.kind for event in session.events()]

    kinds = asyncio.run(main())
    assert kinds.index("request.cancelled") < kinds.index("message.applied", kinds.index("request.cancelled"))
    assert kinds.count("request.started") == 2


@pytest.mark.parametrize("kind", ["request.finished", "turn.finished"])
def test_answer_that_cannot_be_written_fails_the_turn(kind: str) -> None:
    """A turn whose answer could not be written is not called done: what was not written did not happen."""
    turn = _session(CountingStore(failing=kind), "Hello.").run("hi")
    assert turn.status == "failed"
    assert isinstance(turn.error, StoreError)


@looped
async def test_astop_stops_when_it_is_called() -> None:
    """Whoever stops many sessions calls it for each, and then waits: no session goes on until another has answered."""
    gate = Gate()
    session = _session(MemoryStore(), ["some ", gate])
    running = asyncio.ensure_future(session.arun("hi"))
    await gate.await_reached()
    assert session.turn is not None
    held = session.astop(detail="by a test")
    assert session.turn.token.is_cancelled
    assert (await held).stopped
    assert (await running).detail == "by a test"


def test_astop_may_be_called_where_no_loop_runs(tmp_path: Path) -> None:
    """A thread that hands what astop() returns to a loop got a RuntimeError, and the queued messages were not held."""
    gate = Gate()
    with SQLiteStore(tmp_path / "sessions.db") as store, _session(store, ["some ", gate]) as session:
        running = RunningTurn(session)
        gate.wait_reached()
        session.post("later")
        assert asyncio.run(session.astop()).stopped
        assert running.end().status == "interrupted"
        assert [each.state for each in session.inbox] == ["held"]
