"""Models: what they are asked, what they answer, and the providers that can be asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter._lazy import lazy_exports

if TYPE_CHECKING:
    from halter.models.answer import Answer as Answer
    from halter.models.anthropic import AnthropicModel as AnthropicModel
    from halter.models.backoff import Backoff as Backoff
    from halter.models.errors import ConnectionFailed as ConnectionFailed
    from halter.models.errors import ContextTooLong as ContextTooLong
    from halter.models.errors import ModelError as ModelError
    from halter.models.errors import ProviderError as ProviderError
    from halter.models.errors import StreamBroken as StreamBroken
    from halter.models.gemini import GeminiModel as GeminiModel
    from halter.models.http.client import aclose_clients as aclose_clients
    from halter.models.http.client import preload as preload
    from halter.models.local.model import LocalModel as LocalModel
    from halter.models.model_call import ModelCall as ModelCall
    from halter.models.openai.chat import OpenAIModel as OpenAIModel
    from halter.models.openai.responses import OpenAIResponsesModel as OpenAIResponsesModel
    from halter.models.prices import Price as Price
    from halter.models.types import AssistantMessage as AssistantMessage
    from halter.models.types import Audio as Audio
    from halter.models.types import Finished as Finished
    from halter.models.types import FinishReason as FinishReason
    from halter.models.types import Image as Image
    from halter.models.types import Message as Message
    from halter.models.types import Model as Model
    from halter.models.types import ModelEvent as ModelEvent
    from halter.models.types import ModelRequest as ModelRequest
    from halter.models.types import ModelSettings as ModelSettings
    from halter.models.types import OutputSchema as OutputSchema
    from halter.models.types import Part as Part
    from halter.models.types import Reasoning as Reasoning
    from halter.models.types import ReasoningDelta as ReasoningDelta
    from halter.models.types import ReasoningDone as ReasoningDone
    from halter.models.types import Text as Text
    from halter.models.types import TextDelta as TextDelta
    from halter.models.types import ToolCall as ToolCall
    from halter.models.types import ToolCallDelta as ToolCallDelta
    from halter.models.types import ToolCallDone as ToolCallDone
    from halter.models.types import ToolCallStarted as ToolCallStarted
    from halter.models.types import ToolMessage as ToolMessage
    from halter.models.types import ToolSpec as ToolSpec
    from halter.models.types import Usage as Usage
    from halter.models.types import UserMessage as UserMessage

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "answer": ["Answer"],
        "anthropic": ["AnthropicModel"],
        "backoff": ["Backoff"],
        "errors": ["ConnectionFailed", "ContextTooLong", "ModelError", "ProviderError", "StreamBroken"],
        "gemini": ["GeminiModel"],
        "http.client": ["aclose_clients", "preload"],
        "local.model": ["LocalModel"],
        "model_call": ["ModelCall"],
        "openai.chat": ["OpenAIModel"],
        "openai.responses": ["OpenAIResponsesModel"],
        "prices": ["Price"],
        "types": [
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
        ],
    },
)
