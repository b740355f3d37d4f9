"""The bodies of chat completions. Unknown fields are ignored, as other servers of this protocol do."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from halter.gateway.openai.requested_output import JSONFormat, SchemaFormat, TextFormat
from halter.models.types import ReasoningEffort

__all__ = [
    "ChatAssistantMessage",
    "ChatAudioPart",
    "ChatCompletion",
    "ChatCompletionBody",
    "ChatCompletionChoice",
    "ChatDeveloperMessage",
    "ChatImagePart",
    "ChatMessage",
    "ChatRefusalPart",
    "ChatSchemaFormat",
    "ChatSystemMessage",
    "ChatTextPart",
    "ChatToolMessage",
    "ChatUsage",
    "ChatUserMessage",
    "CompletionMessage",
    "ModelName",
    "Probability",
    "Seed",
    "Temperature",
    "TokenLimit",
]

ModelName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Temperature: TypeAlias = Annotated[float, Meta(ge=0, le=2)]
Probability: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
TokenLimit: TypeAlias = Annotated[int, Meta(ge=1, le=0x7FFFFFFF)]
Seed: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class ChatTextPart(Struct, tag="text"):
    """A piece of text."""

    text: str


class ChatRefusalPart(Struct, tag="refusal"):
    """A refusal of the model."""

    refusal: str


class ChatImageUrl(Struct):
    """Where an image is: an https:// URL, or `data:image/png;base64,…`."""

    url: str


class ChatImagePart(Struct, tag="image_url"):
    """An image."""

    image_url: ChatImageUrl


class ChatAudioData(Struct):
    """A recording, as base64."""

    data: str
    format: str


class ChatAudioPart(Struct, tag="input_audio"):
    """A recording."""

    input_audio: ChatAudioData


class ChatFunction(Struct):
    """The function of a call; `arguments` is JSON."""

    name: str
    arguments: str = "{}"


class ChatToolCall(Struct):
    """A call in an earlier answer."""

    id: str
    function: ChatFunction
    type: Literal["function"] = "function"


class ChatSystemMessage(Struct, tag_field="role", tag="system"):
    """Instructions, which are added to those of the agent."""

    content: str | list[ChatTextPart]


class ChatDeveloperMessage(Struct, tag_field="role", tag="developer"):
    """The same, under its newer name."""

    content: str | list[ChatTextPart]


class ChatUserMessage(Struct, tag_field="role", tag="user"):
    """A message of the user."""

    content: str | list[ChatTextPart | ChatImagePart | ChatAudioPart]


class ChatAssistantMessage(Struct, tag_field="role", tag="assistant"):
    """An earlier answer."""

    content: str | list[ChatTextPart | ChatRefusalPart] | None = None
    refusal: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class ChatToolMessage(Struct, tag_field="role", tag="tool"):
    """The result of a call in an earlier answer."""

    tool_call_id: str
    content: str | list[ChatTextPart]


ChatMessage: TypeAlias = (
    ChatSystemMessage | ChatDeveloperMessage | ChatUserMessage | ChatAssistantMessage | ChatToolMessage
)


class ChatStreamOptions(Struct):
    """What a stream has beside the answer."""

    include_usage: bool | None = None


class ChatSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """A JSON object that fits a schema."""

    json_schema: SchemaFormat


class ChatCompletionBody(Struct, kw_only=True):
    """A conversation to be answered. `model` is the name of an agent, which has its own tools."""

    model: ModelName
    messages: list[ChatMessage]
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    max_completion_tokens: TokenLimit | None = None
    max_tokens: TokenLimit | None = None
    stop: str | Annotated[list[str], Meta(max_length=4)] | None = None
    seed: Seed | None = None
    reasoning_effort: ReasoningEffort | None = None
    response_format: TextFormat | JSONFormat | ChatSchemaFormat | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    tool_choice: Any = None
    function_call: Any = None


class ChatUsage(Struct, kw_only=True):
    """The tokens of all requests of the turn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class CompletionMessage(Struct, kw_only=True):
    """The answer."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: str | None = None


class ChatCompletionChoice(Struct, kw_only=True):
    """The only choice."""

    index: int = 0
    message: CompletionMessage
    logprobs: None = None
    finish_reason: Literal["stop", "length", "content_filter"]


class ChatCompletion(Struct, kw_only=True):
    """The answer to a conversation. With `stream`, it comes as `chat.completion.chunk` events instead."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatCompletionChoice]
    usage: ChatUsage
