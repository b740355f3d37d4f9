"""What the tests of the models share: running them, reading streams, one model for each wire."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from halter.models import (
    AnthropicModel,
    GeminiModel,
    ModelEvent,
    ModelRequest,
    OpenAIModel,
    OpenAIResponsesModel,
    ReasoningDelta,
    TextDelta,
    ToolCall,
    ToolCallDone,
    UserMessage,
)
from halter.models.http.wire import HTTPModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable

    from halter.testing import FakeProvider, SeenRequest

T = TypeVar("T")

MODELS: dict[str, tuple[type[HTTPModel], str]] = {
    "openai": (OpenAIModel, "/v1"),
    "anthropic": (AnthropicModel, ""),
    "responses": (OpenAIResponsesModel, "/v1"),
    "gemini": (GeminiModel, ""),
}
WIRES = list(MODELS)
KEY = "sk-a-very-secret-key"
PNG = b"\x89PNG\r\n\x1a\n"  # what every PNG begins with
HELLO = ModelRequest([UserMessage.of("hello")])


def run(work: Awaitable[T], limit: float = 30.0) -> T:
    """Run a test's coroutine on a loop of its own, with a bound."""

    async def bounded() -> T:
        return await asyncio.wait_for(work, limit)

    return asyncio.run(bounded())


def model_for(wire: str, provider: FakeProvider, **options: Any) -> HTTPModel:
    """Make a model that asks this provider."""
    kind, path = MODELS[wire]
    return kind("m", base_url=f"{provider.url}{path}", api_key=KEY, **options)


def first_text(request: SeenRequest) -> str:
    """The first text of the user in a request, whichever wire it came by."""
    if "contents" in request.body:
        return str(request.body["contents"][0]["parts"][0]["text"])
    content = (request.body.get("messages") or request.body["input"])[0]["content"]
    return str(content if isinstance(content, str) else content[0]["text"])


async def collect(model: Any, request: ModelRequest = HELLO, into: list[ModelEvent] | None = None) -> list[ModelEvent]:
    """Read a stream to its end, into a list of one's own for those that do not get there."""
    events = [] if into is None else into
    async with aclosing(model.stream(request)) as stream:
        async for event in stream:
            events.append(event)
    return events


def ask(model: Any, request: ModelRequest = HELLO) -> list[ModelEvent]:
    """Read a stream to its end, from a test that is not async."""
    return run(collect(model, request))


def text_of(events: Iterable[ModelEvent]) -> str:
    """Put the text together."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def thought_of(events: Iterable[ModelEvent]) -> str:
    """Put the thinking together."""
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def calls_of(events: Iterable[ModelEvent]) -> list[ToolCall]:
    """Give the calls, in order."""
    return [event.call for event in events if isinstance(event, ToolCallDone)]
