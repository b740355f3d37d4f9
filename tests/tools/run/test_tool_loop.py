"""Async tools on a loop of their own: one that blocks it delays neither its own stop nor anybody else."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from halter import Agent, CancellationToken, Cancelled, ToolContext, ToolOutcome, current_token, tool
from halter.models import ToolCall
from halter.testing import DeafTool, ScriptedModel, interrupt_everywhere
from halter.tools.run import tool_loop
from halter.tools.run.tool_loop import ToolLoop, run_on_tool_loop, shared_tool_loop
from tests.support.batches import Probe, calls_of, run, statuses
from tests.support.waiting import wait_until

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("test", default="")


class Loops:
    """Gives tool loops, and knows which ones it gave."""

    def __init__(self) -> None:
        self.made: list[ToolLoop] = []

    def __call__(self) -> ToolLoop:
        if not self.made or self.made[-1].is_retired:
            self.made.append(ToolLoop())
        return self.made[-1]

    def end(self) -> None:
        for each in self.made:
            each.retire()
        wait_until(lambda: all(each.loop.is_closed() for each in self.made))


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Any:
    # On a busy machine the thread of a loop may not run for long: none that works is taken for a blocked one.
    monkeypatch.setattr(tool_loop, "_START_TIMEOUT", 30)
    loops = Loops()
    yield loops
    loops.end()


def test_async_tools_run_in_the_tool_loop(loops: Loops) -> None:
    """With their context variables and their token; results, errors and what they yield come back."""

    @tool
    async def coroutine() -> str:
        await asyncio.sleep(0)
        is_there = asyncio.get_running_loop() is loops.made[0].loop
        return f"{is_there} {VARIABLE.get()} {current_token().name}"

    @tool
    async def generator() -> AsyncIterator[str]:
        yield "one"
        yield "two"

    @tool
    async def fails() -> None:
        raise KeyError("lost")

    @tool
    async def exits() -> None:
        raise SystemExit(3)

    @tool
    def wrapper() -> Any:
        async def inner() -> bool:
            return asyncio.get_running_loop() is loops.made[0].loop

        return inner()

    async def main() -> None:
        VARIABLE.set("mine")
        outcomes = await Probe(coroutine, generator, fails, exits, wrapper, tool_loop=loops).run()
        assert [(o.status, o.content or o.detail) for o in outcomes] == [
            ("completed", "True mine run"),
            ("completed", "one\ntwo"),
            ("failed", "KeyError: 'lost'"),
            ("failed", "SystemExit: 3"),
            ("completed", "true"),
        ]
        assert len(loops.made) == 1

    run(main())


def test_a_stop_reaches_a_tool_in_the_tool_loop(loops: Loops) -> None:
    """One that obeys hands back what it has, in its grace, and the loop is kept."""
    started, waiting = threading.Event(), threading.Event()

    @tool
    async def obedient() -> AsyncIterator[str]:
        yield "one"
        started.set()
        await asyncio.Event().wait()

    @tool
    async def tidy() -> str:
        try:
            waiting.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            return "tidied up"
        return ""

    async def main() -> None:
        outcomes = await Probe(obedient, tidy, tool_loop=loops, grace=10.0).stopped_when(
            lambda: started.is_set() and waiting.is_set()
        )
        assert [(o.status, o.content, o.reason) for o in outcomes] == [
            ("partial", "one", "interrupt"),
            ("partial", "tidied up", "interrupt"),
        ]
        assert not loops.made[0].is_retired

    run(main())


def test_a_tool_that_blocks_is_abandoned_with_its_loop(loops: Loops) -> None:
    """Control is back at the stop plus grace, a fresh loop takes over, and the late end is reported."""
    deaf = DeafTool()

    @tool
    async def blocks() -> str:
        deaf()
        return "after all"

    @tool
    async def quick() -> str:
        return "quick"

    async def main() -> None:
        probe = Probe(blocks, tool_loop=loops)
        [outcome] = await probe.stopped_when(deaf.started.is_set)
        assert (outcome.status, outcome.stop_steps) == ("abandoned", ["abandoned"])
        assert loops.made[0].is_retired
        assert statuses(await Probe(quick, tool_loop=loops).run()) == ["completed"]
        deaf.release()
        await asyncio.to_thread(wait_until, lambda: probe.late)
        assert outcome.late is not None
        assert outcome.late.content == "after all"
        assert len(loops.made) == 2
        await asyncio.to_thread(wait_until, loops.made[0].loop.is_closed)  # its thread has ended

    run(main())


def test_a_tool_that_swallows_the_stop_is_abandoned_and_the_loop_is_kept(loops: Loops) -> None:
    """It holds nobody up, so its neighbours keep their loop."""
    started, release = threading.Event(), asyncio.Event()

    @tool
    async def stubborn() -> str:
        while not release.is_set():
            try:
                started.set()
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    async def main() -> None:
        probe = Probe(stubborn, tool_loop=loops, grace=2)  # in which its loop answers
        [outcome] = await probe.stopped_when(started.is_set)
        assert outcome.status == "abandoned"
        assert not loops.made[0].is_retired
        loops.made[0].loop.call_soon_threadsafe(release.set)
        await asyncio.to_thread(wait_until, lambda: probe.late)

    run(main())


def test_a_new_call_does_not_wait_for_a_blocked_loop(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds that the loop does not answer and takes a fresh one; it runs once, and the blocked one goes on."""
    deaf = DeafTool()
    runs: list[str] = []

    @tool
    async def blocks() -> str:
        deaf()
        return "done"

    @tool
    async def quick() -> str:
        runs.append("quick")
        return "quick"

    async def main() -> None:
        probe = Probe(blocks, tool_loop=loops)
        blocked = asyncio.ensure_future(probe.run())
        await asyncio.to_thread(deaf.started.wait, 10)
        monkeypatch.setattr(tool_loop, "_START_TIMEOUT", 2)  # the fresh loop starts its call within that
        assert statuses(await Probe(quick, tool_loop=loops).run()) == ["completed"]
        assert len(loops.made) == 2
        deaf.release()
        assert statuses(await blocked) == ["completed"]
        await asyncio.to_thread(wait_until, loops.made[0].loop.is_closed)
        assert runs == ["quick"]

    run(main())


def test_nothing_starts_after_the_stop_in_the_tool_loop(loops: Loops) -> None:
    """A call that waits for a blocked loop to begin with it is stopped there, and never begins."""
    deaf = DeafTool()

    @tool
    async def blocks() -> None:
        deaf()

    @tool
    async def never() -> None:
        pytest.fail("it began")

    async def main() -> None:
        blocked = asyncio.ensure_future(Probe(blocks, tool_loop=loops).run())
        await asyncio.to_thread(deaf.started.wait, 10)

        def stop_soon() -> ToolLoop:
            """Asked for the loop at the launch: the stop comes as soon as the call waits for that loop."""
            asyncio.get_running_loop().call_soon(probe.token.cancel, "stop")
            return loops()

        probe = Probe(never, tool_loop=stop_soon)
        [outcome] = await probe.run()
        assert outcome.status == "cancelled"
        deaf.release()
        await blocked

    run(main())


def test_a_tool_in_the_tool_loop_uses_its_context(loops: Loops) -> None:
    """Questions, other agents and other tools run in the session's loop, and progress is reported."""

    @tool
    async def inner() -> str:
        return f"inner in the tool loop: {asyncio.get_running_loop() is loops.made[0].loop}"

    @tool
    async def outer(ctx: ToolContext) -> str:
        ctx.report("half")
        outcome = await ctx.call(inner, "{}")
        return f"{await ctx.ask('Sure?')}, {await ctx.delegate('agent', 'text')}, {outcome.content}"

    async def main() -> None:
        here = asyncio.get_running_loop()

        async def ask(*_: Any) -> str:
            return f"asked in the session's loop: {asyncio.get_running_loop() is here}"

        async def delegate(*_: Any) -> str:
            return f"delegated there: {asyncio.get_running_loop() is here}"

        [outcome] = await Probe(outer, tool_loop=loops, ask=ask, delegate=delegate).run()
        assert outcome.content == (
            "asked in the session's loop: True, delegated there: True, inner in the tool loop: True"
        )

    run(main())


def test_a_callback_that_exits_does_not_end_the_tool_loop(loops: Loops) -> None:
    """What a tool leaves behind in the loop of all tools may do anything."""

    def leave() -> None:
        raise SystemExit

    @tool
    async def leaves() -> None:
        asyncio.get_running_loop().call_soon(leave)

    @tool
    async def quick() -> str:
        return "quick"

    async def main() -> None:
        for _ in range(2):
            assert statuses(await Probe(leaves, quick, tool_loop=loops).run()) == ["completed"] * 2
        assert len(loops.made) == 1

    run(main())


def test_a_cancelled_batch_leaves_a_blocked_loop(loops: Loops) -> None:
    """A foreign cancellation is bounded as well."""
    deaf = DeafTool()

    @tool
    async def blocks() -> None:
        deaf()

    async def main() -> None:
        probe = Probe(blocks, tool_loop=loops)
        task = asyncio.ensure_future(probe.run())
        await asyncio.to_thread(deaf.started.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert statuses(probe.batch.settle_all()) == ["abandoned"]
        deaf.release()
        await asyncio.to_thread(wait_until, lambda: probe.late)

    run(main())


def test_a_tool_that_blocks_delays_no_session_of_run() -> None:
    """Was a defect: all sessions of run() shared one loop with their async tools; one time.sleep held up everybody."""
    deaf = DeafTool()

    @tool
    async def blocks() -> str:
        """Block."""
        deaf()
        return "late"

    blocked = Agent(ScriptedModel(ToolCall("c", "blocks", "{}"), "done"), tools=[blocks]).session()
    other = Agent(ScriptedModel("quick")).session()
    turns: list[Any] = []
    thread = threading.Thread(target=lambda: turns.append(blocked.run("go")))
    thread.start()
    assert deaf.started.wait(10)
    assert other.run("hi").text == "quick"
    began = time.monotonic()
    blocked.stop()
    thread.join(10)
    assert time.monotonic() - began < 5  # deaf() itself takes 30 s and more
    assert (turns[0].status, turns[0].outcomes[0].status) == ("interrupted", "abandoned")
    deaf.release()
    wait_until(lambda: any(event.kind == "tool.finished_late" for event in blocked.events()))


def test_a_tool_without_grace_that_ends_at_once_is_not_abandoned(loops: Loops, monkeypatch: pytest.MonkeyPatch) -> None:
    """With grace=0 a stop did not wait until the tool loop had delivered it: a call was abandoned, its loop retired."""
    monkeypatch.setattr(tool_loop, "_MIN_GRACE", 30)
    started = threading.Event()

    @tool(grace=0)
    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        for _ in range(50):
            started.clear()
            [outcome] = await Probe(waits, tool_loop=loops).stopped_when(started.is_set)
            assert (outcome.status, outcome.stop_steps) == ("cancelled", ["cooperated"])
            assert not loops.made[0].is_retired

    run(main())


def test_a_cancelled_caller_does_not_retire_a_loop_that_works(loops: Loops) -> None:
    """A foreign cancellation of one caller took the tool loop away from all others, though nothing blocked it."""
    token = CancellationToken()
    started, left = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.ensure_future(
            run_on_tool_loop(work, token, grace=10.0, get_loop=loops, on_left=left.set),
        )
        await asyncio.to_thread(started.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert left.is_set()
        assert not loops.made[0].is_retired
        token.cancel()

    run(main())


def test_the_shared_loop_is_replaced_when_it_is_retired() -> None:
    """New work finds a fresh loop; the old one ends once it is idle."""
    first = shared_tool_loop()
    assert shared_tool_loop() is first
    assert first.ping().wait(10)
    first.retire()
    second = shared_tool_loop()
    assert second is not first
    wait_until(first.loop.is_closed)


def test_calls_of_the_tool_loop_stop_each_for_itself(loops: Loops) -> None:
    """A hundred stops of other calls never touch their neighbour on the same loop."""

    @tool
    async def neighbour() -> str:
        try:
            await asyncio.sleep(0.2)
        except (asyncio.CancelledError, Cancelled):
            return "was cancelled"
        return "undisturbed"

    @tool
    async def waits() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        beside = asyncio.ensure_future(Probe(neighbour, tool_loop=loops).run())
        for _ in range(20):
            probe = Probe(waits, calls=calls_of(*["waits"] * 5), tool_loop=loops, grace=30)
            task = asyncio.ensure_future(probe.run())
            await asyncio.sleep(0)
            probe.token.cancel("stop")
            assert set(statuses(await task)) <= {"cancelled", "not_started"}
        assert (await beside)[0].content == "undisturbed"

    run(main())


@tool
async def asks(ctx: ToolContext) -> str:
    """Ask the session."""
    return str(await ctx.ask("Sure?"))


@tool
async def yields() -> AsyncIterator[str]:
    """Yield."""
    yield "one"
    await asyncio.sleep(0)
    yield "two"


@tool
async def fails() -> None:
    """Fail."""
    raise ValueError("on purpose")


WHOLE = {"asks": "sure", "yields": "one\ntwo", "fails": ""}


async def sure(*_: Any) -> str:
    await asyncio.sleep(0)
    return "sure"


def check_outcomes(outcomes: list[ToolOutcome]) -> None:
    assert [outcome.name for outcome in outcomes] == list(WHOLE)
    for outcome in outcomes:
        if outcome.status in ("completed", "failed"):
            assert outcome.content == WHOLE[outcome.name]
            assert (outcome.status == "failed") == (outcome.name == "fails")
        else:
            assert outcome.status in ("partial", "cancelled", "not_started", "abandoned"), outcome
            assert outcome.reason in ("interrupt", "external"), outcome


async def a_stop(token: CancellationToken) -> None:
    loops = Loops()
    probe = Probe(asks, yields, fails, tool_loop=loops, ask=sure)
    token.on_cancel(lambda: probe.token.cancel("interrupt"))
    try:
        check_outcomes(await probe.run())
    finally:
        loops.end()


async def a_foreign_cancellation(token: CancellationToken) -> None:
    loops = Loops()
    probe = Probe(asks, yields, fails, tool_loop=loops, ask=sure)
    here = asyncio.get_running_loop()
    task = asyncio.ensure_future(probe.run())
    token.on_cancel(lambda: here.call_soon_threadsafe(task.cancel))
    try:
        await asyncio.wait([task])
        check_outcomes(probe.batch.settle_all())
    finally:
        loops.end()


@pytest.mark.parametrize("scenario", [a_stop, a_foreign_cancellation])
def test_a_stop_at_every_point_between_the_two_loops(scenario: Any) -> None:
    """Wherever it lands: one honest outcome for each call, and the tool loop ends."""
    report = interrupt_everywhere(scenario, repeat=1)
    assert len(report.points) > 200
    assert len(report.missed) < len(report.points) / 5
