"""The vocabulary: it can be written down and read back, and is easy to write."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from halter.models import (
    AnthropicModel,
    AssistantMessage,
    Audio,
    Finished,
    GeminiModel,
    Image,
    LocalModel,
    Message,
    Model,
    ModelEvent,
    ModelRequest,
    ModelSettings,
    OpenAIModel,
    OpenAIResponsesModel,
    Reasoning,
    ReasoningDelta,
    ReasoningDone,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    ToolMessage,
    ToolSpec,
    Usage,
    UserMessage,
)
from halter.testing import ScriptedModel

CALL = ToolCall("c1", "search", '{"q": 1}')
MESSAGES: list[Message] = [
    UserMessage.of("look", Image(b"\x00\xff", media_type="image/jpeg"), Image(url="http://x/y.png"), Audio(b"\x01")),
    AssistantMessage("yes", [CALL], [Reasoning("hm", "signed"), Reasoning(redacted="opaque")]),
    ToolMessage.of(CALL, "found", Image(b"\x02"), is_error=True),
]
EVENTS: list[ModelEvent] = [
    TextDelta("a"),
    ReasoningDelta("b"),
    ReasoningDone(Reasoning("b", "s")),
    ToolCallStarted(0, "c1", "search"),
    ToolCallDelta(0, '{"q'),
    ToolCallDone(0, CALL),
    Usage(1, 2, 3, 4, 5),
    Finished("stop", "end_turn", "m", "d"),
]


# Checked by mypy: all of them are what a request can be made to.
MODELS: list[Model] = [
    *(OpenAIModel("m"), AnthropicModel("m"), OpenAIResponsesModel("m"), GeminiModel("m")),
    *(LocalModel(), ScriptedModel()),
]


def test_every_model_has_a_name() -> None:
    """A model can be asked what it is called before it is asked anything else."""
    assert [model.name for model in MODELS] == ["m", "m", "m", "m", "local", "scripted"]


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_survive_json(message: Message) -> None:
    """A message that is written as JSON is read back as itself, bytes included."""
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


@pytest.mark.parametrize("event", EVENTS)
def test_events_survive_json(event: ModelEvent) -> None:
    """An event that is written as JSON is read back as itself."""
    assert msgspec.json.decode(msgspec.json.encode(event), type=ModelEvent) == event


def test_requests_survive_json() -> None:
    """So is a whole request."""
    settings = ModelSettings(max_output_tokens=5, temperature=0.5, extra={"seed": 1})
    request = ModelRequest(MESSAGES, "be kind", [ToolSpec("search", "finds")], settings)
    assert msgspec.json.decode(msgspec.json.encode(request), type=ModelRequest) == request


def test_plain_text_is_easy() -> None:
    """A text is enough to make a message, and a message gives its text."""
    assert UserMessage.of("hi").parts == [Text("hi")]
    assert UserMessage.of("a", Image(b""), "b").text == "a\nb"
    assert ToolMessage.of(CALL, "done") == ToolMessage("c1", "search", [Text("done")])
    assert ToolMessage.of(CALL, "done").text == "done"


def test_naming_an_agent_and_a_model_imports_nothing_heavy() -> None:
    """Programs pay at their start for what they use later: asyncio alone is more than all of Halter."""
    program = (
        "import sys\n"
        "from halter import Agent\n"
        "from halter.models import OpenAIModel\n"
        "Agent(OpenAIModel('m', api_key='k'))\n"
        "heavy = {'asyncio', 'aiohttp', 'ssl', 'socket', 'subprocess', 'pathlib', 'random', 'sqlite3'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
