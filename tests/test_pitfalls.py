"""What went wrong elsewhere, where no test of one part alone would show it.

Each docstring says what happened to whom. Defects of a single part have their tests beside that part.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from halter import CancellationToken, Cancelled, ToolContext, checkpoint, current_token, tool
from halter.cancel import abandoned
from halter.cancel.threads import pool
from halter.events.tools import ToolStarted
from halter.models import ModelCall, ModelRequest, OpenAIModel, UserMessage
from halter.testing import (
    DeafCoroutine,
    DeafTool,
    FakeProvider,
    Gate,
    ScriptedModel,
)
from halter.tools.run.batch import Batch, BatchEnvironment
from tests.support.batches import Probe, calls_of, run, statuses
from tests.support.waiting import wait_until

HELLO = ModelRequest([UserMessage.of("hello")])


def openai(provider: FakeProvider) -> OpenAIModel:
    return OpenAIModel("m", base_url=provider.openai_url, api_key="k")


# -- requests ------------------------------------------------------------------------------------------------------

IMPORTS_PROGRAM = """
    import asyncio, sys, threading
    from halter import CancellationToken, ToolContext, tool
    from halter.models.types import ToolCall
    from halter.tools.run.batch import Batch, BatchEnvironment

    on_the_loop = []

    class Watch:
        def find_spec(self, name, path=None, target=None):
            if threading.current_thread() is threading.main_thread():
                on_the_loop.append(name)

    @tool
    def function(ctx: ToolContext) -> str:
        ctx.report("half")
        return "x"

    @tool
    async def coroutine() -> str:
        return "x"

    @tool(isolate=True)
    def isolated() -> str:
        return "x"

    @tool
    def generator():
        yield "x"

    async def main():
        sys.meta_path.insert(0, Watch())
        tools = {each.name: each for each in (function, coroutine, isolated, generator)}
        batch = Batch([ToolCall(n, n) for n in tools], BatchEnvironment(tools), token=CancellationToken())
        outcomes = await batch.run()
        assert [o.status for o in outcomes] == ["completed"] * 4, outcomes
        print(*on_the_loop)

    if __name__ == "__main__":
        asyncio.run(main())
"""


def test_the_first_batch_imports_nothing_heavy_on_the_loop(tmp_path: Path) -> None:
    """Lazy imports on the event loop delayed the first stop by a second."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(IMPORTS_PROGRAM))
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=30, check=False)
    assert ended.stderr == ""
    assert set(ended.stdout.split()) <= {"halter.cancel.scope"}  # a few lines, on asyncio which is there


# -- asyncio and threads -------------------------------------------------------------------------------------------


def test_a_late_tool_sees_its_own_token_and_not_the_next_runs() -> None:
    """A late worker looked its token up through the conversation, found the next run's, and never stopped."""
    gate = DeafTool()
    seen: list[Any] = []

    @tool
    def late(ctx: ToolContext) -> None:
        gate()
        seen.append((current_token().reason, ctx.token.reason))
        checkpoint()
        pytest.fail("it went on into a turn that is not its own")

    @tool
    def releases() -> str:
        gate.release()
        gate.returned.wait(30)
        return "next turn"

    async def main() -> None:
        first = Probe(late)
        assert statuses(await first.stopped_when(gate.started.is_set)) == ["abandoned"]
        assert [o.content for o in await Probe(releases).run()] == ["next turn"]
        await asyncio.to_thread(wait_until, lambda: first.late)
        assert first.late[0].late is not None
        assert first.late[0].late.error == ""

    run(main())
    assert seen == [("interrupt", "interrupt")]


def test_a_thread_that_was_stopped_is_clean_for_its_next_call() -> None:
    """Interrupt flags keyed by thread id poisoned a recycled thread: the next tool on it died at once."""
    idents: list[int] = []

    @tool(grace=30)
    def stopped() -> None:
        token = current_token()  # from here on it listens
        idents.append(threading.get_ident())
        token.sleep(30)

    @tool
    def following() -> str:
        idents.append(threading.get_ident())
        checkpoint()
        assert not current_token().is_cancelled
        return "clean"

    async def main() -> None:
        for _ in range(20):
            idents.clear()
            assert statuses(await Probe(stopped).stopped_when(lambda: idents)) == ["cancelled"]
            (outcome,) = await Probe(following).run()
            assert (outcome.status, outcome.content) == ("completed", "clean")
            if len(set(idents)) == 1:
                return
        pytest.fail("no thread was used again")

    pool.retire_threads()
    run(main())


def test_a_deaf_coroutine_is_told_once_and_costs_nothing_from_then_on() -> None:
    """An emulated level cancellation re-armed itself and pinned a core for 24 hours."""

    async def main() -> None:
        deaf = DeafCoroutine()

        @tool
        async def coroutine() -> Any:
            return await deaf()

        probe = Probe(coroutine, grace=0.01)
        assert statuses(await probe.stopped_when(deaf.started.is_set)) == ["abandoned"]
        loop: Any = asyncio.get_running_loop()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not loop._ready  # nothing is scheduled: no timer of ours comes back
        assert deaf.swallowed == 1
        deaf.release()
        await asyncio.to_thread(wait_until, lambda: probe.late)

    run(main())


def test_one_stop_ends_everything_that_runs_under_its_token() -> None:
    """Two runs on one conversation, and one interrupt stopped only the newer."""
    starting = threading.Barrier(3, timeout=30)

    @tool(grace=30)
    def listens() -> None:
        token = current_token()  # from here on it listens
        starting.wait()
        token.sleep(30)

    async def main() -> None:
        turn, gate = CancellationToken(name="turn"), Gate()
        around = BatchEnvironment({"listens": listens})
        batches = [asyncio.ensure_future(Batch(calls_of("listens"), around, token=turn).run()) for _ in range(2)]
        request = asyncio.ensure_future(ModelCall(ScriptedModel([gate]), HELLO, token=turn).run())
        await gate.await_reached()
        await asyncio.to_thread(starting.wait)
        turn.cancel("interrupt")
        assert [statuses(await batch) for batch in batches] == [["cancelled"]] * 2
        with pytest.raises(Cancelled):
            await request

    run(main())


def test_stopping_never_waits_for_a_running_tool() -> None:
    """`send()` blocked while a tool ran, because a lock was held. cancel() and cancel_call() return at once."""
    deaf = DeafTool()

    async def main() -> None:
        probe = Probe(tool(name="deaf")(deaf.__call__), calls=calls_of("deaf", "deaf"))
        task = asyncio.ensure_future(probe.batch.run())
        await asyncio.to_thread(wait_until, lambda: deaf.calls == 2 and len(probe.told(ToolStarted)) == 2)
        assert probe.batch.cancel_call("call_0")  # in the loop itself: nothing can have waited for it
        assert not task.done()
        assert probe.token.cancel("stop")
        assert statuses(await task) == ["abandoned"] * 2

    with deaf:
        run(main())
    wait_until(lambda: len(abandoned) == 0)
