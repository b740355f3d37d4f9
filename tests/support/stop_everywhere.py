"""A call of one tool, stopped or steered: at rest, at its start, in its middle, at its end, and twice.

The moments are real ones. A call reports, opens and yields; *middle* is a condition that says when it is in the middle
of its work, and the stop comes from another thread as soon as that is so. What the table asserts is the same for all.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from halter import CancellationToken, ToolOutcome
from halter.cancel import abandoned
from halter.events.tools import ToolFinished, ToolStarted
from halter.models import ToolCall
from halter.testing import interrupt_everywhere
from tests.support.batches import Probe, run
from tests.support.waiting import wait_until

MOMENTS = ["rest", "start", "middle", "end", "twice"]
REASONS = ["stop", "interrupt", "steer"]
every_moment = pytest.mark.parametrize("moment", MOMENTS)
every_reason = pytest.mark.parametrize("reason", REASONS)


class Stopped:
    """One call, and what came of it."""

    def __init__(self, tool: Any, arguments: dict[str, Any]) -> None:
        self._tool = tool
        self._call = ToolCall("call", tool.name, json.dumps(arguments))
        self.reports: list[str] = []

    def at(self, moment: str, reason: str, *, middle: Callable[[], object] | None = None) -> ToolOutcome:
        """Run it under a stop at *moment*; the stop is of the step if it is a steer, and of the turn otherwise."""
        outcome: ToolOutcome = run(self._run(moment, reason, middle))
        wait_until(lambda: len(abandoned) == 0)
        return outcome

    async def _run(self, moment: str, reason: str, middle: Callable[[], object] | None) -> ToolOutcome:
        probe = Probe(self._tool, calls=[self._call])
        token = probe.step if reason == "steer" else probe.token

        def stop() -> None:
            token.cancel(reason)
            if moment == "twice":
                probe.token.cancel("interrupt", detail="again")

        conditions: dict[str, Callable[[], object]] = {
            "start": lambda: probe.told(ToolStarted),
            "middle": middle or (lambda: probe.told(ToolStarted)),
            "twice": middle or (lambda: probe.told(ToolStarted)),
            "end": lambda: probe.told(ToolFinished),
        }
        thread: threading.Thread | None = None
        if moment == "rest":
            stop()
        else:

            def watch() -> None:
                try:
                    wait_until(lambda: conditions[moment]() or probe.told(ToolFinished), 30)
                finally:
                    stop()

            thread = threading.Thread(target=watch)
            thread.start()
        (outcome,) = await probe.run()
        if thread is not None:
            thread.join(30)
        return outcome


def check(outcome: ToolOutcome, moment: str, reason: str) -> None:
    """What holds for every tool and every stop: nothing starts after it, and a whole result says that it is whole."""
    if moment == "rest":
        assert outcome.status == "not_started"
        assert outcome.reason == reason
        assert not outcome.content
    elif moment == "end":
        assert outcome.status == "completed"
    else:
        assert outcome.status in ("completed", "partial", "cancelled", "abandoned"), outcome
        if outcome.status != "completed":
            assert outcome.reason == reason
        # A busy machine, or a disk, may make it late; but it has ended, and that was told.
        assert not outcome.may_go_on


def open_files() -> list[str]:
    """The files that this process has open. What watches processes looks into /proc, now and then."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    return sorted(
        each
        for each in found
        if each.startswith("/") and not each.startswith(("/dev", "/proc", "/sys", "/memfd:halter-guardian"))
    )


def everywhere(
    prepare: Callable[[], tuple[Any, dict[str, Any]]], verify: Callable[[ToolOutcome], object], reason: str
) -> int:
    """Stop or steer a call at every line of the toolbox that it passes; returns how many there were.

    *prepare* makes the tool and its arguments anew; *verify* looks at the outcome and at what is left.
    """
    outcomes: list[ToolOutcome] = []

    async def scenario(token: CancellationToken) -> None:
        tool, arguments = prepare()
        probe = Probe(tool, calls=[ToolCall("call", tool.name, json.dumps(arguments))])
        target = probe.step if reason == "steer" else probe.token
        with token.on_cancel(lambda: target.cancel(reason)):
            outcomes.extend(await probe.run())

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
