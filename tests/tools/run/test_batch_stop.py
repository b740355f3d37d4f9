"""A stop ends every call of a batch, each in its way, and says honestly how."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from halter import Cancelled, ToolContext, checkpoint, current_token, run_process, tool
from halter.cancel import abandoned
from halter.cancel.threads import pool
from halter.events.tools import (
    ToolCancelling,
    ToolFinished,
    ToolFinishedLate,
    ToolProgress,
    ToolStarted,
)
from halter.models.types import ToolCall
from halter.testing import DeafCoroutine, DeafTool
from halter.tools.run import execution
from tests.support.batches import Probe, add, calls_of, run, spin, statuses
from tests.support.processes import wait_dead
from tests.support.waiting import wait_until


def test_each_kind_is_stopped_in_its_way_and_finished_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished: whole. Listening: partial or cancelled. Deaf: abandoned. Its child: cut. Isolated: killed."""
    # Who obeys has all the time that a busy machine may need to let it: how it is stopped is looked at, not how soon.
    monkeypatch.setattr(execution, "_UNBLOCK_TIMEOUT", 30)
    monkeypatch.setattr(execution, "_KILL_TIMEOUT", 30)
    deaf, deaf_task = DeafTool(), DeafCoroutine()
    pids: list[int] = []
    yielded, waiting = threading.Event(), threading.Event()

    @tool
    def finished() -> str:
        return "whole"

    @tool(grace=30)
    def listening() -> None:
        while True:
            checkpoint()
            current_token().sleep(30)

    @tool(grace=30)
    def handing_back(ctx: ToolContext) -> str:
        token = ctx.token
        waiting.set()
        token.wait(30)
        return f"what I have ({token.reason})"

    @tool(grace=30)
    def generator() -> Iterator[str]:
        yield "one"
        yielded.set()
        while True:
            yield ""
            threading.Event().wait(0.001)

    @tool(grace=30)
    async def coroutine() -> None:
        await asyncio.sleep(60)

    @tool
    async def deaf_coroutine() -> Any:
        return await deaf_task()

    @tool
    def deaf_function() -> Any:
        return deaf()

    @tool
    def plain_child() -> int:
        process = subprocess.Popen(["sleep", "60"])
        pids.append(process.pid)
        return process.wait()

    @tool(grace=30)
    async def our_process() -> bytes:
        result = await run_process("echo begun; sleep 60", on_output=lambda _: begun.set())
        return result.stdout

    begun = threading.Event()
    tools = [
        finished,
        listening,
        handing_back,
        generator,
        coroutine,
        deaf_coroutine,
        deaf_function,
        plain_child,
        our_process,
        spin,
    ]

    async def main() -> None:
        try:
            await stop_and_check()
        finally:
            deaf_task.release()

    async def stop_and_check() -> None:
        probe = Probe(*tools)
        outcomes = await probe.stopped_when(
            lambda: (
                begun.is_set()
                and yielded.is_set()
                and waiting.is_set()
                and deaf.started.is_set()
                and deaf_task.started.is_set()
                and pids
                and len(probe.told(ToolStarted)) == len(tools)
                and len(probe.told(ToolFinished)) == 1
            )
        )
        by_name = {o.name: o for o in outcomes}
        assert {name: o.status for name, o in by_name.items()} == {
            "finished": "completed",
            "listening": "cancelled",
            "handing_back": "partial",
            "generator": "partial",
            "coroutine": "cancelled",
            "deaf_coroutine": "abandoned",
            "deaf_function": "abandoned",
            "plain_child": "partial",
            "our_process": "partial",
            "spin": "cancelled",
        }
        assert by_name["handing_back"].content == "what I have (interrupt)"
        assert by_name["generator"].content == "one"
        assert by_name["our_process"].content == "begun\n"
        assert by_name["plain_child"].stop_steps == ["cut"]
        assert by_name["spin"].stop_steps == ["killed"]
        assert by_name["deaf_function"].stop_steps == ["abandoned"]
        assert all(o.reason == "interrupt" and o.detail == "typed" for o in outcomes if o.name != "finished")
        assert len(probe.told(ToolCancelling)) == len(tools) - 1
        finished_events = {event.outcome.name: event.after for event in probe.told(ToolFinished)}
        assert finished_events["finished"] is None
        assert finished_events["deaf_function"] < 10
        deaf.release()
        deaf_task.release()
        await asyncio.to_thread(wait_until, lambda: len(probe.late) == 2)
        await asyncio.sleep(0)
        assert {o.name for o in probe.late} == {"deaf_coroutine", "deaf_function"}
        assert by_name["deaf_function"].late is not None
        assert by_name["deaf_function"].late.content == "late"
        assert by_name["deaf_function"].content == ""
        assert len(probe.told(ToolFinishedLate)) == 2

    try:
        run(main())
    finally:
        deaf.release()
    for pid in pids:
        wait_dead(pid)
    wait_until(lambda: len(abandoned) == 0)


def test_nothing_starts_after_the_stop() -> None:
    """Calls behind a full slot, an exclusive one or an approval are not started, and say so."""
    gate = DeafTool()
    started: list[str] = []

    @tool(exclusive=True)
    def blocker() -> None:
        gate()

    @tool
    def behind() -> None:
        started.append("behind")

    @tool(approval=True)
    def unapproved() -> None:
        started.append("unapproved")

    async def never_answered(request: Any) -> bool:
        await asyncio.sleep(60)
        return True

    async def main() -> None:
        probe = Probe(blocker, behind, unapproved, answer=never_answered)
        outcomes = await probe.stopped_when(lambda: gate.started.is_set() and probe.asked)
        assert statuses(outcomes) == ["abandoned", "not_started", "denied"]
        assert outcomes[1].reason == "interrupt"
        assert outcomes[2].reason == "interrupt"
        early = Probe(behind)
        early.token.cancel("stop")
        assert statuses(await early.run()) == ["not_started"]

    try:
        run(main())
    finally:
        gate.release()
    assert started == []
    wait_until(lambda: len(abandoned) == 0)


def test_a_deaf_call_gets_no_grace_and_a_listening_one_its_own() -> None:
    """Who never looked at its token is not waited for; who did may use its own grace."""
    deaf, listens = DeafTool(), threading.Event()

    @tool(grace=30)
    def deaf_function() -> None:
        deaf()

    async def main() -> None:
        @tool(grace=30)
        def tidy(ctx: ToolContext) -> str:
            token = ctx.token
            listens.set()
            token.wait(30)
            wait_until(lambda: any(event.outcome.name == "deaf_function" for event in probe.told(ToolFinished)))
            threading.Event().wait(0.3)  # longer than the batch's own grace
            return "tidied up"

        probe = Probe(deaf_function, tidy)
        outcomes = await probe.stopped_when(lambda: deaf.started.is_set() and listens.is_set())
        after = {event.outcome.name: event.after for event in probe.told(ToolFinished)}
        assert statuses(outcomes) == ["abandoned", "partial"]
        assert outcomes[1].content == "tidied up"
        assert after["deaf_function"] < after["tidy"]

    try:
        run(main())
    finally:
        deaf.release()
    wait_until(lambda: len(abandoned) == 0)


def test_a_steer_breaks_the_step_but_not_what_must_finish() -> None:
    """Breakable calls see the reason and hand back what they have; on_steer="finish" finishes; nothing new starts."""
    go_on, paying, searching = threading.Event(), threading.Event(), threading.Event()
    started: list[str] = []

    @tool(on_steer="finish")
    def payment() -> str:
        paying.set()
        go_on.wait(30)
        assert not current_token().is_cancelled
        return "paid"

    @tool(grace=30)
    def search(ctx: ToolContext) -> str:
        token = ctx.token
        searching.set()
        token.wait(30)
        return f"3 results, then {token.reason}"

    @tool
    def queued() -> None:
        started.append("queued")

    async def main() -> None:
        probe = Probe(payment, search, queued, max_parallel=2)

        def steer() -> None:
            wait_until(lambda: paying.is_set() and searching.is_set())
            probe.step.cancel("steer")
            wait_until(lambda: len(probe.told(ToolFinished)) == 2)
            go_on.set()

        threading.Thread(target=steer).start()
        outcomes = await probe.run()
        assert [(o.status, o.content) for o in outcomes] == [
            ("completed", "paid"),
            ("partial", "3 results, then steer"),
            ("not_started", ""),
        ]

    run(main())
    assert started == []


def test_a_stop_after_a_steer_stops_what_was_left_to_finish() -> None:
    """on_steer="finish" protects from a steer, not from a stop."""
    paying = threading.Event()

    @tool(on_steer="finish", grace=30)
    def payment(ctx: ToolContext) -> str:
        token = ctx.token
        paying.set()
        token.wait(30)
        return "half"

    async def main() -> None:
        probe = Probe(payment)
        probe.step.cancel("steer")
        outcomes = await probe.stopped_when(paying.is_set, "stop")
        assert (outcomes[0].status, outcomes[0].reason) == ("partial", "stop")

    run(main())


def test_one_call_is_stopped_alone() -> None:
    """cancel_call() ends one; the others do not notice."""
    begun: list[str] = []
    go_on = threading.Event()

    @tool(grace=30)
    def patient(ctx: ToolContext) -> str:
        token = ctx.token
        begun.append(ctx.call_id)
        if ctx.call_id == "call_0":
            token.wait(30)
        else:
            go_on.wait(30)
        return "whole"

    async def main() -> None:
        probe = Probe(patient, calls=calls_of("patient", "patient"))

        def stop() -> None:
            wait_until(lambda: len(begun) == 2)
            assert probe.batch.cancel_call("call_0", "stop", detail="by hand")
            assert not probe.batch.cancel_call("call_0")
            assert not probe.batch.cancel_call("nobody")
            go_on.set()

        threading.Thread(target=stop).start()
        outcomes = await probe.run()
        assert [(o.status, o.reason) for o in outcomes] == [("partial", "stop"), ("completed", None)]

    run(main())


def test_a_foreign_cancellation_wins_after_all_outcomes_are_there() -> None:
    """wait_for() around the batch raises TimeoutError; each call has its outcome, with reason external."""
    deaf = DeafTool()

    @tool
    def deaf_function() -> None:
        deaf()

    @tool
    async def coroutine() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        probe = Probe(
            deaf_function,
            coroutine,
            add,
            calls=[*calls_of("deaf_function", "coroutine"), ToolCall("a", "add", '{"a": 1}')],
        )
        task = asyncio.ensure_future(probe.batch.run())
        await asyncio.to_thread(wait_until, lambda: deaf.started.is_set() and probe.told(ToolFinished))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert statuses(probe.batch.settle_all()) == ["abandoned", "cancelled", "completed"]
        assert [o.reason for o in probe.batch.settle_all()] == ["external", "external", None]

    try:
        run(main())
    finally:
        deaf.release()
    wait_until(lambda: len(abandoned) == 0)


def test_a_loop_that_is_torn_down_settles_its_calls() -> None:
    """asyncio.run() ends while a batch runs: its calls are told and settled, not forgotten."""
    deaf = DeafTool()
    probes: list[Probe] = []

    @tool
    def deaf_function() -> None:
        deaf()

    async def main() -> None:
        probes.append(Probe(deaf_function))
        task = asyncio.ensure_future(probes[0].batch.run())
        await asyncio.to_thread(deaf.started.wait, 30)
        assert not task.done()

    try:
        asyncio.run(main())
        assert statuses(probes[0].batch.settle_all()) == ["abandoned"]
    finally:
        deaf.release()
    wait_until(lambda: len(abandoned) == 0 and probes[0].late)


def test_an_abandoned_call_can_neither_report_nor_ask() -> None:
    """What it says when its turn is over belongs to no turn."""
    gate, begun = threading.Event(), threading.Event()
    refused: list[BaseException] = []
    done = threading.Event()

    @tool
    def late_talker(ctx: ToolContext) -> None:
        begun.set()
        gate.wait(30)
        ctx.report("still here")
        try:
            ctx.ask("Hello?")
        except BaseException as exc:
            refused.append(exc)
        done.set()

    async def ask(question: str, choices: list[str] | None) -> str:
        pytest.fail("an abandoned call has asked")

    async def main() -> None:
        probe = Probe(late_talker, ask=ask)
        assert statuses(await probe.stopped_when(begun.is_set)) == ["abandoned"]
        gate.set()
        await asyncio.to_thread(done.wait, 30)
        assert probe.told(ToolProgress) == []

    run(main())
    assert isinstance(refused[0], Cancelled)
    wait_until(lambda: len(abandoned) == 0)


def test_abandoned_calls_of_one_batch_take_no_slot_from_the_next() -> None:
    """Deaf calls filled every slot; the next batch starts at once."""
    deaf = DeafTool()

    @tool
    def deaf_function() -> None:
        deaf()

    async def main() -> None:
        probe = Probe(deaf_function, calls=calls_of(*["deaf_function"] * 8), max_parallel=4)
        assert statuses(await probe.stopped_when(lambda: deaf.calls == 4)) == ["abandoned"] * 4 + ["not_started"] * 4
        assert statuses(await Probe(add, calls=[ToolCall("a", "add", '{"a": 1}')]).run()) == ["completed"]

    try:
        run(main())
    finally:
        deaf.release()
    wait_until(lambda: len(abandoned) == 0)


def test_a_call_whose_thread_has_not_begun_it_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the stop may come before the thread does: the tool has no effects, and is told to have none."""
    deaf = DeafTool()
    jobs: list[Callable[[], object]] = []

    @tool
    def deaf_function() -> Any:
        return deaf()

    async def main() -> Any:
        probe = Probe(deaf_function)
        with monkeypatch.context() as patch:
            patch.setattr(pool, "submit", jobs.append)  # a thread that comes late
            outcomes = await probe.stopped_when(lambda: jobs)
        jobs[0]()
        await asyncio.sleep(0)
        assert probe.late == []
        return outcomes

    [outcome] = run(main())
    assert (outcome.status, outcome.reason, outcome.may_go_on) == ("cancelled", "interrupt", False)
    assert deaf.calls == 0
    assert len(abandoned) == 0
