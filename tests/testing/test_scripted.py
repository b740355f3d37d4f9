"""The scripted model: it says what it is told to, waits at gates, and remembers how it was left."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from halter.models import (
    Finished,
    Model,
    ModelEvent,
    ModelRequest,
    ProviderError,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    UserMessage,
)
from halter.testing import Gate, ScriptedModel

REQUEST = ModelRequest([UserMessage.of("hi")])
CALL = ToolCall("a", "f", "{}")


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


async def collect(model: Model) -> list[ModelEvent]:
    return [event async for event in model.stream(REQUEST)]


def test_it_says_what_its_script_says() -> None:
    """Texts, calls and events become a stream as a provider's would be, with its end."""

    async def scenario() -> None:
        model = ScriptedModel("hello", ["so ", CALL], [TextDelta("x"), Finished("length")])
        assert await collect(model) == [TextDelta("hello"), Finished("stop", model="scripted")]
        assert await collect(model) == [
            TextDelta("so "),
            ToolCallStarted(0, "a", "f"),
            ToolCallDelta(0, "{}"),
            ToolCallDone(0, CALL),
            Finished("tool_calls", model="scripted"),
        ]
        assert await collect(model) == [TextDelta("x"), Finished("length")]
        assert model.requests == [REQUEST] * 3
        assert [seen.state for seen in model.streams] == ["finished"] * 3

    run(scenario())


def test_errors_come_where_they_are_written() -> None:
    """An error in the script is raised after what stands before it; a script that is too short says so."""

    async def scenario() -> None:
        model = ScriptedModel(["a", ProviderError("no", status=500)])
        stream = model.stream(REQUEST)
        assert await anext(stream) == TextDelta("a")
        with pytest.raises(ProviderError):
            await anext(stream)
        assert model.streams[0].state == "failed"
        with pytest.raises(AssertionError, match="has 1 entries, and this is request 2; give it one entry"):
            await collect(model)

    run(scenario())


def test_a_gate_holds_the_stream_at_its_place() -> None:
    """A stream that has come to a gate goes on when the gate is opened, here from another thread."""

    async def scenario() -> None:
        gate = Gate()
        model = ScriptedModel(["a", gate, "b"])
        task = asyncio.create_task(collect(model))
        await gate.await_reached()
        assert model.streams[0].events == 1
        assert not task.done()
        threading.Thread(target=gate.open).start()
        assert [event.text for event in await task if isinstance(event, TextDelta)] == ["a", "b"]

    run(scenario())


def test_it_knows_how_it_was_left() -> None:
    """A stream that was cancelled at a gate, and one that its reader closed, are told apart."""

    async def scenario() -> None:
        gate = Gate()
        model = ScriptedModel([gate], ["a", "b"])
        task = asyncio.create_task(collect(model))
        await gate.await_reached()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stream = model.stream(REQUEST)
        await anext(stream)
        await stream.aclose()
        assert [seen.state for seen in model.streams] == ["cancelled", "closed"]
        assert model.streams[1].events == 1

    run(scenario())


def test_a_gate_that_nobody_reaches() -> None:
    """A test that waits for a gate in vain is told so."""
    with pytest.raises(TimeoutError, match="no stream came"):
        Gate().wait_reached(timeout=0.01)
