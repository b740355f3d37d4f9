"""ToolCalls makes calls as a session does, and stops each at the moment that a test names."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from halter import CancellationToken, ToolContext, ToolOutcome, tool
from halter.cancel import abandoned
from halter.events.tools import ToolFinishedLate
from halter.models import ToolCall
from halter.testing import MOMENTS, Moment, Stop, ToolCalls, interrupt_everywhere
from halter.tools.resources import SessionResources
from tests.support.waiting import wait_until

STATUSES = {
    "before": {"not_started"},
    "start": {"cancelled", "partial"},  # it may have yielded something by then
    "middle": {"partial"},
    "twice": {"partial"},
    "end": {"completed"},
}


@tool(grace=30)
def count(to: int, ctx: ToolContext) -> Iterator[str]:
    """Count to three; for more, wait to be stopped."""
    for number in range(1, min(to, 3) + 1):
        yield f"{number} "
        ctx.report(f"at {number}")
    if to > 3:
        ctx.token.wait(30)


@pytest.mark.parametrize("reason", ["stop", "interrupt", "steer"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("is_reported", [True, False])
def test_a_call_is_stopped_at_the_moment_that_was_named(moment: Moment, reason: str, is_reported: bool) -> None:
    """Each moment has its own outcome; a second stop, for whatever reason, does not change it."""
    with ToolCalls(count) as calls:

        def wait() -> None:
            wait_until(lambda: "at 3" in calls.reports)

        stop = Stop(reason, moment, report="at 3") if is_reported else Stop(reason, moment, wait=wait)
        outcome = calls.call_stopped(stop, "count", to=2 if moment == "end" else 100)
        assert outcome.status in STATUSES[moment]
        assert outcome.reason == (None if moment == "end" else reason)
        if moment in ("middle", "twice"):
            assert str(outcome.content).split() == ["1", "2", "3"]
            assert calls.reports == ["at 1", "at 2", "at 3"]


def test_a_stop_in_the_middle_says_when_that_is() -> None:
    """Nobody else can know when a call is in the middle of its work."""
    with pytest.raises(ValueError, match="report= or wait="):
        Stop("stop", "twice")


def test_what_the_test_waits_for_in_vain_fails_the_call() -> None:
    """The call is stopped all the same, and how it ended is told with the error."""

    def wait() -> None:
        raise AssertionError("it never came")

    with ToolCalls(count) as calls, pytest.raises(AssertionError, match="it never came") as failed:
        calls.call_stopped(Stop(wait=wait), "count", to=100)
    assert any("the outcome of the call" in note for note in failed.value.__notes__)


def test_what_tools_keep_lasts_until_the_end() -> None:
    """It is there for the next call, and closed with the calls; resources that were given are left to their owner."""
    closed: list[int] = []

    class Kept:
        def __init__(self) -> None:
            self.calls = 0

        def close(self) -> None:
            closed.append(self.calls)

    @tool
    def again(ctx: ToolContext) -> int:
        """Count the calls."""
        kept = ctx.keep(Kept)
        kept.calls += 1
        return kept.calls

    with ToolCalls(again) as calls:
        assert [calls.call("again").content for _ in range(3)] == ["1", "2", "3"]
    assert closed == [3]
    own = SessionResources()
    with ToolCalls(again, resources=own) as calls:
        calls.call("again")
    assert closed == [3]
    own.close()
    assert closed == [3, 1]


def test_a_steer_does_not_cut_what_must_finish() -> None:
    """A steer is one of the step, a stop one of the turn: as in a session."""
    token = CancellationToken()
    was_stopped = threading.Event()

    @tool(on_steer="finish")
    def finishes(ctx: ToolContext) -> str:
        """Finish."""
        ctx.report("begun")
        was_stopped.wait(30)
        return "cut" if ctx.token.is_cancelled else "whole"

    def stop() -> None:
        wait_until(lambda: calls.reports)
        token.cancel()
        was_stopped.set()

    with ToolCalls(finishes) as calls:
        threading.Thread(target=stop).start()
        outcome = asyncio.run(calls.run(ToolCall("1", "finishes"), Stop("steer", token)))
        assert (outcome.status, outcome.content) == ("completed", "whole")


def test_a_call_can_be_stopped_everywhere() -> None:
    """With the token of a scenario as its moment, the call is stopped wherever the scenario is, for its own reason."""
    outcomes: list[ToolOutcome] = []

    async def scenario(token: CancellationToken) -> None:
        outcomes.append(await ToolCalls(count).run(ToolCall("1", "count", '{"to": 3}'), Stop("steer", token)))

    def check() -> None:
        wait_until(lambda: len(abandoned) == 0)
        outcome = outcomes.pop()
        assert outcome.status in ("completed", "partial", "cancelled", "not_started")
        assert outcome.reason == (None if outcome.status == "completed" else "steer")
        assert "1 2 3".startswith(" ".join(str(outcome.content).split()))

    report = interrupt_everywhere(scenario, check=check, repeat=1, only=lambda place: "test_stopped_calls.py" in place)
    assert len(report.points) > 5
    cancelled = CancellationToken()
    cancelled.cancel()
    asyncio.run(scenario(cancelled))
    assert outcomes.pop().status == "not_started"


def test_events_belong_to_their_call() -> None:
    """What an abandoned call says late is not among the events of the next one."""
    release = threading.Event()

    @tool
    def deaf(ctx: ToolContext) -> str:
        """Wait, and hear nothing."""
        ctx.report("begun")
        release.wait(30)
        return "late"

    with ToolCalls(deaf, count, grace=0) as calls:
        assert calls.call_stopped(Stop(report="begun"), "deaf").status == "abandoned"
        first = calls.events
        assert calls.call("count", to=1).status == "completed"
        release.set()
        wait_until(lambda: any(isinstance(event, ToolFinishedLate) for event in first))
        assert not any(isinstance(event, ToolFinishedLate) for event in calls.events)


def test_a_call_that_takes_too_long_is_ended() -> None:
    """A test cannot hang on a tool that never ends."""
    with ToolCalls(count, timeout=0.05) as calls, pytest.raises(TimeoutError):
        calls.call("count", to=100)


@pytest.mark.parametrize("moment", ["middle", "twice"])
def test_a_stop_at_a_report_comes_before_the_next_piece(moment: Moment) -> None:
    """A tool that never waits was stopped some hundred pieces later, and a test of its content failed at random."""

    @tool(grace=30)
    def hurry(ctx: ToolContext) -> Iterator[str]:
        """Yield many pieces without a pause."""
        for number in range(10_000):
            yield f"{number}\n"
            ctx.report(f"at {number}.")

    with ToolCalls(hurry) as calls:
        outcome = calls.call_stopped(Stop("stop", moment, report="at 3."), "hurry")
    assert outcome.status == "partial"
    assert str(outcome.content).split() == ["0", "1", "2", "3", "4"]  # the piece at which it met the stop is kept


def test_an_async_tool_meets_the_stop_at_its_next_await() -> None:
    """A report of a coroutine is made on the loop that runs the call; its token is cancelled when it returns."""
    reached: list[bool] = []

    @tool(grace=30)
    async def steps(ctx: ToolContext) -> None:
        """Report, go on, and wait."""
        ctx.report("begun")
        reached.append(ctx.token.is_cancelled)
        await asyncio.sleep(30)
        reached.append(False)

    with ToolCalls(steps) as calls:
        assert calls.call_stopped(Stop("stop", report="begun"), "steps").status == "cancelled"
    assert reached == [True]


def test_a_report_that_never_comes_fails_the_call() -> None:
    """A misspelt text left the call unstopped, and the test of a stop saw a completed call."""
    with ToolCalls(count) as calls, pytest.raises(AssertionError, match="never reported 'at four'") as failed:
        calls.call_stopped(Stop(report="at four"), "count", to=2)
    assert "at 2" in str(failed.value)
    assert any("completed" in note for note in failed.value.__notes__)


def test_a_moment_that_does_not_exist_is_refused() -> None:
    """It never came, and the call was not stopped."""
    with pytest.raises(ValueError, match=r"'centre' is not a moment.*middle"):
        Stop("stop", "centre", report="at 3")  # type: ignore[arg-type]
