"""The words in which Halter speaks to every model.

A request is a list of messages and tools; an answer is a stream of events. Both are plain `msgspec` structs, tagged,
so that any of them can be written as JSON and read back as itself (`bytes` travel as base64).

What a stream promises, whichever provider is behind it:

- `Finished` is the last event, and there is exactly one. A stream that breaks raises instead: no `Finished`, no answer.
- Each tool call is started once, gets its argument pieces in order, and is done once, with the whole call.
- `Usage` is cumulative: a later one replaces an earlier one, so a stream that is cut still tells what is known.
- The text of a refusal is text: it arrives as `TextDelta`, so whoever shows or keeps text shows and keeps it, and
  `Finished.reason` is `"refusal"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = [
    "AssistantMessage",
    "Audio",
    "FinishReason",
    "Finished",
    "Image",
    "Message",
    "Model",
    "ModelEvent",
    "ModelRequest",
    "Part",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningDone",
    "Text",
    "TextDelta",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallDone",
    "ToolCallStarted",
    "ToolMessage",
    "ToolSpec",
    "Usage",
    "UserMessage",
]


class Text(Struct, frozen=True, tag="text"):
    """A piece of text."""

    text: str


class Image(Struct, frozen=True, tag="image"):
    """A picture: its bytes, or where the provider can fetch it."""

    data: bytes | None = None
    url: str | None = None
    media_type: str = "image/png"


class Audio(Struct, frozen=True, tag="audio"):
    """Recorded sound."""

    data: bytes
    media_type: str = "audio/wav"


Part: TypeAlias = Text | Image | Audio


class Reasoning(Struct, frozen=True, tag="reasoning"):
    """One block of the model's thinking.

    `signature` and `redacted` are the provider's own and mean nothing to us; a provider that gave them wants them back
    unchanged with the next request.
    """

    text: str = ""
    signature: str = ""
    redacted: str = ""


class ToolCall(Struct, frozen=True, tag="tool_call"):
    """A call that the model asks for. `arguments` is its JSON text as the model wrote it, valid or not."""

    id: str
    name: str
    arguments: str = "{}"


class UserMessage(Struct, frozen=True, tag="user"):
    """What a person said, showed or sent."""

    parts: list[Part]

    @classmethod
    def of(cls, *parts: str | Part) -> UserMessage:
        """Make a message of texts and parts: `UserMessage.of("what is this?", Image(data))`."""
        return cls(_parts(parts))

    @property
    def text(self) -> str:
        """Its text parts, one below the other."""
        return _text(self.parts)


class AssistantMessage(Struct, frozen=True, tag="assistant"):
    """What the model said, and the calls it asked for."""

    text: str = ""
    calls: list[ToolCall] = []
    reasoning: list[Reasoning] = []


class ToolMessage(Struct, frozen=True, tag="tool"):
    """The one result of one call."""

    call_id: str
    name: str
    parts: list[Part]
    is_error: bool = False

    @classmethod
    def of(cls, call: ToolCall, *parts: str | Part, is_error: bool = False) -> ToolMessage:
        """Answer `call` with texts and parts."""
        return cls(call.id, call.name, _parts(parts), is_error)

    @property
    def text(self) -> str:
        """Its text parts, one below the other."""
        return _text(self.parts)


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


class ToolSpec(Struct, frozen=True):
    """A tool as the model is told of it; `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


class ModelRequest(Struct, frozen=True):
    """One question to a model, whole: nothing is remembered between requests.

    `extra` goes into the provider's request body as it is, over what we would send; a value of `None` takes a key out.
    """

    messages: list[Message]
    instructions: str = ""
    tools: list[ToolSpec] = []
    max_tokens: int | None = None
    temperature: float | None = None
    extra: dict[str, Any] = {}


class TextDelta(Struct, frozen=True, tag="text.delta"):
    """The next piece of the answer."""

    text: str


class ReasoningDelta(Struct, frozen=True, tag="reasoning.delta"):
    """The next piece of the model's thinking."""

    text: str


class ReasoningDone(Struct, frozen=True, tag="reasoning.done"):
    """A block of thinking is whole; keep it in `AssistantMessage.reasoning`."""

    reasoning: Reasoning


class ToolCallStarted(Struct, frozen=True, tag="call.started"):
    """The model has begun to write a call. `index` counts the calls of this answer from 0, without gaps."""

    index: int
    id: str
    name: str


class ToolCallDelta(Struct, frozen=True, tag="call.delta"):
    """The next piece of a call's arguments."""

    index: int
    arguments: str


class ToolCallDone(Struct, frozen=True, tag="call.done"):
    """A call has been written. It may be cut short when `Finished.reason` is `"length"`: do not run it before that."""

    index: int
    call: ToolCall


class Usage(Struct, frozen=True, tag="usage"):
    """Tokens so far. `input_tokens` counts all of the input, cached or not; `cached_tokens` were read from a cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "refusal", "content_filter", "pause", "other"]


class Finished(Struct, frozen=True, tag="finished"):
    """The answer is whole, and why it ended. `raw` is the provider's own word for it, `detail` its explanation."""

    reason: FinishReason
    raw: str = ""
    model: str = ""
    detail: str = ""


ModelEvent: TypeAlias = (
    TextDelta | ReasoningDelta | ReasoningDone | ToolCallStarted | ToolCallDelta | ToolCallDone | Usage | Finished
)


class Model(Protocol):
    """Anything that answers requests.

    `stream` is an async generator: closing it, or cancelling the task that waits in it, must end the work behind it.
    Whoever leaves its loop early has to close it (`contextlib.aclosing`): Python does not do so by itself.
    """

    @property
    def name(self) -> str:
        """What the provider calls this model."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer `request`, event by event."""
        ...


def _parts(parts: tuple[str | Part, ...]) -> list[Part]:
    return [Text(part) if isinstance(part, str) else part for part in parts]


def _text(parts: list[Part]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))
