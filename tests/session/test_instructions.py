"""The instructions of a session: made once, in a thread, under the turn's token."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from halter import Agent, CancellationToken, current_token
from halter.cancel import abandoned
from halter.stores import MemoryStore
from halter.testing import DeafTool, ScriptedModel, interrupt_everywhere
from tests.support.waiting import wait_until


def counted() -> Callable[[], str]:
    """Instructions that say how often they were made."""
    calls: list[int] = []

    def instructions() -> str:
        calls.append(1)
        return f"made {len(calls)} times"

    return instructions


def test_a_function_is_called_once_for_a_session() -> None:
    """All requests of a session begin with the same text; another session, or the same one reopened, makes its own."""
    model = ScriptedModel("a", "b", "c", "d")
    agent = Agent(model, instructions=counted())
    store = MemoryStore()
    with agent.session("one", store) as session:
        session.run("1")
        session.run("2")
    with agent.session("two", store) as session:
        session.run("3")
    with agent.session("one", store) as session:
        session.run("4")
    assert [request.instructions for request in model.requests] == [f"made {count} times" for count in (1, 1, 2, 3)]


def test_it_runs_in_a_thread() -> None:
    """Files are not read on the event loop."""
    threads: list[threading.Thread] = []

    def instructions() -> str:
        threads.append(threading.current_thread())
        return "Be brief."

    async def main() -> None:
        with Agent(ScriptedModel("a"), instructions=instructions).session() as session:
            await session.arun("1")

    asyncio.run(main())
    assert threads[0] is not threading.current_thread()


@pytest.mark.parametrize("wrong", [5, None, ["Be brief."]])
def test_what_is_no_text_is_refused(wrong: Any) -> None:
    """Where the agent is made; what a function returns is told by the turn."""
    with pytest.raises(TypeError, match="must be a text or a function that returns one"):
        Agent("local", instructions=wrong)
    with Agent(ScriptedModel("a"), instructions=lambda: wrong).session() as session:
        turn = session.run("1")
    assert (turn.status, "must return a text, not" in str(turn.error)) == ("failed", True)


def test_an_error_fails_the_turn_and_the_next_one_tries_again() -> None:
    """A disk that is gone for a moment does not break the session."""
    outcomes = iter([OSError("no disk"), None])

    def instructions() -> str:
        error = next(outcomes)
        if error is not None:
            raise error
        return "Be brief."

    with Agent(ScriptedModel("a"), instructions=instructions).session() as session:
        assert str(session.run("1").error) == "no disk"
        assert session.run().text == "a"


def test_a_stop_does_not_wait_for_it() -> None:
    """A file system that hangs delays neither the stop nor the next turn, and the function sees its token."""
    deaf = DeafTool()
    tokens: list[CancellationToken] = []

    def instructions() -> str:
        tokens.append(current_token())
        if len(tokens) == 1:
            deaf()
        return "Be brief."

    model = ScriptedModel("a")
    with Agent(model, instructions=instructions).session() as session:
        thread = threading.Thread(target=lambda: (wait_until(lambda: deaf.calls), session.stop()))
        thread.start()
        turn = session.run("1")
        thread.join()
        assert (turn.status, turn.reason) == ("interrupted", "stop")
        assert tokens[0].is_cancelled
        assert not model.requests
        assert session.run().text == "a"
    deaf.release()
    wait_until(lambda: len(abandoned) == 0)


def test_a_stop_everywhere() -> None:
    """At every line while the instructions are made: the turn has ended as it says, and the next one has them."""
    turns: list[Any] = []

    async def scenario(token: CancellationToken) -> None:
        with Agent(ScriptedModel("a", "b"), instructions=counted()).session() as session:
            with token.on_cancel(session.stop):
                turns.append(await session.arun("1"))
            turns.append(await session.arun("2"))

    def check() -> None:
        first, second = turns
        turns.clear()
        assert first.status in ("done", "interrupted")
        assert second.status == "done"

    report = interrupt_everywhere(scenario, check=check, repeat=1, only=lambda place: "session/instructions" in place)
    assert report.points
