"""Many different tools in one turn, stopped at random times, again and again: nothing is left, and nothing grows."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from pathlib import Path
from typing import Any

from halter import Agent, tool, toolbox
from halter.cancel import abandoned, families, worker
from halter.models import ToolCall
from halter.testing import ScriptedModel
from tests.helpers import open_descriptors, wait_until

RUNS = 30
CALLS: list[tuple[str, str]] = [
    ("terminal", '{"command": "echo one; sleep 0.02; echo two"}'),
    ("terminal", '{"command": "(setsid sleep 30 &) ; sleep 30"}'),
    ("search_files", '{"pattern": "needle"}'),
    ("read_file", '{"path": "text.txt"}'),
    ("write_file", '{"path": "out.txt", "content": "x"}'),
    ("todo", '{"add": ["something"]}'),
    ("slow", "{}"),
    ("deaf", "{}"),
]


@tool
async def slow() -> str:
    """Wait for long."""
    await asyncio.sleep(30)
    return "never"


@tool
def deaf() -> str:
    """Listen to nobody for a moment."""
    threading.Event().wait(0.005)
    return "heard nothing"


async def one_turn(workspace: Path, seconds: float) -> None:
    calls = [ToolCall(f"{number}", *CALLS[number % len(CALLS)]) for number in range(32)]
    agent = Agent(ScriptedModel(calls), [*toolbox.default(workspace), slow, deaf])
    async with agent.session() as session:
        running = asyncio.ensure_future(session.arun("Do it all."))
        await asyncio.sleep(seconds)  # at a random time: that is what is tried here
        session.stop()
        turn: Any = await running
        assert turn.reason == "stop"
        assert len(turn.outcomes) in (0, 32)


def test_stops_at_random_times_leave_nothing(tmp_path: Path) -> None:
    """Thirty-two tools of many kinds, stopped at random: every call has its outcome, and nobody is left behind."""
    (tmp_path / "text.txt").write_text("a needle\n" * 100)
    chance = random.Random(7)

    def some(times: int) -> int:
        for _ in range(times):
            asyncio.run(one_turn(tmp_path, chance.uniform(0, 0.15)))
            wait_until(lambda: len(abandoned) == 0)
            wait_until(lambda: len(families.roots()) <= len(worker._idle), seconds=20)
        gc.collect()
        return open_descriptors()

    before = some(5)
    assert some(RUNS) <= before + 3
    assert {path.name for path in tmp_path.iterdir()} <= {"text.txt", "out.txt"}
