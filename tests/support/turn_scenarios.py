"""A turn with everything in it, and the ways to stop it; what the laws are tried on.

Only this file and Halter itself are stopped at: the tools, the model and the checks are in stopped_turn.py.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from halter import CancellationToken, Session, SessionClosed
from halter.stores import Store
from halter.testing import Report, interrupt_everywhere
from tests.support.stopped_turn import FIRST, Judge, nothing_is_left

# What is above requests and batches; those are stopped at each of their own points by their own tests.
LAYER = ("session/", "stores/")
# What is only computed inside a command: a stop there is a stop in that command, which is tried.
COMPUTED = ("session/history", "session/inbox", "stores/memory")
RESUMING = "loop step, resuming"
# Where one thing that is said meets another, or what the turn does.
DECISIONS = (
    "session/delivery",
    "session/questions",
    "session/running",
    "session/session",
    "session/stopping",
    "session/turn_control",
    "session/turn_writer",
    "stores/batch",
    "stores/drain_claim",
    "stores/writer",
)
# Set it to try every way to stop at every point of all layers together, which takes many times as long.
EVERY_POINT = "HALTER_EVERY_POINT"


def is_tried(place: str) -> bool:
    """Whether this is a point of the session's layer, or one where the loop resumes a task."""
    if EVERY_POINT in os.environ or place.startswith(RESUMING):
        return True
    file = place.removeprefix("halter/")
    return file.startswith(LAYER) and not file.startswith(COMPUTED)


def is_near_a_decision(place: str) -> bool:
    """Whether what is said to a session, and what its turn does, are decided here, or the loop resumes a task.

    stop() and interrupt() are tried at all points, and other ways to stop at these: elsewhere they do the same.
    """
    return (
        EVERY_POINT in os.environ or place.startswith(RESUMING) or place.removeprefix("halter/").startswith(DECISIONS)
    )


def try_everywhere(
    scenario: Callable[[CancellationToken], Any], only: Callable[[str], bool] = is_tried, at_least: int = 400
) -> Report:
    """Stop a scenario at every point of the session's layer, and wherever the loop resumes a task."""
    report = interrupt_everywhere(scenario, check=nothing_is_left, repeat=1, only=only)
    assert len(report.points) > at_least
    assert len(report.missed) < len(report.points) / 10
    return report


def try_decisions(scenario: Callable[[CancellationToken], Any]) -> Report:
    """Stop a scenario at every point near a decision."""
    return try_everywhere(scenario, is_near_a_decision, at_least=250)


def a_turn(stop: Callable[[Session], object], *reasons: str) -> Callable[[CancellationToken], object]:
    """Make a scenario: a turn with everything, at some point of it *stop*, and then the next turn."""

    async def scenario(token: CancellationToken) -> None:
        judge = Judge(*reasons)
        session = judge.session
        registration = token.on_cancel(lambda: judge.stopped(stop(session)))
        turn = await session.arun(FIRST)
        registration()
        judge.judge(turn)
        await judge.judge_next()

    return scenario


async def a_foreign_cancellation(token: CancellationToken) -> None:
    judge = Judge("external")
    session = judge.session
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(session.arun(FIRST))
    with token.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel)):
        await asyncio.wait([task])
    if session.turn is not None:  # else it was cancelled before its first step
        judge.judge(session.turn)
        assert task.cancelled() == (session.turn.reason == "external")
    await judge.judge_next()


async def a_close(token: CancellationToken) -> None:
    judge = Judge("shutdown")
    session = judge.session
    registration = token.on_cancel(lambda: session.close(timeout=0))
    try:
        turn = await session.arun(FIRST)
    except SessionClosed:
        assert not session.is_running
    else:
        judge.judge(turn)
    registration()
    await session.aclose()
    judge.open_again()
    await judge.judge_next()


def a_rollback_at_the_start(open_store: Callable[[], Store]) -> Callable[[CancellationToken], object]:
    """Make a scenario: a session with one turn behind it begins the next, and at some point of that, rollback()."""

    async def scenario(token: CancellationToken) -> None:
        judge = Judge("rollback", store=open_store())
        session = judge.session
        before = await session.arun("hello")
        registration = token.on_cancel(lambda: judge.stopped(session.rollback()))
        turn = await session.arun("begin")
        registration()
        await judge.judge_rollback(before, turn)
        await judge.judge_next()

    return scenario
