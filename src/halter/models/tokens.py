"""Estimates of how many tokens messages are. The provider's own count is better, and is used where there is one.

The estimate is deliberately high: a compaction that comes early costs little, one that comes late costs a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from halter.models.types import AssistantMessage, Audio, Text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halter.models.types import Message, Part, ToolSpec

__all__ = ["BYTES_PER_TOKEN", "message_tokens", "prompt_tokens", "text_tokens"]

BYTES_PER_TOKEN: Final = 3  # English prose has more than four, source code and JSON about three
_PER_MESSAGE: Final = 8  # roles and separators
_IMAGE: Final = 1_600  # most providers scale images down to about this
_AUDIO_BYTES_PER_TOKEN: Final = 500


def text_tokens(text: str) -> int:
    """About how many tokens a text is."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return -(-size // BYTES_PER_TOKEN)


def message_tokens(message: Message) -> int:
    """About how many tokens a message is."""
    if isinstance(message, AssistantMessage):
        tokens = text_tokens(message.text)
        for call in message.calls:
            tokens += _PER_MESSAGE + text_tokens(call.name) + text_tokens(call.arguments)
        for thought in message.reasoning:
            tokens += text_tokens(thought.text) + text_tokens(thought.signature) + text_tokens(thought.redacted)
        return tokens + _PER_MESSAGE
    return _PER_MESSAGE + sum(map(_part_tokens, message.parts))


def prompt_tokens(instructions: str, tools: Iterable[ToolSpec]) -> int:
    """About how many tokens a request has besides its messages."""
    return text_tokens(instructions) + sum(len(msgspec.json.encode(tool)) // BYTES_PER_TOKEN for tool in tools)


def _part_tokens(part: Part) -> int:
    if isinstance(part, Text):
        return text_tokens(part.text)
    return len(part.data) // _AUDIO_BYTES_PER_TOKEN + 1 if isinstance(part, Audio) else _IMAGE
