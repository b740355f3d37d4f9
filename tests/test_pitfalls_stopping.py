"""What went wrong elsewhere when work was stopped, where no test of one part alone would show it.

Each docstring says what happened to whom; see test_pitfalls.py for the rest.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from halter import CancellationToken, Cancelled, checkpoint, current_token, run_process, tool
from halter.cancel import abandoned
from halter.events import RequestCancelled, RequestEvent
from halter.events.tools import ToolFinished
from halter.models import ModelCall, ModelRequest, OpenAIModel, ToolCallDone, UserMessage
from halter.models.types import ToolCall
from halter.testing import (
    DeafTool,
    FakeProvider,
    Gate,
    ScriptedModel,
    ScriptedReply,
    hang_before_first_byte,
    hang_mid_stream,
)
from halter.tools.run.batch import Batch, BatchEnvironment
from tests.support.batches import Probe, add, calls_of, run, statuses
from tests.support.processes import is_alive, run_python, wait_dead
from tests.support.waiting import wait_until

HELLO = ModelRequest([UserMessage.of("hello")])


def openai(provider: FakeProvider) -> OpenAIModel:
    return OpenAIModel("m", base_url=provider.openai_url, api_key="k")


# -- stopping ------------------------------------------------------------------------------------------------------

DEAF_PROGRAM = """
    import asyncio, threading, time
    from halter import CancellationToken, tool
    from halter.models.types import ToolCall
    from halter.tools.run.batch import Batch, BatchEnvironment

    started = threading.Semaphore(0)
    loop_runs = threading.Event()

    @tool
    def deaf() -> None:
        started.release()
        time.sleep(600)

    async def main():
        token = CancellationToken()
        around = BatchEnvironment({"deaf": deaf})
        batch = Batch([ToolCall(str(n), "deaf") for n in range(20)], around, token=token)

        def stop():
            for _ in range(20):
                started.acquire()
            loop.call_soon_threadsafe(loop_runs.set)
            loop_runs.wait()  # for ever, if the tools hold up the loop
            token.cancel("interrupt")

        loop = asyncio.get_running_loop()
        threading.Thread(target=stop).start()
        outcomes = await batch.run()
        print(sorted({o.status for o in outcomes}))

    asyncio.run(main())
"""


def test_deaf_tools_hold_up_neither_the_loop_nor_the_exit() -> None:
    """A pool's `with` block and its exit hook joined deaf tools: 20 s with a frozen loop, five minutes to exit."""
    ended = run_python(DEAF_PROGRAM, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "['abandoned']\n", "")


@pytest.mark.alone
def test_no_stop_waits_for_the_next_look_at_a_flag() -> None:
    """The wait loop looked at the flag every 5 s and then granted 3 s: a stop took 7 s. Nothing here looks in steps.

    The median of many: with looks every 0.3 s it would be 0.15 s.
    """

    async def stop_a_batch() -> float:
        with DeafTool() as deaf:
            probe = Probe(tool(name="deaf")(deaf.__call__), calls=calls_of("deaf"))
            task = asyncio.ensure_future(probe.batch.run())
            await asyncio.to_thread(deaf.started.wait, 30)
            return await timed(probe.token, task)

    async def stop_a_request(reply: ScriptedReply) -> float:
        async with FakeProvider(reply) as provider:
            token = CancellationToken()
            task = asyncio.ensure_future(ModelCall(openai(provider), HELLO, token=token).run())
            await provider.await_request(1)
            return await timed(token, task)

    async def timed(token: CancellationToken, task: asyncio.Future[Any]) -> float:
        at = time.monotonic()
        threading.Thread(target=token.cancel).start()
        await asyncio.wait([task])
        took = time.monotonic() - at
        assert task.exception() is None or isinstance(task.exception(), Cancelled)
        return took

    async def main() -> None:
        for stop in (stop_a_batch, lambda: stop_a_request(hang_before_first_byte())):
            assert statistics.median([await stop() for _ in range(11)]) < 0.1

    run(main())
    wait_until(lambda: len(abandoned) == 0)


def test_a_call_that_the_stream_brought_is_not_launched_after_the_stop() -> None:
    """A tool call parsed from the stream was launched after Ctrl+C. It is kept for the record, and not started."""
    started: list[str] = []

    @tool
    def delete() -> None:
        started.append("delete")

    async def main() -> None:
        turn, gate = CancellationToken(name="turn"), Gate()
        model = ScriptedModel([ToolCall("c1", "delete"), gate])

        def emit(event: RequestEvent) -> None:
            if isinstance(event, ToolCallDone):
                threading.Thread(target=turn.cancel, args=("interrupt",)).start()

        exchange = ModelCall(model, HELLO, token=turn, emit=emit)
        with pytest.raises(Cancelled):
            await exchange.run()
        calls = exchange.answer.calls
        assert [call.name for call in calls] == ["delete"]
        (outcome,) = await Batch(calls, BatchEnvironment({"delete": delete}), token=turn).run()
        assert (outcome.status, outcome.reason, outcome.started_at) == ("not_started", "interrupt", None)

    run(main())
    assert started == []


def test_a_zombie_keeps_neither_its_mutex_nor_its_path(tmp_path: Path) -> None:
    """A zombie kept the tool's mutex: the same tool could never run again. Its place is free with its outcome."""
    deaf = DeafTool()
    is_deaf = True

    @tool(exclusive=True)
    def write(path: Path) -> str:
        return str(deaf()) if is_deaf else "written"

    calls = [ToolCall("w", "write", f'{{"path": "{tmp_path}"}}')]

    async def main() -> None:
        nonlocal is_deaf
        assert statuses(await Probe(write, calls=calls).stopped_when(deaf.started.is_set)) == ["abandoned"]
        is_deaf = False
        assert [o.content for o in await Probe(write, calls=calls).run()] == ["written"]

    with deaf:
        run(main())
    wait_until(lambda: len(abandoned) == 0)


def test_a_wait_for_a_place_ends_with_the_stop_and_not_with_the_wait() -> None:
    """Lock waits ignored the stop: a call in the queue was told of it only when the one before it had ended."""
    paying, go_on = threading.Event(), threading.Event()

    @tool(exclusive=True, on_steer="finish")
    def payment() -> str:
        paying.set()
        go_on.wait(30)
        return "paid"

    @tool
    def queued() -> None:
        pytest.fail("it started after the stop")

    async def main() -> None:
        probe = Probe(payment, queued)
        task = asyncio.ensure_future(probe.run())
        await asyncio.to_thread(paying.wait, 30)
        probe.step.cancel("steer")
        await asyncio.to_thread(wait_until, lambda: probe.told(ToolFinished))
        assert not go_on.is_set()
        go_on.set()
        assert statuses(await task) == ["completed", "not_started"]

    run(main())


JOB_CONTROL = "set -m; sleep 60 & trap '' TERM; echo $! $$; wait"


@pytest.mark.parametrize("own", [True, False], ids=["run_process", "plain subprocess"])
def test_a_job_with_a_process_group_of_its_own_dies_with_its_shell(own: bool) -> None:
    """Signalling the shell's process group missed the foreground job, which had a group of its own."""
    pids: list[int] = []

    def note(piece: bytes) -> None:
        pids.extend(map(int, piece.split()))

    @tool
    async def ours() -> None:
        await run_process(["bash", "-c", JOB_CONTROL], on_output=note, grace=0.1)

    @tool
    def plain() -> None:
        with subprocess.Popen(["bash", "-c", JOB_CONTROL], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            note(process.stdout.readline())
            process.wait()

    async def main() -> None:
        (outcome,) = await Probe(ours if own else plain).stopped_when(lambda: pids)
        assert outcome.status in ("cancelled", "abandoned")

    run(main())
    job, shell = pids
    wait_dead(job)
    wait_dead(shell)
    assert not is_alive(job)
    wait_until(lambda: len(abandoned) == 0)


def test_a_stop_while_a_path_is_looked_up_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start-up ignored the stop. A file server that does not answer holds up the look at a path, and not the stop."""
    asked, answer = threading.Event(), threading.Event()
    started: list[str] = []

    def hang(path: str) -> str:
        asked.set()
        answer.wait(30)
        return path

    @tool
    def read(path: Path) -> None:
        started.append("read")

    monkeypatch.setattr(os.path, "realpath", hang)

    async def main() -> None:
        calls = [ToolCall("r", "read", '{"path": "/net/file"}'), ToolCall("a", "add", '{"a": 1}')]
        probe = Probe(read, add, calls=calls)
        outcomes = await probe.stopped_when(lambda: asked.is_set() and len(probe.events) == 2)
        assert statuses(outcomes) == ["not_started", "completed"]

    run(main())
    answer.set()
    wait_until(lambda: len(abandoned) == 0)
    assert started == []


def test_what_a_tool_leaves_running_hears_the_stop_and_what_starts_late_is_born_stopped() -> None:
    """Sub-agents attached after the fan-out missed the stop; background children outlived it."""
    heard: list[str] = []

    async def background() -> None:
        try:
            async with current_token().scope():
                await asyncio.sleep(60)
        except Cancelled as stop:
            heard.append(stop.reason)

    @tool
    async def starts_and_returns() -> str:
        tasks.append(asyncio.create_task(background()))
        await asyncio.sleep(0)
        return "started"

    tasks: list[asyncio.Task[None]] = []

    async def main() -> None:
        probe = Probe(starts_and_returns)
        assert statuses(await probe.run()) == ["completed"]
        probe.token.cancel("interrupt")
        await tasks[0]
        assert heard == ["interrupt"]
        with probe.token.bind():
            await background()  # attached after the fan-out
        assert heard == ["interrupt", "interrupt"]

    run(main())


def test_a_stop_of_one_agent_leaves_the_others_alone() -> None:
    """A stop meant for the input line killed six background agents: it has the scope of its own token."""
    starting = threading.Barrier(8, timeout=30)
    go_on = threading.Event()

    @tool(grace=30)
    def agent() -> str:
        token = current_token()  # from here on it listens
        starting.wait()
        while not go_on.is_set():
            checkpoint()
            token.wait(0.001)
        return "done"

    async def main() -> None:
        session = CancellationToken(name="session")
        turns = [session.child(f"turn {number}") for number in range(7)]
        around = BatchEnvironment({"agent": agent})
        batches = [asyncio.ensure_future(Batch(calls_of("agent"), around, token=turn).run()) for turn in turns]
        await asyncio.to_thread(starting.wait)
        turns[0].cancel("interrupt")
        (first,) = await batches[0]
        go_on.set()
        others = [outcome for batch in batches[1:] for outcome in await batch]
        assert first.status == "cancelled"
        assert statuses(others) == ["completed"] * 6

    run(main())


def test_cancelled_is_said_when_the_connection_is_aborted() -> None:
    """The word "cancelled" was shown while the model went on decoding for 30 minutes."""

    async def main() -> None:
        for reply in (hang_before_first_byte(), hang_mid_stream()):
            async with FakeProvider(reply) as provider:
                token = CancellationToken()
                said: list[RequestEvent] = []
                task = asyncio.ensure_future(ModelCall(openai(provider), HELLO, token=token, emit=said.append).run())
                await provider.await_request(1)
                token.cancel("interrupt")
                with pytest.raises(Cancelled):
                    await task
                await asyncio.sleep(0)  # the turn of the loop in which an aborted connection is closed; no more of ours
                assert isinstance(said[-1], RequestCancelled)
                wait_until(lambda: provider.connections[0].closed is not None)

    run(main())
