"""A stop, a steer and a foreign cancellation at every point of a batch."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from halter import CancellationToken, ToolOutcome, current_token, run_process, tool
from halter.cancel import abandoned
from halter.cancel.isolation import worker_process
from halter.cancel.processes import registry
from halter.models.types import ToolCall
from halter.testing import interrupt_everywhere
from halter.tools import Tool
from tests.support.batches import Probe, add, isolated_add
from tests.support.turn_scenarios import EVERY_POINT
from tests.support.waiting import wait_until


@tool
def listens() -> str:
    """Listen for a moment."""
    current_token().wait(0.002)
    return "listened"


@tool
def plain_child() -> int:
    """Wait for a child."""
    return subprocess.Popen(["sleep", "0.005"]).wait()


@tool
def is_deaf() -> str:
    """Listen to nobody for a moment."""
    threading.Event().wait(0.003)
    return "deaf"


@tool
async def process() -> bytes:
    """Run a process of ours."""
    return (await run_process("echo ran")).stdout


@tool
async def awaits() -> str:
    """Await a moment."""
    await asyncio.sleep(0.002)
    return "awaited"


@tool
def yields() -> Iterator[str]:
    """Yield."""
    yield "one"
    yield "two"


@tool
def fails() -> None:
    """Fail."""
    raise ValueError("on purpose")


@tool(approval=True)
def needs_approval() -> str:
    """Run if allowed."""
    return "allowed"


@tool(exclusive=True)
def alone() -> str:
    """Run alone."""
    return "alone"


EVERYWHERE: list[Tool[..., Any]] = [
    listens,
    plain_child,
    is_deaf,
    process,
    awaits,
    yields,
    fails,
    needs_approval,
    isolated_add,
    alone,
    add,
]
WHOLE = {
    "listens": "listened",
    "plain_child": "0",
    "is_deaf": "deaf",
    "process": "ran\n",
    "awaits": "awaited",
    "yields": "one\ntwo",
    "needs_approval": "allowed",
    "isolated_add": "2",
    "alone": "alone",
    "add": "2",
}


async def approve_soon(request: Any) -> bool:
    await asyncio.sleep(0)
    return True


def check_outcomes(outcomes: list[ToolOutcome]) -> None:
    assert [o.name for o in outcomes] == [t.name for t in EVERYWHERE]
    for outcome in outcomes:
        if outcome.status == "completed":
            assert outcome.content == WHOLE[outcome.name]
            assert outcome.reason is None
        elif outcome.status == "failed":
            assert outcome.name == "fails"
        else:
            assert outcome.reason in ("interrupt", "steer", "external"), outcome
            assert outcome.status in ("partial", "cancelled", "not_started", "abandoned", "denied")
        assert (outcome.started_at is None) == (outcome.status in ("not_started", "denied")), outcome
        assert outcome.to_message().call_id == outcome.call_id


def everything() -> Probe:
    calls = [ToolCall(t.name, t.name, '{"a": 1}' if t in (add, isolated_add) else "{}") for t in EVERYWHERE]
    return Probe(*EVERYWHERE, calls=calls, answer=approve_soon)


async def a_stop(token: CancellationToken) -> None:
    probe = everything()
    token.on_cancel(lambda: probe.token.cancel("interrupt"))
    check_outcomes(await probe.run())


async def a_steer(token: CancellationToken) -> None:
    probe = everything()
    token.on_cancel(lambda: probe.step.cancel("steer"))
    check_outcomes(await probe.run())


async def a_foreign_cancellation(token: CancellationToken) -> None:
    probe = everything()
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(probe.run())
    token.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))
    await asyncio.wait([task])
    check_outcomes(probe.batch.settle_all())


def nothing_is_left() -> None:
    wait_until(lambda: len(abandoned) == 0)
    wait_until(lambda: len(registry.roots()) <= len(worker_process.shared_workers.workers))


def is_in_a_batch(place: str) -> bool:
    """Whether this is a point of the batch, or one where the loop resumes a task; not one of the layer below."""
    return EVERY_POINT in os.environ or not place.startswith("halter/cancel/")


@pytest.mark.parametrize(
    ("scenario", "only"), [(a_stop, None), (a_steer, is_in_a_batch), (a_foreign_cancellation, is_in_a_batch)]
)
def test_at_every_point(scenario: Callable[[CancellationToken], Any], only: Callable[[str], bool] | None) -> None:
    """Wherever it lands: one outcome for each call, in order, none of them a lie, and nothing is left behind."""
    report = interrupt_everywhere(scenario, check=nothing_is_left, repeat=1, only=only)
    assert len(report.points) > 300
    assert len(report.missed) < len(report.points) / 5
