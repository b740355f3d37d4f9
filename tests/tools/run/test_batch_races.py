"""Races of a batch, held open until they happen, and what may go wrong before a call is launched.

A comment "was a defect" marks what Halter itself once got wrong.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halter import CancellationToken, ToolContext, current_token, tool
from halter.cancel import abandoned
from halter.cancel.threads import blocking, pool
from halter.cancel.threads.blocking import BlockingCall
from halter.events.tools import ToolCancelling, ToolStarted
from halter.models.types import ToolCall
from halter.testing import DeafTool
from halter.tools.run.batch import Batch, BatchEnvironment
from halter.tools.run.call_run import CallRun
from tests.support.batches import STRANGER, Probe, Unspeakable, add, calls_of, run, statuses
from tests.support.waiting import wait_until

# -- races, held open ----------------------------------------------------------------------------------------------


class Held:
    """Stops a thread where it enters a function of ours, and does something there: a race that always happens."""

    def __init__(self, function: Callable[..., object], then: Callable[[], object]) -> None:
        self._code = function.__code__
        self._then: Callable[[], object] | None = then

    def __call__(self, frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code is self._code and self._then is not None:
            then, self._then = self._then, None
            then()


def test_an_end_between_leaving_a_call_and_settling_it_is_not_lost() -> None:
    """Was a defect: the thread ended in the moment in which it was given up, and its late end was told to nobody."""
    deaf = DeafTool()

    @tool
    def deaf_function() -> Any:
        return deaf()

    def end() -> None:
        deaf.release()
        wait_until(lambda: not blocking.running_calls)

    async def main() -> None:
        probe = Probe(deaf_function)
        sys.setprofile(Held(CallRun.settle_now, end))
        try:
            (outcome,) = await probe.stopped_when(deaf.started.is_set)
        finally:
            sys.setprofile(None)
        assert outcome.status == "abandoned"
        assert outcome.late is not None
        assert outcome.late.content == "late"
        assert len(probe.late) == 1

    run(main())


def test_a_call_that_obeys_while_its_waiter_wakes_is_not_abandoned() -> None:
    """Was a defect: a call that had ended in its grace was reported as abandoned if the loop looked too early."""
    started, reporting, settled = threading.Event(), threading.Event(), threading.Event()

    @tool(grace=30)
    def obedient(ctx: ToolContext) -> str:
        token = ctx.token  # from here on it listens
        started.set()
        token.wait(30)
        return "what I have"

    def report_slowly() -> None:
        reporting.set()
        settled.wait(0.2)  # the loop has the time to look; if it is right, it does not settle anything by it

    def hold_the_loop(event: Any) -> None:
        if isinstance(event, ToolCancelling):
            reporting.wait(30)

    async def main() -> None:
        probe = Probe(obedient)
        around = BatchEnvironment(probe.tools, listener=hold_the_loop)
        probe.batch = Batch(calls_of("obedient"), around, token=probe.token)
        pool.retire_threads()
        threading.setprofile(Held(BlockingCall._report_late, report_slowly))
        try:
            (outcome,) = await probe.stopped_when(started.is_set)
            settled.set()
        finally:
            threading.setprofile(None)
            pool.retire_threads()
        assert (outcome.status, outcome.content, outcome.stop_steps) == ("partial", "what I have", ["cooperated"])

    run(main())


def test_a_result_that_takes_long_to_show_does_not_hold_the_loop() -> None:
    """Was a defect: the result was written out in the event loop, under a lock, so a slow one froze every stop."""
    showing, go_on = threading.Event(), threading.Event()

    class Slow:
        def __str__(self) -> str:
            showing.set()
            go_on.wait(30)
            return "shown"

    @tool
    def function() -> Any:
        return Slow()

    @tool
    def generator() -> Iterator[Any]:
        yield "one"
        yield Slow()

    async def main() -> None:
        for each, content in ((function, ""), (generator, "one")):
            showing.clear()
            go_on.clear()
            threading.Timer(5, go_on.set).start()  # so that a failure is no deadlock
            probe = Probe(each)
            (outcome,) = await probe.stopped_when(showing.is_set)
            assert not go_on.is_set()
            assert (outcome.status, outcome.content) == ("abandoned", content)
            go_on.set()
            await asyncio.to_thread(wait_until, lambda: probe.late)

    run(main())
    wait_until(lambda: len(abandoned) == 0)


def test_a_coroutine_that_comes_after_the_stop_is_not_its_result() -> None:
    """Was a defect: the model was told "<coroutine object ...>", and the coroutine was never closed."""
    started = threading.Event()

    async def work() -> str:
        return "never"

    @tool(grace=30)
    def wrapper() -> Awaitable[str]:
        token = current_token()  # from here on it listens
        started.set()
        token.wait(30)
        return work()

    async def main() -> None:
        (outcome,) = await Probe(wrapper).stopped_when(started.is_set)
        assert (outcome.status, outcome.content) == ("cancelled", "")
        gc.collect()  # a coroutine that was never awaited would complain here

    run(main())


# -- before the launch ---------------------------------------------------------------------------------------------


def test_calls_on_one_path_keep_their_order_however_long_the_paths_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that overtook a write gave yesterday's text. Was a defect: whose path was known first went first."""
    real, second_known = os.path.realpath, threading.Event()
    order: list[str] = []

    def slow_for_the_first(path: Any) -> str:
        if str(path).endswith("link"):
            second_known.wait(0.2)
        found: str = real(path)
        if not str(path).endswith("link"):
            second_known.set()
        return found

    @tool
    def write(path: Path) -> None:
        order.append("write")

    @tool
    def read(path: Path) -> None:
        order.append("read")

    (tmp_path / "link").symlink_to(tmp_path / "file")
    monkeypatch.setattr(os.path, "realpath", slow_for_the_first)

    async def main() -> None:
        calls = [
            ToolCall("w", "write", f'{{"path": "{tmp_path / "link"}"}}'),
            ToolCall("r", "read", f'{{"path": "{tmp_path / "file"}"}}'),
        ]
        assert statuses(await Probe(write, read, calls=calls).run()) == ["completed"] * 2

    run(main())
    assert order == ["write", "read"]


def test_when_no_thread_is_to_be_had_calls_fail_and_the_others_are_whole(tmp_path: Path) -> None:
    """Was a defect: at the limit of abandoned threads a call that touches paths took its whole batch down."""

    @tool
    def touch(path: Path) -> None: ...

    @tool
    def plain() -> None: ...

    @tool
    async def task() -> str:
        return "whole"

    @tool(approval=True)
    def approved() -> None: ...

    limit, abandoned.limit = abandoned.limit, 0
    try:

        async def main() -> None:
            calls = [ToolCall("t", "touch", f'{{"path": "{tmp_path}"}}'), *calls_of("plain", "task", "approved")]
            probe = Probe(touch, plain, task, approved, calls=calls, approve=lambda _: True)
            outcomes = await probe.run()
            assert statuses(outcomes) == ["failed", "failed", "completed", "denied"]
            assert all("threads are stuck" in o.detail for o in outcomes if o.status == "failed")

        run(main())
    finally:
        abandoned.limit = limit


@pytest.mark.parametrize("trouble", ["cancelled future", "a stranger's Cancelled", "a parent's", "unspeakable"])
def test_an_approver_in_trouble_denies_its_own_call_only(trouble: str) -> None:
    """A question withdrawn by a client that left. Was a defect: it ended the batch as if its caller had been."""

    @tool(approval=True)
    def guarded() -> None: ...

    async def main() -> None:
        session = CancellationToken(name="session")

        async def answer(_: Any) -> bool:
            if trouble == "cancelled future":
                future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
                future.cancel()
                return await future
            if trouble == "a stranger's Cancelled":
                STRANGER.raise_if_cancelled()
            if trouble == "a parent's":
                session.cancel("shutdown")
                session.raise_if_cancelled()
            raise Unspeakable

        probe = Probe(guarded, add)
        token = session.child("turn")
        around = BatchEnvironment(probe.tools, approve="ask", ask_approval=answer)
        batch = Batch([*calls_of("guarded"), ToolCall("a", "add", '{"a": 1}')], around, token=token)
        outcomes = await batch.run()
        assert outcomes[0].status == "denied"
        assert outcomes[0].reason == ("shutdown" if trouble == "a parent's" else None)
        assert outcomes[1].status in (("completed",) if trouble != "a parent's" else ("completed", "not_started"))

    run(main())


def test_what_was_asked_for_approval_stays_as_it_was_asked() -> None:
    """Was a defect: the question's arguments got the tool's context put into them, which no log can write."""

    @tool(approval=True)
    def guarded(name: str, ctx: ToolContext) -> str:
        return name

    def tamper(request: Any) -> bool:
        request.arguments["name"] = "something else"
        return True

    async def answer(_: Any) -> bool:
        return True

    async def main() -> None:
        calls = [ToolCall("g", "guarded", '{"name": "a"}')]
        probe = Probe(guarded, calls=calls, answer=answer)
        await probe.run()
        assert probe.asked[0].arguments == {"name": "a"}
        (outcome,) = await Probe(guarded, calls=calls, approve=tamper).run()
        assert outcome.content == "a"

    run(main())


def test_a_batch_runs_once() -> None:
    """Was a defect: run again, it ran every tool again and told nobody."""

    async def main() -> None:
        probe = Probe(add, calls=[ToolCall("a", "add", '{"a": 1}')])
        await probe.run()
        with pytest.raises(RuntimeError, match="has already run"):
            await probe.run()

    run(main())


def test_a_call_that_was_told_of_as_not_started_never_starts() -> None:
    """Was a defect: a queued call that was settled as not started did start."""
    started: list[str] = []
    go_on = threading.Event()

    @tool(exclusive=True)
    def first() -> None:
        go_on.wait(30)

    @tool
    def queued() -> None:
        started.append("queued")

    async def main() -> None:
        probe = Probe(first, queued)
        task = asyncio.ensure_future(probe.run())
        await asyncio.to_thread(wait_until, lambda: probe.told(ToolStarted))
        early = probe.batch.settle_all()
        assert statuses(early) == ["abandoned", "not_started"]
        go_on.set()
        assert await task == early
        assert started == []
        assert early[0].late is not None

    run(main())
