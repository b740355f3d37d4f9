"""The start of a call and the question for its approval are durable before anything happens."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import threading
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from halter import tool
from halter.events.tools import ApprovalAsked, ToolStarted
from halter.models import Answer
from halter.models.sanitize import clean_answer
from halter.models.types import ToolCall
from halter.testing import DeafTool
from halter.tools.run.batch import Batch, BatchEnvironment
from tests.support.batches import Probe, calls_of, run, statuses
from tests.support.waiting import wait_until


def test_a_call_starts_only_when_its_start_is_durable() -> None:
    """The function is launched after start() has returned True, and the listener does not get the start again."""
    order: list[str] = []

    @tool
    def work() -> None:
        order.append("work")

    async def start(event: ToolStarted) -> bool:
        await asyncio.sleep(0)
        order.append(f"{event.call_id} is durable")
        return True

    async def main() -> None:
        probe = Probe(work, start=start)
        assert statuses(await probe.run()) == ["completed"]
        assert order == ["call_0 is durable", "work"]
        assert probe.told(ToolStarted) == []

    run(main())


@pytest.mark.parametrize("what", ["False", "an error", "a stop before it returns", "a stop while it hangs"])
def test_a_call_whose_start_is_not_durable_is_not_launched(what: str) -> None:
    """A start that is refused, that fails or that the stop overtakes leaves a call that never ran."""

    @tool
    def work() -> None:
        pytest.fail("it was launched")

    async def main() -> None:
        async def start(_: ToolStarted) -> bool:
            if what == "an error":
                raise OSError("the disk is full")
            if what == "a stop before it returns":
                probe.token.cancel("stop")
            if what == "a stop while it hangs":
                asyncio.get_running_loop().call_soon(probe.token.cancel, "stop")
                await asyncio.Event().wait()
            return what != "False"

        probe = Probe(work, start=start)
        [outcome] = await probe.run()
        expected = ("failed", "OSError: the disk is full") if what == "an error" else ("not_started", "")
        assert (outcome.status, outcome.detail) == expected
        assert outcome.started_at is None

    run(main())


def test_an_approval_that_cannot_be_written_is_a_denial() -> None:
    """Was a defect: the store refused the question, nobody was asked, and the turn hung."""

    @tool(approval=True)
    def guarded() -> None: ...

    async def ask(_: Any) -> bool:
        raise OSError("the disk is full")

    async def main() -> None:
        [outcome] = await Probe(guarded, approve="ask", ask_approval=ask).run()
        assert outcome.status == "denied"
        assert "the disk is full" in outcome.detail

    run(main())


class Point(pydantic.BaseModel):
    """A model of a user's own."""

    x: int


class Odd:
    """What no format knows."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("hint", "raw", "plain"),
    [
        (Path, '"/x"', "/x"),
        (list[Path], '["/x"]', ["/x"]),
        (datetime.datetime, '"2024-01-01T00:00:00Z"', "2024-01-01T00:00:00Z"),
        (decimal.Decimal, '"1.50"', "1.50"),
        (Point, '{"x": 1}', {"x": 1}),
        (list[Point], '[{"x": 1}]', [{"x": 1}]),
        (set[int], "[1]", [1]),
        (dict[int, str], '{"1": "a"}', {"1": "a"}),
        (float, "1e400", None),
        (int, "123456789012345678901234567890", 123456789012345678901234567890),
        (str, '"\\ud800"', "\\ud800"),
    ],
)
def test_every_question_for_approval_can_be_written_as_json(hint: Any, raw: str, plain: Any) -> None:
    """Was a defect: arguments such as a Path or a model object could not be logged, and nobody was asked."""

    @tool(approval=True)
    def guarded(x: hint) -> None: ...

    async def yes(_: Any) -> bool:
        return True

    async def main() -> None:
        probe = Probe(guarded, calls=[ToolCall("c", "guarded", f'{{"x": {raw}}}')], answer=yes)
        [outcome] = await probe.run()
        if not probe.asked:
            assert outcome.status == "failed"  # bad arguments: nobody needs to be asked
            return
        written = msgspec.json.encode(ApprovalAsked(probe.asked[0]))
        assert msgspec.json.decode(written)["request"]["arguments"] == {"x": plain}

    run(main())


def test_a_function_that_approves_gets_the_python_values() -> None:
    """It decides here and now, so nothing has to be written."""

    @tool(approval=True)
    def guarded(path: Path) -> None: ...

    seen: list[Any] = []

    def approve(request: Any) -> bool:
        seen.append(request.arguments["path"])
        return True

    async def main() -> None:
        calls = [ToolCall("c", "guarded", '{"path": "/x"}')]
        assert statuses(await Probe(guarded, calls=calls, approve=approve).run()) == ["completed"]

    run(main())
    assert seen == [Path("/x")]


def test_a_late_end_is_an_event_in_the_thread_in_which_it_happens() -> None:
    """The loop may be gone by then."""
    deaf = DeafTool()
    threads: list[str] = []

    @tool
    def deaf_function() -> None:
        deaf()

    def listener(event: Any) -> None:
        threads.append(f"{type(event).__name__} in {'main' if threading.main_thread() is here() else 'another'}")

    here = threading.current_thread

    async def main() -> None:
        probe = Probe(deaf_function)
        probe.batch = Batch(
            calls_of("deaf_function"), BatchEnvironment(probe.tools, listener=listener), token=probe.token
        )
        assert statuses(await probe.stopped_when(deaf.started.is_set)) == ["abandoned"]

    run(main())
    deaf.release()
    wait_until(lambda: "ToolFinishedLate in another" in threads)
    assert threads[:-1] == [f"{kind} in main" for kind in ("ToolStarted", "ToolCancelling", "ToolFinished")]


def test_a_call_that_had_to_be_cleaned_still_says_what_the_model_wrote() -> None:
    """The result names the tool and quotes the arguments as the model wrote them, and what was understood is run."""

    @tool
    def search(q: str) -> str:
        return q

    async def main() -> None:
        calls = [
            ToolCall("c1", "functions.find", "{}"),
            ToolCall("c2", "search", '{"q": '),
            ToolCall("c3", "functions.search", '"{\\"q\\": \\"x\\"}"'),
        ]
        cleaned = clean_answer(Answer(calls=calls), (), {"search"}).calls
        outcomes = await Probe(search, calls=cleaned).run()
        assert statuses(outcomes) == ["failed", "failed", "completed"]
        assert "'functions.find'" in outcomes[0].detail
        assert "the JSON ends too early, after 6 characters" in outcomes[1].detail
        assert outcomes[2].content == "x"

    run(main())
