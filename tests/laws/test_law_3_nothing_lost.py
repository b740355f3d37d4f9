"""Law 3, nothing lost: a message that was accepted is applied exactly once, or is still in the inbox."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.events import MessageAccepted
from halter.events.tools import ToolFinished
from halter.models import AssistantMessage, TextDelta
from halter.stores import SQLiteStore
from tests.support.stopped_turn import Judge
from tests.support.turn_scenarios import a_turn, is_near_a_decision, try_everywhere


def test_a_message_that_interrupts_is_never_lost() -> None:
    """interrupt(text) at any point of a turn: the turn stops if it ran, and the text is in the next turn, once."""
    try_everywhere(a_turn(lambda session: session.interrupt("something else"), "interrupt"))


class Killed:
    """The program that dies at every point, seen from outside."""

    def __init__(self) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-m", "tests.support.killed_program"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, database: Path, point: str = "") -> tuple[int, dict[str, list[str]]]:
        """Run the turn until it dies at this point; gives how it ended, and what it had told."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(f"{database}\t{point}\n")
        self._program.stdin.flush()
        told: dict[str, list[str]] = {}
        for line in self._program.stdout:
            what, _, text = line.rstrip("\n").partition(" ")
            if what == "end":
                return int(text), told
            told.setdefault(what, []).append(text)
        msg = "the program ended"
        raise AssertionError(msg)

    def close(self) -> None:
        """End the program."""
        with self._program:
            assert self._program.stdin is not None
            self._program.stdin.close()


@pytest.fixture
def killed() -> Iterator[Killed]:
    program = Killed()
    yield program
    program.close()


def test_nothing_is_lost_by_kill_9_at_any_point(killed: Killed, directory: Path) -> None:
    """Wherever it dies: accepted messages are there once, seen words too, and started calls are not run again."""
    code, told = killed.run(directory / "whole.db")
    assert code == 0, told
    points = [point for point in told["point"] if point.endswith("#1") and is_near_a_decision(point)]
    assert len(points) > 250
    deaths = 0
    for number, point in enumerate(points):
        database = directory / f"{number}.db"
        code, told = killed.run(database, point)
        if code == 0:
            continue  # it did not come by
        assert code == -signal.SIGKILL, point
        deaths += 1
        try:
            asyncio.run(judge_the_dead(database, told))
        except BaseException as error:
            error.add_note(f"killed at {point}")
            raise
        for file in directory.glob(f"{number}.db*"):
            file.unlink()
    assert deaths > len(points) * 0.9


async def judge_the_dead(database: Path, told: dict[str, list[str]]) -> None:
    """Open what a killed process has left, and go on with it."""
    with SQLiteStore(database) as store:
        judge = Judge("crash", store=store, without="isolated")
        events = judge.session.events()
        judge.judge_log()
        accepted = [event.data.id for event in events if isinstance(event.data, MessageAccepted)]
        for message in told.get("accepted", []):
            assert accepted.count(message) == 1
        written = "".join(event.data.text for event in events if isinstance(event.data, TextDelta))
        assert written.startswith("".join(told.get("saw", [])))
        said = "".join(message.text for message in judge.session.history if isinstance(message, AssistantMessage))
        assert said.startswith("".join(told.get("saw", [])))
        ended = [event.data.outcome for event in events if isinstance(event.data, ToolFinished)]
        unstarted = {outcome.call_id for outcome in ended if outcome.status in ("not_started", "denied")}
        assert not unstarted & set(told.get("started", []))
        turn = judge.session.turn
        if turn is not None and turn.status != "done":
            assert (turn.status, turn.reason) == ("interrupted", "crash")
        await judge.judge_next()
