"""A batch: every call has one honest outcome, in order, and calls that clash are kept apart."""

from __future__ import annotations

import asyncio
import functools
import json
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from halter import ToolContext, ToolOutcome, current_token, tool
from halter.cancel import CancellationToken, abandoned
from halter.events.tools import (
    ApprovalAnswered,
    ToolEvent,
    ToolFinished,
    ToolProgress,
    ToolStarted,
)
from halter.models.types import ToolCall
from halter.testing import DeafTool
from halter.tools.run.batch import Batch, BatchEnvironment
from tests.support.batches import Probe, add, calls_of, isolated_add, run, statuses
from tests.support.time_limits import call_limited
from tests.support.waiting import wait_until


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
    def generator() -> Generator[str, None, str]:
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
            BatchEnvironment(probe.tools),
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

    async def delegate(agent: Any, text: str, _token: CancellationToken) -> str:
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

        around = BatchEnvironment(probe.tools, listener=broken)
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
        probe = Probe(plain, alone, touch, calls=calls, max_parallel=3)
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
        probe = Probe(delete, calls=calls, answer=answer)
        outcomes = await probe.run()
        assert statuses(outcomes) == ["completed", "denied"]
        assert len(probe.asked) == 2
        assert probe.told(ApprovalAnswered) == []  # who was asked reports it
        probe = Probe(delete, calls=calls, approve="auto")
        assert statuses(await probe.run()) == ["completed"] * 2
        assert [event.granted for event in probe.told(ApprovalAnswered)] == [True, True]
        nobody = await Probe(delete, calls=calls).run()
        assert statuses(nobody) == ["denied"] * 2
        assert "nobody" in nobody[0].detail

    run(main())


def test_a_timeout_ends_one_call() -> None:
    """Its time starts when it is launched, not while it waits for its slot; the others go on."""

    def attempt(seconds: float) -> tuple[list[ToolOutcome], list[str]]:
        """The outcomes, and which of the two had begun within their limit."""
        begun: list[str] = []

        @tool(timeout=seconds, grace=30)
        def slow() -> str:
            token = current_token()  # from here on it listens
            if not token.is_cancelled:
                begun.append("slow")
            token.wait(60)
            return "as far as I got"

        @tool(timeout=seconds)
        def deaf_and_slow() -> None:
            begun.append("deaf")
            deaf()

        @tool(exclusive=True)
        def first() -> str:
            threading.Event().wait(seconds + 0.1)
            return "first"

        async def main() -> list[ToolOutcome]:
            return await Probe(first, slow, deaf_and_slow).run()

        with DeafTool() as deaf:
            return run(main()), begun

    (outcomes, _), _ = call_limited(attempt, lambda result: len(result[1]) == 2)
    assert statuses(outcomes) == ["completed", "timed_out", "timed_out"]
    assert outcomes[1].content == "as far as I got"
    assert outcomes[1].stop_steps == ["cooperated"]
    assert outcomes[2].stop_steps == ["abandoned"]
    assert "may still have effects" in outcomes[2].to_message().text
    wait_until(lambda: len(abandoned) == 0)


def test_a_rule_decides_which_calls_need_approval() -> None:
    """Only the calls that the rule names are asked about, with its reason; the model is told that reason too."""

    def rule(arguments: Mapping[str, Any]) -> str | bool:
        return "that is the root" if arguments["path"] == "/" else False

    @tool(approval=rule)
    def delete(path: str) -> str:
        return f"deleted {path}"

    calls = [ToolCall(name, "delete", json.dumps({"path": name})) for name in ("x", "/")]
    asked: list[str] = []

    async def answer(request: Any) -> bool:
        asked.append(request.reason)
        return False

    async def main() -> None:
        outcomes = await Probe(delete, calls=calls, answer=answer).run()
        assert statuses(outcomes) == ["completed", "denied"]
        assert asked == ["that is the root"]
        assert outcomes[1].detail.startswith("that is the root; ")

    run(main())


@pytest.mark.parametrize("is_async", [True, False])
def test_a_tool_calls_another(is_async: bool) -> None:
    """The other tool runs as if called by the model, approval and all; the log knows only the outer call."""

    @tool(approval=True)
    def inner(x: int, ctx: ToolContext) -> str:
        ctx.report("at it")
        return f"inner {x} in {ctx.call_id}"

    @tool
    async def outer_async(ctx: ToolContext) -> str:
        outcome = await ctx.call(inner, '{"x": 1}')
        return f"{outcome.status}: {outcome.content}{outcome.detail}"

    @tool
    def outer(ctx: ToolContext) -> str:
        outcome = ctx.call(inner, '{"x": 1}')
        return f"{outcome.status}: {outcome.content}{outcome.detail}"

    async def main() -> None:
        one = outer_async if is_async else outer
        probe = Probe(one, approve="auto")
        [outcome] = await probe.run()
        assert outcome.content == "completed: inner 1 in call_0.1"
        assert [event.call_id for event in probe.told(ToolStarted)] == ["call_0"]
        assert [(event.call_id, event.text) for event in probe.told(ToolProgress)] == [("call_0", "inner: at it")]
        [outcome] = await Probe(one).run()
        assert str(outcome.content).startswith("denied: ")

    run(main())


def test_a_stop_reaches_a_tool_that_a_tool_has_called() -> None:
    """The inner call is stopped with the outer one, and the outer one still hears what came of it."""

    @tool(grace=30)
    def inner(ctx: ToolContext) -> str:
        token = ctx.token  # from here on it listens; the report has it stopped
        ctx.report("at it")
        token.wait(60)
        return "as far as it got"

    @tool(grace=30)
    async def outer(ctx: ToolContext) -> str:
        outcome = await ctx.call(inner, "{}")
        return f"{outcome.status}: {outcome.content}"

    async def main() -> None:
        probe = Probe(outer)
        [outcome] = await probe.stopped_when(lambda: probe.told(ToolProgress))
        assert (outcome.status, outcome.content) == ("partial", "partial: as far as it got")

    run(main())


def passed_on(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate as logging and tracing do: a plain function that calls the other."""

    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


@tool
@passed_on
def pages(count: int) -> Iterator[str]:
    for number in range(count):
        yield f"page {number}\n"


@tool
@passed_on
async def async_pages(count: int) -> AsyncIterator[str]:
    for number in range(count):
        yield f"page {number}\n"


@pytest.mark.parametrize("decorated", [pages, async_pages])
def test_a_decorated_generator_runs(decorated: Any) -> None:
    """A generator behind a plain decorator never ran, and the model got "<generator object ...>" as its result."""
    probe = Probe(decorated, calls=calls_of(decorated.name, arguments='{"count": 2}'))
    [outcome] = run(probe.run())
    assert (outcome.status, outcome.content) == ("completed", "page 0\npage 1\n")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_decorated_generator_is_stopped_between_its_yields(is_async: bool) -> None:
    """It keeps what it has yielded, and has its grace, as one that is not decorated."""
    yielded = threading.Event()

    @tool(grace=30)
    @passed_on
    def plain() -> Iterator[str]:
        yield "one"
        yielded.set()
        while True:
            threading.Event().wait(0.001)
            yield ""

    @tool(grace=30)
    @passed_on
    async def other() -> AsyncIterator[str]:
        yield "one"
        yielded.set()
        await asyncio.Event().wait()

    [outcome] = run(Probe(other if is_async else plain).stopped_when(yielded.is_set))
    assert (outcome.status, outcome.content) == ("partial", "one")
    assert outcome.stop_steps == ["cooperated"]
