"""What tests of tools share to stop a call in every way at every moment, on top of `halter.testing.ToolCalls`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from halter import CancellationToken, ToolOutcome
from halter.cancel import abandoned
from halter.events.tools import ToolFinished, ToolStarted
from halter.models import ToolCall
from halter.testing import MOMENTS, Moment, Stop, ToolCalls, interrupt_everywhere
from halter.tools.resources import SessionResources
from halter.tools.tool import Tool
from tests.support.waiting import wait_until

REASONS = ("stop", "interrupt", "steer")
STOP_OR_STEER = ("stop", "steer")
BEFORE_THE_END = MOMENTS[:4]
IN_THE_MIDDLE = ("middle", "twice")
every_moment = pytest.mark.parametrize("moment", MOMENTS)
every_reason = pytest.mark.parametrize("reason", REASONS)

# A busy machine may take long to let a call obey: these tests look at how it is stopped, not how soon.
PATIENT = 30.0
STOPPED = {"partial", "cancelled"}
# What a tool that obeys in time may end as; and one that has something to give back as soon as it is in the middle.
OBEYS = {"before": {"not_started"}, "start": STOPPED, "middle": STOPPED, "twice": STOPPED, "end": {"completed"}}
GIVES_BACK = OBEYS | {"middle": {"partial"}, "twice": {"partial"}}


def patient(tools: Sequence[Tool[..., Any]]) -> Sequence[Tool[..., Any]]:
    """Tools whose calls get as long to obey as a busy machine needs."""
    for each in tools:
        each.grace = PATIENT
    return tools


def call(tool: Any, resources: SessionResources | None = None, /, **arguments: Any) -> ToolOutcome:
    """Run one call of one tool to its end."""
    with ToolCalls(tool, resources=resources, grace=PATIENT) as calls:
        outcome = calls.call(tool.name, **arguments)
    wait_until(lambda: len(abandoned) == 0)
    return outcome


def call_stopped(
    tool: Any, moment: Moment, reason: str, *, middle: Callable[[], object] | None = None, **arguments: Any
) -> ToolOutcome:
    """Stop one call, in the middle when *middle* holds or when it has ended, and wait until nothing of it runs."""
    with ToolCalls(tool) as calls:
        is_there = middle or (lambda: any(isinstance(event, ToolStarted) for event in calls.events))
        stop = Stop(reason, moment, wait=lambda: wait_until(lambda: is_there() or is_over(calls)))
        outcome = calls.call_stopped(stop, tool.name, **arguments)
    wait_until(lambda: len(abandoned) == 0)
    return outcome


def check(outcome: ToolOutcome, moment: str, reason: str) -> None:
    """What holds for every tool and every stop: nothing starts after it, and a whole result says that it is whole."""
    if moment == "before":
        assert outcome.status == "not_started"
        assert outcome.reason == reason
        assert not outcome.content
    elif moment == "end":
        assert outcome.status == "completed"
    else:
        # Without a *middle* the stop comes as soon as the start is told, which may be before the function is launched.
        assert outcome.status in ("completed", "partial", "cancelled", "abandoned", "not_started"), outcome
        if outcome.status != "completed":
            assert outcome.reason == reason
        # A busy machine, or a disk, may make it late; but it has ended, and that was told.
        assert not outcome.may_go_on


def check_obeys(outcome: ToolOutcome, moment: str, reason: str) -> None:
    """What holds for a tool that works until it is stopped, and then ends in time."""
    assert outcome.status in OBEYS[moment], outcome
    assert outcome.reason == (None if moment == "end" else reason)


def stop_everywhere(
    prepare: Callable[[], tuple[Any, dict[str, Any]]], verify: Callable[[ToolOutcome], object], reason: str
) -> int:
    """Stop or steer a call at every line of the toolbox that it passes; returns how many there were.

    *prepare* makes the tool and its arguments anew; *verify* looks at the outcome and at what is left.
    """
    outcomes: list[ToolOutcome] = []

    async def scenario(token: CancellationToken) -> None:
        tool, arguments = prepare()
        call = ToolCall("call", tool.name, json.dumps(arguments))
        outcomes.append(await ToolCalls(tool).run(call, Stop(reason, token)))

    def check_one() -> None:
        wait_until(lambda: len(abandoned) == 0)
        outcome = outcomes.pop()
        assert outcome.status != "failed", outcome
        if outcome.status != "completed":
            assert outcome.reason == reason
        verify(outcome)

    report = interrupt_everywhere(scenario, check=check_one, repeat=1, only=lambda place: "toolbox/" in place)
    assert len(report.missed) < len(report.points) / 2
    return len(report.points)


def is_over(calls: ToolCalls) -> bool:
    """Whether the last call has its outcome."""
    return any(isinstance(event, ToolFinished) for event in calls.events)


def text_of(outcome: ToolOutcome) -> str:
    content = outcome.content
    return content if isinstance(content, str) else "\n".join(getattr(part, "text", "") for part in content)


def kept_by(calls: ToolCalls) -> Any:
    """The one thing that the tools keep."""
    [thing] = calls.resources._kept.values()
    return thing
