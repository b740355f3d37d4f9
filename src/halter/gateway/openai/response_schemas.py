"""The bodies of the Responses API. Unknown fields are ignored, as other servers of this protocol do."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

from halter.gateway.openai.chat_schemas import ModelName, Probability, Temperature, TokenLimit
from halter.gateway.openai.requested_output import JSONFormat, SchemaFormat, TextFormat
from halter.models.types import ReasoningEffort

__all__ = [
    "ResponseBody",
    "ResponseCall",
    "ResponseCallOutput",
    "ResponseContent",
    "ResponseImage",
    "ResponseItem",
    "ResponseMessage",
    "ResponseOutputText",
    "ResponseReasoning",
    "ResponseRefusal",
    "ResponseText",
    "ResponseView",
]


class ResponseText(Struct, tag="input_text"):
    """A piece of text."""

    text: str


class ResponseImage(Struct, tag="input_image"):
    """An image: an https:// URL, or `data:image/png;base64,…`."""

    image_url: str


class ResponseOutputText(Struct, tag="output_text"):
    """A piece of an earlier answer."""

    text: str


class ResponseRefusal(Struct, tag="refusal"):
    """A refusal of the model."""

    refusal: str


ResponseContent: TypeAlias = ResponseText | ResponseImage | ResponseOutputText | ResponseRefusal


class ResponseMessage(Struct, tag="message"):
    """A message of anybody."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[ResponseContent]


class ResponseCall(Struct, tag="function_call"):
    """A call in an earlier answer."""

    call_id: str
    name: str
    arguments: str = "{}"


class ResponseCallOutput(Struct, tag="function_call_output"):
    """The result of a call."""

    call_id: str
    output: str | list[ResponseContent]


class ResponseReasoning(Struct, tag="reasoning"):
    """Reasoning of another model, which is left out."""


ResponseItem: TypeAlias = ResponseMessage | ResponseCall | ResponseCallOutput | ResponseReasoning


class ResponseEffort(Struct):
    """How hard the model should think."""

    effort: ReasoningEffort | None = None


class ResponseSchemaFormat(SchemaFormat, tag_field="type", tag="json_schema"):
    """A JSON object that fits a schema."""


class ResponseTextOptions(Struct):
    """About the text of the answer."""

    format: TextFormat | JSONFormat | ResponseSchemaFormat | None = None


class ResponseBody(Struct, kw_only=True):
    """A conversation to be answered. `model` is the name of an agent, which has its own tools. Nothing is stored."""

    model: ModelName
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    max_output_tokens: TokenLimit | None = None
    reasoning: ResponseEffort | None = None
    text: ResponseTextOptions | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None


class ResponseView(Struct, kw_only=True):
    """The answer to a conversation. With `stream`, it comes as events instead, and the last of them has it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    model: str
    output: list[dict[str, Any]] = []
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    store: bool = False
    temperature: float | None = None
    text: dict[str, Any] = field(default_factory=lambda: {"format": {"type": "text"}})
    tool_choice: str = "auto"
    tools: list[Any] = []
    top_p: float | None = None
    usage: dict[str, Any] | None = None
