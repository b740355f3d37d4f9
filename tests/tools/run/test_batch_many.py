"""Batches in numbers: none, a thousand calls, two thousand batches, and nothing of it is kept."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halter import CancellationToken, ToolContext, current_token, tool
from halter.cancel.threads import blocking
from halter.models.types import Image, ToolCall
from halter.tools.run.batch import Batch, BatchEnvironment
from halter.tools.tool import Tool
from tests.support.batches import Probe, add, calls_of, run, statuses
from tests.support.waiting import wait_until


def test_no_calls_a_thousand_calls_and_one_id_twice() -> None:
    """Nothing is nothing; a thousand are a thousand outcomes in order; two calls of one id are two outcomes."""

    async def main() -> None:
        empty = Batch([], BatchEnvironment({}), token=CancellationToken())
        assert await empty.run() == []
        many = [ToolCall(f"c{n}", "add", f'{{"a": {n}}}') for n in range(1000)]
        outcomes = await Probe(add, calls=many).run()
        assert [(o.call_id, o.content) for o in outcomes] == [(f"c{n}", str(n + 1)) for n in range(1000)]
        twice = Probe(add, calls=[ToolCall("same", "add", '{"a": 1}'), ToolCall("same", "add", '{"a": 2}')])
        assert [o.content for o in await twice.run()] == ["2", "3"]
        assert not twice.batch.cancel_call("nobody")

    run(main())


def test_a_thousand_queued_calls_are_stopped_at_once() -> None:
    """One running, 999 behind it on the same path: one stop, a thousand outcomes."""
    running = threading.Event()

    @tool
    def touch(path: Path) -> None:
        running.set()
        current_token().wait(30)

    async def main() -> None:
        calls = [ToolCall(f"c{n}", "touch", '{"path": "/nowhere"}') for n in range(1000)]
        outcomes = await Probe(touch, calls=calls).stopped_when(running.is_set)
        assert statuses(outcomes).count("not_started") == 999

    run(main())


def test_two_thousand_batches_leave_nothing_behind() -> None:
    """A long-lived turn, batch after batch: no observer of its token, no call, no task and no memory is kept."""

    @tool(timeout=60)
    async def coroutine() -> str:
        return "x"

    @tool(timeout=60)
    def function(ctx: ToolContext) -> str:
        ctx.report("half")
        ctx.token.on_cancel(lambda: None)()
        return "x"

    @tool
    def generator() -> Iterator[str]:
        yield "x"

    @tool
    def fails() -> None:
        raise ValueError("x")

    tools: list[Tool[..., Any]] = [coroutine, function, generator, fails]
    by_name = {each.name: each for each in tools}

    async def main() -> None:
        token = CancellationToken(name="turn")
        around = BatchEnvironment(by_name, listener=lambda _: None)
        seen: list[weakref.ref[Any]] = []
        sizes: list[int] = []
        for number in range(2000):
            batch = Batch(calls_of(*by_name), around, token=token)
            if number % 500 == 0:
                seen += [weakref.ref(each) for each in (batch, *batch._calls)]
            await batch.run()
            assert token._observers == 0
            del batch
            if number in (999, 1999):
                gc.collect()
                sizes.append(len(gc.get_objects()))
        assert [reference() for reference in seen] == [None] * len(seen)
        # A call is freed by the garbage collector, once the worker thread of the last one has let go of it.
        await asyncio.to_thread(wait_until, lambda: gc.collect() >= 0 and not token._subs)
        assert sizes[1] - sizes[0] < 500
        assert len(asyncio.all_tasks()) <= 2
        assert not blocking.running_calls

    asyncio.run(asyncio.wait_for(main(), 120))


def test_many_small_pieces_beside_a_picture_are_put_together_in_time() -> None:
    """A hundred thousand yields and one picture: the content is a join, not a copy for each piece."""

    @tool
    def many() -> Iterator[Any]:
        yield Image(b"x")
        for _ in range(30_000):
            yield "a\n"

    async def main() -> None:
        (outcome,) = await Probe(many).run()
        assert len(outcome.content) == 2

    run(main())
