"""Tools and listeners that do their worst: every call still has one honest outcome, and nobody else suffers.

A comment "was a defect" marks what Halter itself once got wrong.
"""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from halter import Cancelled, ToolContext, run_process, tool
from halter.cancel import abandoned
from halter.cancel.threads import blocking
from halter.events.tools import ToolFinished, ToolFinishedLate
from halter.models.types import ToolCall
from halter.testing import DeafTool
from halter.tools.run.batch import Batch, BatchEnvironment
from tests.support.batches import STRANGER, Probe, Unspeakable, add, calls_of, run, statuses
from tests.support.waiting import wait_until


class Dumb:
    """A result that cannot be shown."""

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        raise RecursionError("down and down")


@tool(isolate=True)
def crashes() -> None:
    """Take its process down."""
    os._exit(7)


@tool(isolate=True)
def isolated_exit() -> None:
    """Ask its process to end."""
    raise SystemExit(3)


# -- whatever a tool raises ----------------------------------------------------------------------------------------


def _raiser(error: BaseException) -> Callable[[], Any]:
    def raises() -> Any:
        raise error

    return raises


def _async_raiser(error: BaseException) -> Callable[[], Any]:
    async def raises() -> Any:
        await asyncio.sleep(0)
        raise error

    return raises


@pytest.mark.parametrize("make", [_raiser, _async_raiser], ids=["function", "coroutine"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(3), "SystemExit: 3"),  # was a defect: in a coroutine it ended the event loop
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration("x"), "StopIteration"),
        (StopAsyncIteration(), "StopAsyncIteration"),
        (asyncio.CancelledError(), "CancelledError"),
        (Cancelled(STRANGER), "Cancelled: theirs"),
        (RecursionError("deep"), "RecursionError: deep"),
        (Unspeakable(), "Unspeakable"),  # was a defect: the outcomes of the whole batch were lost
        (ValueError("half a \ud800 pair"), r"ValueError: half a \ud800 pair"),  # was a defect: could not be sent
        (BaseExceptionGroup("all", [ValueError("x"), SystemExit(1)]), "BaseExceptionGroup"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_is_raised_is_one_failed_call(make: Any, error: BaseException, told: str) -> None:
    """A tool that called sys.exit() took the agent down; here it is a failed call, and its sibling is whole."""
    bad = tool(name="bad")(make(error))

    async def main() -> None:
        probe = Probe(bad, add, calls=[*calls_of("bad"), ToolCall("a", "add", '{"a": 1}')])
        outcomes = await probe.run()
        assert statuses(outcomes) == ["failed", "completed"]
        assert told in outcomes[0].detail
        assert len(probe.told(ToolFinished)) == 2
        outcomes[0].to_message().text.encode()

    run(main())


def test_an_error_text_of_any_length_is_bounded() -> None:
    """An error that quotes a whole file filled the model's context for ever. Was a defect: only results were cut."""

    @tool
    def verbose() -> None:
        raise ValueError("x" * 5_000_000)

    async def main() -> None:
        (outcome,) = await Probe(verbose).run()
        assert len(outcome.detail) < 101_000
        assert "left out" in outcome.detail

    run(main())


def test_odd_results_are_results() -> None:
    """Values that cannot be hashed, shown, or ended: told of, cut, and never an error of the batch."""
    endless: list[Any] = []
    endless.append(endless)
    values: list[Any] = [Dumb(), {1: {2}}, "x" * 3_000_000, endless, b"\xff\x00", object, iter([1]), {Dumb: Dumb()}]

    def giver(value: Any) -> Callable[[], Any]:
        return lambda: value

    async def main() -> None:
        tools = [tool(name=f"t{number}")(giver(value)) for number, value in enumerate(values)]
        outcomes = await Probe(*tools).run()
        assert statuses(outcomes) == ["completed"] * len(values)
        assert all(len(str(o.content)) <= 100_000 for o in outcomes)
        assert "cannot be shown" in str(outcomes[0].content)

    run(main())


def test_a_crashed_worker_process_is_one_failed_call() -> None:
    """A worker that dies, or is asked to exit, is an error of its call only."""

    async def main() -> None:
        outcomes = await Probe(crashes, isolated_exit).run()
        assert statuses(outcomes) == ["failed", "failed"]
        assert "ended with code 7" in outcomes[0].detail
        assert "SystemExit" in outcomes[1].detail

    run(main())


# -- a stop that is not obeyed as one should -----------------------------------------------------------------------


def test_generators_that_refuse_to_be_closed() -> None:
    """What they yield on the way out is kept as far as it came; they end with the stop, or are named as abandoned."""
    running = threading.Barrier(4, timeout=30)

    @tool(grace=30)
    def ignores_exit() -> Iterator[str]:
        try:
            yield "one"
            running.wait()
            while True:
                yield ""
        finally:
            yield "from the finally"

    @tool(grace=30)
    async def yields_in_finally() -> AsyncIterator[str]:
        try:
            yield "one"
            await asyncio.to_thread(running.wait)
            await asyncio.sleep(60)
        finally:
            yield "from the finally"
            yield "and again"

    @tool
    async def sleeps_in_finally() -> AsyncIterator[str]:
        try:
            yield "one"
            await asyncio.to_thread(running.wait)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(60)

    async def main() -> None:
        probe = Probe(ignores_exit, yields_in_finally, sleeps_in_finally)

        def all_run() -> bool:
            return running.n_waiting == 3

        def stop() -> None:
            wait_until(all_run)
            running.wait()
            probe.token.cancel("interrupt")

        threading.Thread(target=stop).start()
        outcomes = await probe.run()
        assert statuses(outcomes) == ["partial", "partial", "abandoned"]
        assert [o.content for o in outcomes] == ["one", "one\nfrom the finally", "one"]

    run(main())


def test_a_tool_that_stops_itself() -> None:
    """Its own token, its own task, a task of another: an outcome of that call, and the others go on."""

    @tool(grace=30)
    def own_token(ctx: ToolContext) -> str:
        ctx.token.cancel("enough", detail="my own")
        return "what I have"

    @tool
    async def own_task() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(60)

    @tool
    async def cancelled_future() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async def main() -> None:
        probe = Probe(own_token, own_task, cancelled_future, add)
        calls = [*calls_of("own_token", "own_task", "cancelled_future"), ToolCall("a", "add", '{"a": 1}')]
        probe.batch = Batch(calls, BatchEnvironment(probe.tools), token=probe.token)
        outcomes = await probe.run()
        assert [(o.status, o.reason) for o in outcomes] == [
            ("partial", "enough"),
            ("cancelled", "external"),
            ("failed", None),
            ("completed", None),
        ]
        assert outcomes[0].content == "what I have"
        assert not probe.token.is_cancelled

    run(main())


def test_what_a_process_wrote_is_kept_when_its_tool_is_stopped() -> None:
    """Was a defect: the stop told the awaiting task first, and in most stops the output so far was lost."""
    begun = threading.Event()

    @tool
    async def process() -> bytes:
        result = await run_process("echo begun; sleep 60", on_output=lambda _: begun.set())
        return result.stdout

    async def main() -> None:
        for _ in range(10):
            begun.clear()
            (outcome,) = await Probe(process).stopped_when(begun.is_set)
            assert (outcome.status, outcome.content) == ("partial", "begun\n")

    run(main())


def test_an_abandoned_task_that_only_it_refers_to_is_not_collected() -> None:
    """Asyncio holds tasks weakly. Was a defect: what the collector took away could never be heard of again."""

    @tool
    async def deaf() -> str:
        wake = asyncio.Event()
        wakes.append(weakref.ref(wake))
        while not wake.is_set():
            try:
                await wake.wait()
            except asyncio.CancelledError:
                continue
        return "after all"

    wakes: list[weakref.ref[asyncio.Event]] = []

    async def main() -> None:
        probe = Probe(deaf, grace=0.01)
        (outcome,) = await probe.stopped_when(lambda: wakes)
        assert outcome.status == "abandoned"
        gc.collect()
        wake = wakes[0]()
        assert wake is not None
        wake.set()
        await asyncio.to_thread(wait_until, lambda: probe.late)
        assert outcome.late is not None
        assert (outcome.late.content, outcome.late.error) == ("after all", "")  # was a defect: the value was dropped

    run(main())


def test_a_coroutine_that_a_torn_down_loop_leaves_behind_is_heard_of() -> None:
    """Was a defect: asyncio.run() ended, the call was abandoned, and its own end moments later was told to nobody."""
    probes: list[Probe] = []
    started = threading.Event()

    @tool
    async def tidy() -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)

    async def main() -> None:
        probes.append(Probe(tidy))
        task = asyncio.ensure_future(probes[0].batch.run())
        await asyncio.to_thread(started.wait, 30)
        assert not task.done()

    asyncio.run(main())
    (outcome,) = probes[0].batch.settle_all()
    assert outcome.status in ("abandoned", "cancelled")
    assert not outcome.may_go_on


# -- listeners -----------------------------------------------------------------------------------------------------


def test_hooks_that_raise_anything_cost_nothing() -> None:
    """A listener that is cancelled, and that exits the thread of a late end: every thread is given back."""
    deaf = DeafTool()

    @tool
    def deaf_function() -> None:
        deaf()

    def listener(event: Any) -> None:
        if isinstance(event, ToolFinishedLate):
            raise SystemExit
        STRANGER.raise_if_cancelled()

    async def main() -> None:
        probe = Probe(deaf_function)
        around = BatchEnvironment(probe.tools, listener=listener)
        probe.batch = Batch(calls_of("deaf_function"), around, token=probe.token)
        assert statuses(await probe.stopped_when(deaf.started.is_set)) == ["abandoned"]
        deaf.release()
        await asyncio.to_thread(wait_until, lambda: len(abandoned) == 0 and not blocking.running_calls)

    run(main())
