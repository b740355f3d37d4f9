"""The laws over each wire: a session that talks to a real server is stopped at any moment, or meets its faults."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from halter import Agent
from halter.events import RequestStarted, TurnFinished
from halter.models import AssistantMessage, Backoff, ToolCall
from halter.testing import (
    FakeProvider,
    ScriptedReply,
    answer,
    drop,
    hang_before_first_byte,
    hang_mid_stream,
    raw,
    status,
)
from tests.support.sessions import next_event
from tests.support.valid_history import judge_session
from tests.support.wires import WIRES, model_for, run

PROMPT = 5.0  # on a machine that is busy with other things; bench/ has the figures
CALL = ToolCall("c1", "write", '{"path": "a.txt", "text": "some long text that comes in many pieces"}')
SAID = "some words that are not the whole of it"
# A reply, and what is shown of it before the stop.
MOMENTS: dict[str, tuple[ScriptedReply, str]] = {
    "before the first byte": (hang_before_first_byte(), ""),
    "after the headers": (hang_mid_stream(0), ""),
    "in the middle": (hang_mid_stream(3, text=SAID), SAID[:36]),
    "in a call": (ScriptedReply((SAID,), (CALL,), fault="hang", after=2), SAID),
    "while a retry waits": (status(429, retry_after=30), ""),
}
FAULTS: dict[str, ScriptedReply] = {
    "drop before the first chunk": drop(0),
    "drop": drop(2),
    "too many requests": status(429),
    "server error": status(500),
    "an error page": status(502, body=b"<html><title>Bad gateway</title></html>"),
    "garbage": raw(b"data: {nonsense\n\n"),
    "another protocol": raw(b"hello", content_type="text/plain"),
    "an end without an answer": raw(b""),
}


def agent_for(wire: str, provider: FakeProvider) -> Agent:
    agent = Agent(model_for(wire, provider))
    agent.backoff = Backoff(base=0.001)
    return agent


def ends_of(session: Any) -> list[TurnFinished]:
    return [event.data for event in session.events() if isinstance(event.data, TurnFinished)]


@pytest.mark.parametrize("is_twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("wire", WIRES)
def test_a_stop_at_any_moment(wire: str, moment: str, is_twice: bool) -> None:
    """The stop is prompt, the server sees it, what was shown is kept, nothing is asked again; the next turn works."""
    reply, shown = MOMENTS[moment]

    async def scenario() -> None:
        async with FakeProvider(reply, answer("fine")) as provider:
            with agent_for(wire, provider).session() as session:
                listener = session.subscribe()
                task = asyncio.ensure_future(session.arun("Go."))
                await provider.await_request(1)
                text = ""
                while text != shown:
                    text += (await next_event(listener, "text.delta")).data.text  # type: ignore[union-attr]
                at = time.monotonic()
                await asyncio.gather(*(session.astop(reason="stop") for _ in range(1 + is_twice)))
                turn = await task
                assert time.monotonic() - at < PROMPT
                assert (turn.status, turn.reason) == ("interrupted", "stop")
                if moment != "while a retry waits":
                    assert await provider.await_close(1) - at < PROMPT
                assert len(provider.requests) == 1, "our own close was taken for an error"
                assert len(ends_of(session)) == 1
                said = [each for each in session.history if isinstance(each, AssistantMessage)]
                assert [each.text for each in said] == ([shown] if shown else [])
                judge_session(session)
                turn = await session.arun("And now?")
                assert (turn.status, turn.text) == ("done", "fine")
                assert len(provider.requests) == 2
                judge_session(session)

    run(scenario())


@pytest.mark.parametrize("wire", WIRES)
def test_a_stop_at_the_very_end(wire: str) -> None:
    """A stop that races with the end of the answer: the turn is done or interrupted, and nothing is asked again."""

    async def scenario() -> None:
        async with FakeProvider(default=answer("all of it")) as provider:
            with agent_for(wire, provider).session() as session:
                for number in range(1, 9):
                    task = asyncio.ensure_future(session.arun("Go."))
                    await provider.await_finish(number)
                    for _ in range(number):
                        await asyncio.sleep(0)
                    session.stop()
                    turn = await task
                    assert turn.status in ("done", "interrupted")
                    assert "all of it".startswith(turn.text)
                    assert len(provider.requests) == number
                judge_session(session)

    run(scenario())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("wire", WIRES)
def test_a_fault_that_may_pass(wire: str, fault: str) -> None:
    """A genuine failure is tried again: the turn is done, and only the second attempt is in the history."""

    async def scenario() -> None:
        async with FakeProvider(FAULTS[fault], answer("fine")) as provider:
            with agent_for(wire, provider).session() as session:
                turn = await session.arun("Go.")
                assert (turn.status, turn.text) == ("done", "fine")
                started = [event.data for event in session.events() if isinstance(event.data, RequestStarted)]
                assert [each.attempt for each in started] == [1, 2]
                assert [each.text for each in session.history if isinstance(each, AssistantMessage)] == ["fine"]
                judge_session(session)

    run(scenario())
