"""The seven laws, for a tool of each bridge: the same tests for all, with the real libraries."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading

import pytest

from halter import Agent, CancellationToken, ToolOutcome, current_token, run_process, run_process_blocking
from halter.cancel import abandoned
from halter.models import ToolCall
from halter.testing import DeafCoroutine, DeafTool, Moment, ScriptedModel, Stop, ToolCalls, interrupt_everywhere
from tests.support.bridged_tools import Bridge, every_bridge
from tests.support.leftovers import children, nothing_is_left  # noqa: F401  (for each test here)
from tests.support.stopped_calls import (
    PATIENT,
    call_stopped,
    check,
    check_obeys,
    every_moment,
    every_reason,
    text_of,
)
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until

PROGRAM = """
import threading
from agents import function_tool
from langchain_core.tools import tool
from pydantic_ai import Tool
from halter import Agent
from halter.bridges import from_langchain, from_openai_agents, from_pydantic_ai
from halter.models import ToolCall
from halter.testing import ScriptedModel

begun = threading.Semaphore(0)

def work() -> str:
    "Work."
    begun.release()
    threading.Event().wait()
    return ""

for tools in (from_langchain(tool(work)), from_openai_agents(function_tool(work)), from_pydantic_ai(Tool(work))):
    session = Agent(ScriptedModel(ToolCall("1", "work"), "x"), tools).session()
    threading.Thread(target=lambda: (begun.acquire(), session.stop()), daemon=True).start()
    print(session.run("Go.").outcomes[0].status)
"""


@every_bridge
def test_law_1_a_deaf_function_delays_nothing(bridge: Bridge) -> None:
    """Control is back at once; the function is named as abandoned, and its result is recorded as late."""
    deaf = DeafTool("the late result")

    def work() -> str:
        """Work."""
        return str(deaf())

    with ToolCalls(bridge(work)) as calls:
        outcome = calls.call_stopped(Stop("stop", wait=deaf.started.wait), "work")
        assert (outcome.status, outcome.reason, outcome.may_go_on) == ("abandoned", "stop", True)
        deaf.release()
        wait_until(lambda: outcome.late is not None)
    assert outcome.late is not None
    assert outcome.late.content == "the late result"
    assert "ended after all" in outcome.late_note()


@every_bridge
def test_law_1_a_deaf_coroutine_delays_nothing(bridge: Bridge) -> None:
    """A coroutine that swallows the cancellation is abandoned, too, and its result is late."""
    deaf = DeafCoroutine("the late result")

    async def work() -> str:
        """Work."""
        return str(await deaf())

    async def main() -> ToolOutcome:
        with ToolCalls(bridge(work)) as calls:
            outcome = await calls.run(ToolCall("1", "work"), Stop("stop", wait=deaf.started.wait))
            assert outcome.status == "abandoned"
            while outcome.late is None:
                deaf.release()
                await asyncio.sleep(0)
            return outcome

    outcome = asyncio.run(main())
    assert outcome.late is not None
    assert outcome.late.content == "the late result"


@every_bridge
def test_law_2_what_a_function_waits_for_is_ended(bridge: Bridge) -> None:
    """A plain subprocess.run() in a function that knows nothing of Halter is cut, as in a tool of our own."""
    before = children()

    def work() -> str:
        """Work."""
        return str(subprocess.run(["sleep", "60"], check=False).returncode)

    with ToolCalls(bridge(work)) as calls:
        outcome = calls.call_stopped(Stop("stop", wait=lambda: wait_until(lambda: children() > before)), "work")
    assert outcome.stop_steps
    assert outcome.stop_steps[0] == "cut"
    wait_until(lambda: not outcome.may_go_on)


@every_bridge
@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
@every_moment
@every_reason
def test_law_2_our_helpers_see_the_token(bridge: Bridge, is_async: bool, moment: Moment, reason: str) -> None:
    """`current_token()` is the token of the call, so a process that runs under it ends with the call."""
    begun = threading.Event()
    command = "echo begun; exec sleep 60" if moment != "end" else "echo begun"

    def work() -> str:
        """Work."""
        return run_process_blocking(command, on_output=lambda _: begun.set()).stdout.decode()

    async def awork() -> str:
        """Work."""
        return (await run_process(command, on_output=lambda _: begun.set())).stdout.decode()

    tool = bridge(awork if is_async else work, grace=PATIENT)
    assert tool.kind == ("coroutine" if is_async else "function")
    outcome = call_stopped(tool, moment, reason, middle=begun.is_set)
    if moment == "start":  # the function may not have looked at its token yet, and is not waited for then
        check(outcome, moment, reason)
    else:
        check_obeys(outcome, moment, reason)


@every_bridge
def test_law_3_a_steer_breaks_the_call_and_is_applied(bridge: Bridge) -> None:
    """The message that breaks the call is in the same turn, after the result of the call."""
    begun = threading.Event()

    async def work() -> str:
        """Work."""
        begun.set()
        await asyncio.sleep(60)
        return "done"

    model = ScriptedModel(ToolCall("1", "work"), "I stopped it.")
    with Agent(model, [bridge(work)]).session() as session:
        thread = threading.Thread(target=lambda: (begun.wait(), session.steer("Something else.")))
        thread.start()
        turn = session.run("Work.")
        thread.join()
        assert (turn.status, turn.text) == ("done", "I stopped it.")
        assert [outcome.reason for outcome in turn.outcomes] == ["steer"]
        assert "Something else." in str(session.history[-2])
        judge_session(session, model.requests)


@every_bridge
def test_law_4_nothing_leaks_into_the_next_call(bridge: Bridge) -> None:
    """The next call of the same tool has a token of its own; the late result of the first belongs to the first."""
    deaf = DeafTool()
    tokens: list[CancellationToken] = []

    def work(number: int) -> str:
        """Work."""
        tokens.append(current_token())
        return f"{number} {deaf() if number == 1 else ''}"

    with ToolCalls(bridge(work)) as calls:
        first = calls.call_stopped(Stop("stop", wait=deaf.started.wait), "work", number=1)
        second = calls.call("work", number=2)
        deaf.release()
        wait_until(lambda: first.late is not None)
    assert [token.is_cancelled for token in tokens] == [True, False]
    assert (second.status, text_of(second).strip(), second.late) == ("completed", "2", None)
    assert first.late is not None
    assert first.late.content == "1 late"


@every_bridge
@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine"])
def test_laws_5_and_6_wherever_it_is_stopped(bridge: Bridge, is_async: bool) -> None:
    """At every line of the bridge: one outcome, which says what happened, and nothing goes on."""

    def work(number: int) -> str:
        """Work."""
        return f"result {number}"

    async def awork(number: int) -> str:
        """Work."""
        await asyncio.sleep(0)
        return f"result {number}"

    tool = bridge(awork if is_async else work)
    calls = ToolCalls(tool, grace=PATIENT)
    outcomes: list[ToolOutcome] = []

    async def scenario(token: CancellationToken) -> None:
        call = ToolCall("1", tool.name, json.dumps({"number": 7}))
        outcomes.append(await calls.run(call, Stop("stop", token)))

    def check() -> None:
        wait_until(lambda: len(abandoned) == 0)
        outcome = outcomes.pop()
        assert outcome.status in ("completed", "cancelled", "partial", "not_started", "abandoned"), outcome
        assert not outcome.may_go_on
        if outcome.status == "completed":
            assert text_of(outcome) == "result 7"
        else:
            assert outcome.reason == "stop"

    report = interrupt_everywhere(scenario, check=check, repeat=1, only=lambda place: "halter/bridges/" in place)
    assert report.points


@every_bridge
def test_law_6_a_stop_is_no_error_of_the_tool(bridge: Bridge) -> None:
    """None of the libraries turns our stop into a result or a failure, though a function may clean up."""
    begun = threading.Event()
    cleaned: list[str] = []

    async def work() -> str:
        """Work."""
        begun.set()
        try:
            await asyncio.sleep(60)
        except Exception:
            cleaned.append("wrong")
        finally:
            cleaned.append("up")
        return "done"

    outcome = call_stopped(bridge(work, grace=PATIENT), "middle", "interrupt", middle=begun.is_set)
    assert (outcome.status, outcome.reason, outcome.detail) == ("cancelled", "interrupt", "by a test")
    assert cleaned == ["up"]


def test_law_7_a_deaf_function_does_not_block_the_exit() -> None:
    """Run by their own libraries, they would be in pools whose threads Python joins when it exits."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "abandoned\n" * 3), ended.stderr
