"""Law 4, nothing leaks: a cancellation never outlives its scope."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from halter import CancellationToken, Cancelled, current_token, run_blocking_async
from halter.stores import MemoryStore, SQLiteStore, Store
from halter.testing import DeafTool, interrupt_everywhere
from tests.support.core_work import WHOLE, all_kinds_of_work
from tests.support.stopped_turn import nothing_is_left
from tests.support.turn_scenarios import a_rollback_at_the_start, a_turn, is_near_a_decision, try_decisions


async def two_turns(token: CancellationToken) -> None:
    """A turn that may be stopped anywhere, and a fresh one after it, in the same task, which must be whole."""
    first = token.child("turn 1")
    try:
        async with first.scope():
            await asyncio.sleep(0)
            await run_blocking_async(lambda: current_token().wait(0.001), token=first)
    except Cancelled as exc:
        assert exc.belongs_to(first)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    async with CancellationToken(name="turn 2").scope() as second:
        assert await run_blocking_async(lambda: "whole", token=second) == "whole"
        await asyncio.sleep(0)


def test_a_stopped_turn_never_hurts_the_next() -> None:
    """Wherever the first turn is stopped, the second one runs as if nothing had been."""
    assert len(interrupt_everywhere(two_turns).points) > 200


def test_a_stopped_sibling_stops_nobody_else() -> None:
    """Two trees side by side in one loop: the stop of one leaves the other whole."""

    async def main() -> None:
        stopped, other = CancellationToken(), CancellationToken()
        with DeafTool() as deaf:
            doomed = asyncio.ensure_future(run_blocking_async(deaf, token=stopped))
            await asyncio.to_thread(deaf.started.wait, 30)
            work = asyncio.ensure_future(all_kinds_of_work(other))
            stopped.cancel()
            await asyncio.wait([doomed])
            assert await work == WHOLE

    asyncio.run(main())


def test_a_turn_that_is_taken_back_leaves_nothing_in_the_next() -> None:
    """rollback() at any point of a turn: the turn is out of the history, and the next one answers."""
    try_decisions(a_turn(lambda session: session.rollback(), "rollback"))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_rollback_while_idle_meets_the_start_of_a_turn(directory: Path, kind: str) -> None:
    """rollback() at any point of the start takes back one turn, the old or the new, and none is out of reach."""
    numbers = itertools.count()
    opened: list[Store] = []

    def open_store() -> Store:
        while opened:
            opened.pop().close()
        opened.append(MemoryStore() if kind == "memory" else SQLiteStore(directory / f"{next(numbers)}.db"))
        return opened[-1]

    report = interrupt_everywhere(
        a_rollback_at_the_start(open_store),
        check=nothing_is_left,
        repeat=1 if kind == "sqlite" else 2,
        only=is_near_a_decision,
    )
    opened.pop().close()
    assert len(report.points) > 150
    assert len(report.missed) < len(report.points) / 10
