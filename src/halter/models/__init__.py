"""Models: what they are asked, what they answer, and the providers that can be asked."""

from halter.models.answer import Answer
from halter.models.anthropic import AnthropicModel
from halter.models.backoff import Backoff
from halter.models.errors import ConnectionFailed, ContextTooLong, ModelError, ProviderError, StreamBroken
from halter.models.local import LocalModel
from halter.models.model import (
    AssistantMessage,
    Audio,
    Finished,
    FinishReason,
    Image,
    Message,
    Model,
    ModelEvent,
    ModelRequest,
    Part,
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
from halter.models.openai import OpenAIModel
from halter.models.progress import RequestCancelled, RequestEvent, RequestFinished, RequestRetry, RequestStarted
from halter.models.request import Exchange
from halter.models.transport import aclose_clients, preload

__all__ = [
    "Answer",
    "AnthropicModel",
    "AssistantMessage",
    "Audio",
    "Backoff",
    "ConnectionFailed",
    "ContextTooLong",
    "Exchange",
    "FinishReason",
    "Finished",
    "Image",
    "LocalModel",
    "Message",
    "Model",
    "ModelError",
    "ModelEvent",
    "ModelRequest",
    "OpenAIModel",
    "Part",
    "ProviderError",
    "Reasoning",
    "ReasoningDelta",
    "ReasoningDone",
    "RequestCancelled",
    "RequestEvent",
    "RequestFinished",
    "RequestRetry",
    "RequestStarted",
    "StreamBroken",
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
    "aclose_clients",
    "preload",
]
