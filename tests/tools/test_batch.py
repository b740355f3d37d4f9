"""A batch: every call has one honest outcome, in order, and a stop ends them all, each in its way."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from halter import CancellationToken, Cancelled, ToolContext, ToolOutcome, checkpoint, current_token, run_process, tool
from halter.cancel import abandoned, families, worker
from halter.models.model import ToolCall
from halter.testing import DeafCoroutine, DeafTool, interrupt_everywhere
from halter.tools import collect_tools
from halter.tools.batch import Batch, Surroundings
from halter.tools.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ToolCancelling,
    ToolEvent,
    ToolFinished,
    ToolFinishedLate,
    ToolProgress,
    ToolStarted,
)
from tests.helpers import wait_dead, wait_until


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(isolate=True)
def spin() -> None:
    """Never end, and never listen."""
    while True:
        pass


@tool(isolate=True)
def isolated_add(a: int) -> int:
    """Add one, elsewhere."""
    return a + 1


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


def calls_of(*names: str, arguments: str = "{}") -> list[ToolCall]:
    return [ToolCall(f"call_{number}", name, arguments) for number, name in enumerate(names)]


class Probe:
    """A batch of some tools, with one token, and everything that it told."""

    def __init__(self, *tools: Any, calls: list[ToolCall] | None = None, **options: Any) -> None:
        self.token = CancellationToken(name="turn")
        self.step = self.token.child("step")
        self.events: list[ToolEvent] = []
        self.late: list[ToolOutcome] = []
        self.tools = collect_tools(tools)
        most = options.pop("most_at_once", 32)
        around = Surroundings(self.tools, listener=self.events.append, late_hook=self.late.append, **options)
        self.batch = Batch(calls or calls_of(*self.tools), around, token=self.token, step=self.step, most_at_once=most)

    async def run(self) -> list[ToolOutcome]:
        outcomes = await self.batch.run()
        await asyncio.sleep(0)  # what was told last is still on its way
        return outcomes

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    async def stopped_when(self, condition: Callable[[], object], reason: str = "interrupt") -> list[ToolOutcome]:
        """Run it, and stop it from another thread as soon as *condition* holds."""

        def stop() -> None:
            wait_until(condition)
            self.token.cancel(reason, detail="typed")

        threading.Thread(target=stop).start()
        return await self.run()


def statuses(outcomes: list[ToolOutcome]) -> list[str]:
    return [outcome.status for outcome in outcomes]


# -- without a stop ------------------------------------------------------------------------------------------------


def test_results_come_in_the_order_of_the_calls() -> None:
    """The first call ends last, and is the first outcome all the same."""

    async def main() -> None:
        gate = asyncio.Event()

        @tool
        async def slow() -> str:
            await gate.wait()
            return "slow"

        @tool
        def quick() -> str:
            asyncio.run_coroutine_threadsafe(_set(gate), loop)
            return "quick"

        loop = asyncio.get_running_loop()
        outcomes = await Probe(slow, quick).run()
        assert [(o.call_id, o.status, o.content) for o in outcomes] == [
            ("call_0", "completed", "slow"),
            ("call_1", "completed", "quick"),
        ]

    run(main())


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_every_kind_of_function_gives_its_result() -> None:
    """Functions, coroutines, generators of both kinds, and functions in front of coroutines."""

    @tool
    def function() -> str:
        return "function"

    @tool
    async def coroutine() -> str:
        await asyncio.sleep(0)
        return "coroutine"

    @tool
    def generator() -> Iterator[str]:
        yield "one"
        yield "two"
        return "three"

    @tool
    async def async_generator() -> AsyncIterator[str]:
        yield "one"
        await asyncio.sleep(0)
        yield "two"

    @tool
    def wrapper() -> Any:
        async def inner() -> str:
            return "awaited"

        return inner()

    async def main() -> None:
        probe = Probe(function, coroutine, generator, async_generator, wrapper, isolated_add)
        probe.batch = Batch(
            [
                *calls_of("function", "coroutine", "generator", "async_generator", "wrapper"),
                ToolCall("i", "isolated_add", '{"a": 4}'),
            ],
            Surroundings(probe.tools),
            token=probe.token,
        )
        outcomes = await probe.run()
        assert statuses(outcomes) == ["completed"] * 6
        assert [o.content for o in outcomes] == ["function", "coroutine", "one\ntwo\nthree", "one\ntwo", "awaited", "5"]
        assert all(o.started_at and o.ended_at and o.ended_at >= o.started_at for o in outcomes)

    run(main())


def test_what_goes_wrong_is_an_outcome() -> None:
    """Errors, bad arguments, unknown tools and even sys.exit() are failed calls; the others are whole."""

    @tool
    def fails() -> None:
        raise ValueError("on purpose")

    @tool
    async def fails_later() -> None:
        raise LookupError

    @tool
    def exits() -> None:
        raise SystemExit(3)

    async def main() -> None:
        calls = [
            *calls_of("fails", "fails_later", "exits", "no_such"),
            ToolCall("bad", "add", '{"a": "x"}'),
            ToolCall("good", "add", '{"a": 2}'),
        ]
        outcomes = await Probe(fails, fails_later, exits, add, calls=calls).run()
        assert statuses(outcomes) == ["failed"] * 5 + ["completed"]
        details = [o.detail for o in outcomes]
        assert details[:2] == ["ValueError: on purpose", "LookupError"]
        assert details[2] == "SystemExit: 3"
        assert "no_such" in details[3]
        assert "a" in details[4]
        assert outcomes[3].started_at is None
        assert outcomes[4].started_at is None

    run(main())


def test_the_context_reports_asks_and_delegates() -> None:
    """Progress is told while the call runs; questions come back as answers, in threads and in tasks."""

    @tool
    def sync_tool(ctx: ToolContext) -> str:
        ctx.report("half")
        return f"{ctx.call_id} {ctx.session_id} {ctx.ask('Sure?', ['yes', 'no'])} {ctx.delegate('agent', 'text')}"

    @tool
    async def async_tool(ctx: ToolContext) -> str:
        return f"{await ctx.ask('Sure?')} {await ctx.delegate('agent', 'text')}"

    async def ask(question: str, choices: list[str] | None) -> str:
        return choices[0] if choices else question

    async def delegate(agent: Any, text: str) -> str:
        return f"{agent}:{text}"

    async def main() -> None:
        probe = Probe(sync_tool, async_tool, session_id="s1", ask=ask, delegate=delegate)
        outcomes = await probe.run()
        assert [o.content for o in outcomes] == ["call_0 s1 yes agent:text", "Sure? agent:text"]
        assert [event.text for event in probe.told(ToolProgress)] == ["half"]

    run(main())


def test_events_tell_the_story_in_order() -> None:
    """Started before finished, once each, and a listener that fails stops nobody."""

    async def main() -> None:
        probe = Probe(add, calls=[ToolCall("c", "add", '{"a": 1}')])
        await probe.run()
        assert [type(event) for event in probe.events] == [ToolStarted, ToolFinished]
        assert probe.events[1].after is None  # type: ignore[union-attr]

        def broken(event: ToolEvent) -> None:
            raise OSError("the listener is gone")

        around = Surroundings(probe.tools, listener=broken)
        outcomes = await Batch([ToolCall("c", "add", '{"a": 1}')], around, token=probe.token).run()
        assert statuses(outcomes) == ["completed"]

    run(main())


def test_the_limit_exclusive_tools_and_paths_keep_calls_apart(tmp_path: Path) -> None:
    """Never more than the limit at once, an exclusive call alone, and one path's calls in the order of the calls."""
    running: set[str] = set()
    seen: list[set[str]] = []
    order: list[str] = []
    lock = threading.Lock()

    def work(name: str) -> None:
        with lock:
            running.add(name)
            seen.append(set(running))
            order.append(name)
        threading.Event().wait(0.01)
        with lock:
            running.discard(name)

    @tool
    def plain(n: int) -> None:
        work(f"plain {n}")

    @tool(exclusive=True)
    def alone() -> None:
        work("alone")

    @tool
    def touch(path: Path, n: int) -> None:
        work(f"touch {n}")

    async def main() -> None:
        calls = [ToolCall(f"p{n}", "plain", f'{{"n": {n}}}') for n in range(10)]
        calls.insert(5, ToolCall("x", "alone", "{}"))
        for n, name in enumerate(("a", "a", "sub/../a", "")):
            calls.append(ToolCall(f"t{n}", "touch", f'{{"path": "{tmp_path / name}", "n": {n}}}'))
        probe = Probe(plain, alone, touch, calls=calls, most_at_once=3)
        assert statuses(await probe.run()) == ["completed"] * 15

    run(main())
    assert max(len(names) for names in seen) <= 3
    assert all(names == {"alone"} for names in seen if "alone" in names)
    touches = [name for name in order if name.startswith("touch")]
    assert touches == ["touch 0", "touch 1", "touch 2", "touch 3"]
    assert not any(sum(name.startswith("touch") for name in names) > 1 for names in seen)


def test_approval_is_asked_for_and_obeyed() -> None:
    """Granted calls run; denied ones do not, and say why; without a policy nobody can be asked."""

    @tool(approval=True)
    def delete(name: str) -> str:
        return f"deleted {name}"

    calls = [ToolCall("a", "delete", '{"name": "a"}'), ToolCall("b", "delete", '{"name": "b"}')]

    async def answer(request: Any) -> bool:
        return bool(request.arguments["name"] == "a")

    async def main() -> None:
        probe = Probe(delete, calls=calls, approve="ask", ask_approval=answer)
        outcomes = await probe.run()
        assert statuses(outcomes) == ["completed", "denied"]
        assert len(probe.told(ApprovalAsked)) == 2
        assert [event.granted for event in probe.told(ApprovalAnswered)] == [True, False]
        assert statuses(await Probe(delete, calls=calls, approve="auto").run()) == ["completed"] * 2
        nobody = await Probe(delete, calls=calls).run()
        assert statuses(nobody) == ["denied"] * 2
        assert "nobody" in nobody[0].detail

    run(main())


def test_a_timeout_ends_one_call() -> None:
    """Its time starts when it is launched, not while it waits for its slot; the others go on."""

    @tool(timeout=0.05)
    def slow() -> str:
        current_token().wait(30)
        return "as far as I got"

    @tool(timeout=0.05)
    def deaf_and_slow() -> None:
        deaf()

    @tool(exclusive=True)
    def first() -> str:
        threading.Event().wait(0.1)
        return "first"

    deaf = DeafTool()

    async def main() -> None:
        probe = Probe(first, slow, deaf_and_slow)
        outcomes = await probe.run()
        assert statuses(outcomes) == ["completed", "timed_out", "timed_out"]
        assert outcomes[1].content == "as far as I got"
        assert outcomes[1].rungs == ["cooperated"]
        assert outcomes[2].rungs == ["abandoned"]
        assert "may still have effects" in outcomes[2].to_message().text

    try:
        run(main())
    finally:
        deaf.release()
    wait_until(lambda: len(abandoned) == 0)


# -- the stop ------------------------------------------------------------------------------------------------------


def test_each_kind_is_stopped_in_its_way_and_finished_results_are_kept() -> None:
    """Finished: whole. Listening: partial or cancelled. Deaf: abandoned. Its child: cut. Isolated: killed."""
    deaf, deaf_task = DeafTool(), DeafCoroutine()
    pids: list[int] = []
    yielded = threading.Event()

    @tool
    def finished() -> str:
        return "whole"

    @tool
    def listening() -> None:
        while True:
            checkpoint()
            current_token().sleep(30)

    @tool
    def handing_back(ctx: ToolContext) -> str:
        ctx.token.wait(30)
        return f"what I have ({ctx.token.reason})"

    @tool
    def generator() -> Iterator[str]:
        yield "one"
        yielded.set()
        while True:
            yield ""
            threading.Event().wait(0.001)

    @tool
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

    @tool
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
        probe = Probe(*tools)
        outcomes = await probe.stopped_when(
            lambda: (
                begun.is_set()
                and yielded.is_set()
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
        assert by_name["plain_child"].rungs == ["cut"]
        assert by_name["spin"].rungs == ["killed"]
        assert by_name["deaf_function"].rungs == ["abandoned"]
        assert all(o.reason == "interrupt" and o.detail == "typed" for o in outcomes if o.name != "finished")
        assert len(probe.told(ToolCancelling)) == len(tools) - 1
        finished_events = {event.outcome.name: event.after for event in probe.told(ToolFinished)}
        assert finished_events["finished"] is None
        assert finished_events["deaf_function"] < 1
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
        probe = Probe(blocker, behind, unapproved, approve="ask", ask_approval=never_answered)
        outcomes = await probe.stopped_when(lambda: gate.started.is_set() and probe.told(ApprovalAsked))
        assert statuses(outcomes) == ["abandoned", "not_started", "denied"]
        assert outcomes[1].reason == "interrupt"
        assert outcomes[2].reason == "interrupt"
        assert [event.granted for event in probe.told(ApprovalAnswered)] == [False]
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
    deaf = DeafTool()

    @tool(grace=30)
    def deaf_function() -> None:
        deaf()

    @tool(grace=30)
    def tidy(ctx: ToolContext) -> str:
        ctx.token.wait(30)
        threading.Event().wait(0.3)  # longer than the batch's own grace
        return "tidied up"

    async def main() -> None:
        probe = Probe(deaf_function, tidy)
        outcomes = await probe.stopped_when(lambda: deaf.started.is_set() and len(probe.told(ToolStarted)) == 2)
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
    go_on = threading.Event()
    started: list[str] = []

    @tool(on_steer="finish")
    def payment() -> str:
        go_on.wait(30)
        assert not current_token().is_cancelled
        return "paid"

    @tool
    def search(ctx: ToolContext) -> str:
        ctx.token.wait(30)
        return f"3 results, then {ctx.token.reason}"

    @tool
    def queued() -> None:
        started.append("queued")

    async def main() -> None:
        probe = Probe(payment, search, queued, most_at_once=2)

        def steer() -> None:
            wait_until(lambda: len(probe.told(ToolStarted)) == 2)
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

    @tool(on_steer="finish")
    def payment(ctx: ToolContext) -> str:
        ctx.token.wait(30)
        return "half"

    async def main() -> None:
        probe = Probe(payment)
        probe.step.cancel("steer")
        outcomes = await probe.stopped_when(lambda: probe.told(ToolStarted), "stop")
        assert (outcomes[0].status, outcomes[0].reason) == ("partial", "stop")

    run(main())


def test_one_call_is_stopped_alone() -> None:
    """cancel_call() ends one; the others do not notice."""

    @tool
    def patient(ctx: ToolContext) -> str:
        ctx.token.wait(0.2)
        return "whole"

    async def main() -> None:
        probe = Probe(patient, calls=calls_of("patient", "patient"))

        def stop() -> None:
            wait_until(lambda: len(probe.told(ToolStarted)) == 2)
            assert probe.batch.cancel_call("call_0", "stop", detail="by hand")
            assert not probe.batch.cancel_call("call_0")
            assert not probe.batch.cancel_call("nobody")

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
        assert statuses(probe.batch.outcomes) == ["abandoned", "cancelled", "completed"]
        assert [o.reason for o in probe.batch.outcomes] == ["external", "external", None]

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
        assert statuses(probes[0].batch.outcomes) == ["abandoned"]
    finally:
        deaf.release()
    wait_until(lambda: len(abandoned) == 0 and probes[0].late)


def test_an_abandoned_call_can_neither_report_nor_ask() -> None:
    """What it says when its turn is over belongs to no turn."""
    gate = threading.Event()
    refused: list[BaseException] = []
    done = threading.Event()

    @tool
    def late_talker(ctx: ToolContext) -> None:
        gate.wait(30)
        ctx.report("still here")
        try:
            ctx.ask("Hello?")
        except BaseException as exc:  # noqa: BLE001
            refused.append(exc)
        done.set()

    async def ask(question: str, choices: list[str] | None) -> str:
        pytest.fail("an abandoned call has asked")

    async def main() -> None:
        probe = Probe(late_talker, ask=ask)
        assert statuses(await probe.stopped_when(lambda: probe.told(ToolStarted))) == ["abandoned"]
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
        probe = Probe(deaf_function, calls=calls_of(*["deaf_function"] * 8), most_at_once=4)
        assert statuses(await probe.stopped_when(lambda: deaf.calls == 4)) == ["abandoned"] * 4 + ["not_started"] * 4
        assert statuses(await Probe(add, calls=[ToolCall("a", "add", '{"a": 1}')]).run()) == ["completed"]

    try:
        run(main())
    finally:
        deaf.release()
    wait_until(lambda: len(abandoned) == 0)


# -- everywhere ----------------------------------------------------------------------------------------------------


@tool
def listens() -> str:
    """Listen for a moment."""
    current_token().wait(0.002)
    return "listened"


@tool
def plain_child() -> int:
    """Wait for a child."""
    return subprocess.Popen(["sleep", "0.005"]).wait()


@tool
async def awaits() -> str:
    """Await a moment."""
    await asyncio.sleep(0.002)
    return "awaited"


@tool
def yields() -> Iterator[str]:
    """Yield."""
    yield "one"
    yield "two"


@tool
def fails() -> None:
    """Fail."""
    raise ValueError("on purpose")


@tool(approval=True)
def needs_approval() -> str:
    """Run if allowed."""
    return "allowed"


@tool(exclusive=True)
def alone() -> str:
    """Run alone."""
    return "alone"


EVERYWHERE = [listens, plain_child, awaits, yields, fails, needs_approval, isolated_add, alone, add]
WHOLE = {
    "listens": "listened",
    "plain_child": "0",
    "awaits": "awaited",
    "yields": "one\ntwo",
    "needs_approval": "allowed",
    "isolated_add": "2",
    "alone": "alone",
    "add": "2",
}


async def approve_soon(request: Any) -> bool:
    await asyncio.sleep(0)
    return True


def check_outcomes(outcomes: list[ToolOutcome]) -> None:
    assert [o.name for o in outcomes] == [t.name for t in EVERYWHERE]
    for outcome in outcomes:
        if outcome.status == "completed":
            assert outcome.content == WHOLE[outcome.name]
            assert outcome.reason is None
        elif outcome.status == "failed":
            assert outcome.name == "fails"
        else:
            assert outcome.reason in ("interrupt", "steer", "external"), outcome
            assert outcome.status in ("partial", "cancelled", "not_started", "abandoned", "denied")
        assert (outcome.started_at is None) == (outcome.status in ("not_started", "denied")), outcome
        assert outcome.to_message().call_id == outcome.call_id


def everything() -> Probe:
    calls = [ToolCall(t.name, t.name, '{"a": 1}' if t in (add, isolated_add) else "{}") for t in EVERYWHERE]
    return Probe(*EVERYWHERE, calls=calls, approve="ask", ask_approval=approve_soon)


async def a_stop(token: CancellationToken) -> None:
    probe = everything()
    token.on_cancel(lambda: probe.token.cancel("interrupt"))
    check_outcomes(await probe.run())


async def a_steer(token: CancellationToken) -> None:
    probe = everything()
    token.on_cancel(lambda: probe.step.cancel("steer"))
    check_outcomes(await probe.run())


async def a_foreign_cancellation(token: CancellationToken) -> None:
    probe = everything()
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(probe.run())
    token.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))
    await asyncio.wait([task])
    check_outcomes(probe.batch.outcomes)


def nothing_is_left() -> None:
    wait_until(lambda: len(abandoned) == 0)
    wait_until(lambda: len(families.roots()) <= len(worker._idle))


@pytest.mark.parametrize("scenario", [a_stop, a_steer, a_foreign_cancellation])
def test_at_every_point(scenario: Callable[[CancellationToken], Any]) -> None:
    """Wherever it lands: one outcome for each call, in order, none of them a lie, and nothing is left behind."""
    report = interrupt_everywhere(scenario, check=nothing_is_left, repeat=1)
    assert len(report.points) > 400
    assert len(report.missed) < len(report.points) / 5
