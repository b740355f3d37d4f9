"""Messages, requests and the events of a model's answer, the same for every provider.

A request is a list of messages and tools; an answer is a stream of events. All are tagged `msgspec` structs, so each
can be written as JSON and read back (`bytes` become base64). Most have `gc=False`: they hold plain data, which cannot
refer back to them, so the garbage collector need not look at them, however long histories and logs become.

What a stream guarantees, whichever provider is behind it:

- `Finished` is the last event, and there is exactly one. A stream that breaks raises instead, and has no `Finished`.
- Each tool call is started once, gets its arguments in pieces, in order, and is done once, with the complete call.
- `Usage` is cumulative: a later one replaces an earlier one, so a stream that breaks still reports what is known.
- The text of a refusal is ordinary text: it comes as `TextDelta`, and `Finished.reason` is `"refusal"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

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
    "ModelSettings",
    "OutputSchema",
    "Part",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningDone",
    "ReasoningEffort",
    "Text",
    "TextDelta",
    "ToolCall",
    "ToolCallAsSent",
    "ToolCallDelta",
    "ToolCallDone",
    "ToolCallStarted",
    "ToolMessage",
    "ToolSpec",
    "Usage",
    "UserMessage",
]


class Text(Struct, frozen=True, gc=False, tag="text"):
    """A piece of text."""

    text: str


class Image(Struct, frozen=True, gc=False, tag="image"):
    """An image: its bytes, or a URL from which the provider can fetch it."""

    data: bytes | None = None
    url: str | None = None
    media_type: str = "image/png"


class Audio(Struct, frozen=True, gc=False, tag="audio"):
    """Recorded sound."""

    data: bytes
    media_type: str = "audio/wav"


Part: TypeAlias = Text | Image | Audio


class Reasoning(Struct, frozen=True, gc=False, tag="reasoning"):
    """One block of the model's thinking.

    `signature` and `redacted` are opaque: the provider that sent them needs them back unchanged in the next request.
    They mean something to that `wire` only (empty: Anthropic's). Where the order matters to it, `id` is the block's own
    name there, and `text_before` and `calls_before` are how many characters and calls of the answer came before it.
    """

    text: str = ""
    signature: str = ""
    redacted: str = ""
    wire: str = ""
    id: str = ""
    text_before: int = 0
    calls_before: int = 0


class ToolCallAsSent(Struct, frozen=True, gc=False):
    """What a model wrote of a call, where that could not be sent back to every provider."""

    id: str
    name: str
    arguments: str


class ToolCall(Struct, frozen=True, gc=False, tag="tool_call"):
    """A call that the model asks for.

    As a model streams it, `arguments` is the text that it wrote, valid or not. In the log and the history all fields
    are fit for every provider (`halter.models.sanitize`), and `sent` is what the model wrote, if that was different.
    `signature` is opaque: Gemini needs it back with the call.
    """

    id: str
    name: str
    arguments: str = "{}"  # JSON
    sent: ToolCallAsSent | None = None
    signature: str = ""

    @property
    def as_written(self) -> ToolCall | ToolCallAsSent:
        """The call as the model wrote it."""
        return self.sent or self


class UserMessage(Struct, frozen=True, gc=False, tag="user"):
    """A message of the user."""

    parts: list[Part]

    @classmethod
    def of(cls, *parts: str | Part) -> UserMessage:
        """Make a message from texts and parts: `UserMessage.of("what is this?", Image(data))`."""
        return cls(_parts(parts))

    @property
    def text(self) -> str:
        """Its text parts, joined by newlines."""
        return _text(self.parts)


class AssistantMessage(Struct, frozen=True, gc=False, tag="assistant"):
    """An answer of the model, and the calls that it asks for."""

    text: str = ""
    calls: list[ToolCall] = []
    reasoning: list[Reasoning] = []


class ToolMessage(Struct, frozen=True, gc=False, tag="tool"):
    """The result of one call."""

    call_id: str
    name: str
    parts: list[Part]
    is_error: bool = False

    @classmethod
    def of(cls, call: ToolCall, *parts: str | Part, is_error: bool = False) -> ToolMessage:
        """Make the result of `call` from texts and parts."""
        return cls(call.id, call.name, _parts(parts), is_error)

    @property
    def text(self) -> str:
        """Its text parts, joined by newlines."""
        return _text(self.parts)


Message: TypeAlias = UserMessage | AssistantMessage | ToolMessage


class ToolSpec(Struct, frozen=True):
    """The description of a tool for the model; `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})


class OutputSchema(Struct, frozen=True):
    """The form that the answer must have: `schema` is the JSON schema of an object.

    `halter.models.output_schema` writes it in the forms that providers accept. The session checks the answer in any
    case.
    """

    name: str
    schema: dict[str, Any]


ReasoningEffort: TypeAlias = Literal["minimal", "low", "medium", "high"]


class ModelSettings(Struct, frozen=True, kw_only=True):
    """How a model should answer. What is None is left to the provider.

    A setting that a provider does not have is not sent to it: Anthropic has no `seed`.
    """

    temperature: float | None = None
    """The sampling temperature. 0 gives the least random answers."""
    top_p: float | None = None
    """Nucleus sampling: choose among the most likely tokens whose probabilities add up to this."""
    max_output_tokens: int | None = None
    """The longest answer. One that is cut there ends its turn with reason "output_limit"."""
    reasoning: ReasoningEffort | None = None
    """How hard the model should think, where it can: "minimal", "low", "medium" or "high"."""
    stop: list[str] = []
    """Stop sequences: texts that end the answer when the model writes them."""
    seed: int | None = None
    """The seed of the sampling: the same seed and request should give the same answer."""
    extra: dict[str, Any] = {}
    """Merged into the provider's request body, over what Halter would send. A `None` in it removes a key."""

    def __post_init__(self) -> None:
        if self.max_output_tokens is not None and self.max_output_tokens < 1:
            raise ValueError(f"max_output_tokens must be at least 1, not {self.max_output_tokens}")
        if self.reasoning is not None and self.reasoning not in get_args(ReasoningEffort):
            raise ValueError(f"reasoning is one of {', '.join(get_args(ReasoningEffort))}; not {self.reasoning!r}")
        if isinstance(self.stop, str):
            raise TypeError(f"stop is a list of texts: [{self.stop!r}]")


class ModelRequest(Struct, frozen=True):
    """One complete request: nothing is remembered between requests.

    `cache_key` is the same for all requests of one conversation. OpenAI gets a hash of it, to find what it has cached.
    """

    messages: list[Message]
    instructions: str = ""
    tools: list[ToolSpec] = []
    settings: ModelSettings = ModelSettings()
    cache_key: str = ""
    output: OutputSchema | None = None  # None: any text


class TextDelta(Struct, frozen=True, gc=False, tag="text.delta"):
    """The next piece of the answer."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False, tag="reasoning.delta"):
    """The next piece of the model's thinking."""

    text: str


class ReasoningDone(Struct, frozen=True, gc=False, tag="reasoning.done"):
    """A block of thinking is complete; keep it in `AssistantMessage.reasoning`."""

    reasoning: Reasoning


class ToolCallStarted(Struct, frozen=True, gc=False, tag="call.started"):
    """A call begins. `index` counts the calls of this answer from 0, without gaps."""

    index: int
    id: str
    name: str


class ToolCallDelta(Struct, frozen=True, gc=False, tag="call.delta"):
    """The next piece of a call's arguments."""

    index: int
    arguments: str


class ToolCallDone(Struct, frozen=True, gc=False, tag="call.done"):
    """A call has ended. It may be truncated if `Finished.reason` is `"length"`, so do not run it before `Finished`."""

    index: int
    call: ToolCall


class Usage(Struct, frozen=True, gc=False, tag="usage"):
    """Tokens used so far. `input_tokens` counts the whole input, cached or not; `cached_tokens` came from a cache.

    `cost` is in USD, and None if it is not known. A sum is known only if all its parts are; no tokens cost nothing.
    `is_estimated` says that the provider did not report some of it, as of a request that was stopped: then tokens, and
    the cost that follows from them, are estimated.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None
    is_estimated: bool = False

    def __add__(self, other: Usage) -> Usage:
        """The sum of two requests, turns or sessions."""
        mine, theirs = self._known_cost(), other._known_cost()
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            None if mine is None or theirs is None else mine + theirs,
            self.is_estimated or other.is_estimated,
        )

    def _known_cost(self) -> float | None:
        return self.cost if self.cost is not None or self.input_tokens or self.output_tokens else 0.0


FinishReason: TypeAlias = Literal["stop", "tool_calls", "length", "refusal", "content_filter", "pause", "other"]


class Finished(Struct, frozen=True, gc=False, tag="finished"):
    """The answer is complete. `raw` is the provider's own name for the reason, `detail` its explanation."""

    reason: FinishReason
    raw: str = ""
    model: str = ""
    detail: str = ""


ModelEvent: TypeAlias = (
    TextDelta | ReasoningDelta | ReasoningDone | ToolCallStarted | ToolCallDelta | ToolCallDone | Usage | Finished
)


class Model(Protocol):
    """Anything that answers requests.

    `stream` is an async generator: closing it, or cancelling the task that awaits it, must end the work behind it. If
    you leave its loop early you must close it (`contextlib.aclosing`): Python does not do that for you.
    """

    @property
    def name(self) -> str:
        """The name that the provider has for this model."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer `request`, event by event."""
        ...


def _parts(parts: tuple[str | Part, ...]) -> list[Part]:
    return [Text(part) if isinstance(part, str) else part for part in parts]


def _text(parts: list[Part]) -> str:
    return "\n".join(part.text for part in parts if isinstance(part, Text))
