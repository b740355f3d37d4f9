"""How soon control is back when a stop or a steer breaks into delegated work, or into a question to the user.

Whole turns of a session in memory, with scripted models: eight agents that each are in the middle of an answer; eight
that each delegate to another one; a question that nobody answers. Measured from the stop to the end of the turn, or
from the steer to the next request. Beside them the floor: a turn without tools, stopped in the middle of its answer.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import asyncio
import json
import time

from bench.measure import Goals, percentile, print_table
from halter import Agent
from halter.models import ToolCall
from halter.testing import Gate, ScriptedModel
from halter.toolbox.clarify import Clarify
from halter.toolbox.delegate import Delegate

_ROUNDS = 100
_COUNT = 8


def _call(name: str, **arguments) -> ToolCall:
    return ToolCall("c", name, json.dumps(arguments))


def _children(gates: list[Gate], *, deep: bool) -> list[Agent]:
    """Make agents that are stuck in the middle of an answer, or that have others who are."""
    agents = [Agent(ScriptedModel(["half ", gate]), name=f"a{at}") for at, gate in enumerate(gates)]
    if not deep:
        return agents
    return [
        Agent(
            ScriptedModel(_call("delegate", tasks=[{"agent": agent.name, "task": "x"}])),
            Delegate([agent], max_parallel=100).tools,
            name=agent.name,
        )
        for agent in agents
    ]


async def delegated(how: str, *, deep: bool) -> float:
    """Milliseconds from the stop until the turn is over, or from the steer until the next request."""
    gates = [Gate() for _ in range(_COUNT)]
    tools = Delegate(_children(gates, deep=deep), max_parallel=100)
    tasks = [{"agent": f"a{at}", "task": "x"} for at in range(_COUNT)]
    after = Gate()
    agent = Agent(ScriptedModel(_call("delegate", tasks=tasks), [after, "ok"]), tools.tools)
    async with agent.session() as session:
        task = asyncio.create_task(session.arun("x"))
        for gate in gates:
            await gate.await_reached()
        return await _measure(session, task, how, after)


async def asked(how: str) -> float:
    after = Gate()
    agent = Agent(ScriptedModel(_call("clarify", question="Which?"), [after, "ok"]), Clarify().tools)
    async with agent.session() as session:
        with session.subscribe() as listener:
            task = asyncio.create_task(session.arun("x"))
            async for event in listener:
                if event.kind == "question.asked":
                    break
        if how == "steer":  # a steer would answer it: this stops the one call
            start = time.perf_counter()
            session.cancel_call("c", "steer")
            await after.await_reached()
            took = time.perf_counter() - start
            after.open()
            await task
            return took * 1000
        return await _measure(session, task, how, after)


async def floor() -> float:
    gate = Gate()
    async with Agent(ScriptedModel(["half ", gate])).session() as session:
        task = asyncio.create_task(session.arun("x"))
        await gate.await_reached()
        return await _measure(session, task, "stop", gate)


async def _measure(session, task, how: str, after: Gate) -> float:
    start = time.perf_counter()
    if how == "steer":
        session.steer("enough")
        await after.await_reached()
    else:
        session.stop()
        await task
    took = time.perf_counter() - start
    after.open()
    await task
    return took * 1000


async def measure() -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {}
    for _ in range(_ROUNDS):
        for how in ("stop", "steer"):
            taken.setdefault(f"{_COUNT} agents at work: {how}", []).append(await delegated(how, deep=False))
            taken.setdefault(f"{_COUNT} agents with one each: {how}", []).append(await delegated(how, deep=True))
            taken.setdefault(f"a question to the user: {how}", []).append(await asked(how))
        taken.setdefault("  floor: an answer, stopped", []).append(await floor())
    return taken


def main() -> int:
    figures = asyncio.run(measure())
    rows = [(name, f"{percentile(ms, 50):.1f}", f"{percentile(ms, 99):.1f}") for name, ms in figures.items()]
    print_table(f"Until control is back, {_ROUNDS} rounds", ["", "p50, ms", "p99, ms"], rows)
    goals = Goals()
    for name, ms in figures.items():
        if not name.startswith(" "):
            goals.at_most(f"{name}, p99", percentile(ms, 99), 50, " ms")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
