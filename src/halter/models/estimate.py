"""What a request has used if the provider did not say it: estimated from the text, and marked as an estimate.

A stopped request is the usual case: most providers report usage at the end of an answer, which never comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from halter.models.types import AssistantMessage, Message, ModelRequest, Text, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halter.models.answer import Answer

__all__ = ["answer_tokens", "complete_usage", "messages_tokens", "request_tokens"]

_BYTES_PER_TOKEN: Final = 4
_MEDIA_TOKENS: Final = 1_000  # an image or a recording
_MESSAGE_TOKENS: Final = 4  # what providers add around each message


def complete_usage(request: ModelRequest, answer: Answer) -> Usage:
    """The usage of one attempt: as the provider reported it for a complete answer, with estimates for what is missing.

    What it reported before the end of an answer is kept where it is more than the estimate.
    """
    reported = answer.usage
    if answer.status == "complete" and (reported.input_tokens or reported.output_tokens):
        return reported
    return replace(
        reported,
        input_tokens=reported.input_tokens or request_tokens(request),
        output_tokens=max(reported.output_tokens, answer_tokens(answer)),
        is_estimated=True,
    )


def request_tokens(request: ModelRequest) -> int:
    """About how many tokens a request has."""
    tools = len(msgspec.json.encode(request.tools)) // _BYTES_PER_TOKEN if request.tools else 0
    return messages_tokens(request.messages) + _tokens(_size(request.instructions)) + tools


def messages_tokens(messages: Iterable[Message]) -> int:
    """About how many tokens these messages have."""
    size = media = count = 0
    for count, message in enumerate(messages, 1):  # noqa: B007
        if isinstance(message, AssistantMessage):
            size += _size(message.text) + sum(len(call.arguments) + len(call.name) for call in message.calls)
            continue
        for part in message.parts:
            if isinstance(part, Text):
                size += _size(part.text)
            else:
                media += 1
    return _tokens(size) + media * _MEDIA_TOKENS + count * _MESSAGE_TOKENS


def answer_tokens(answer: Answer) -> int:
    """About how many tokens an answer has, with its reasoning and calls."""
    calls = sum(len(call.arguments) + len(call.name) for call in (*answer.calls, *answer.unfinished))
    return _tokens(_size(answer.text) + sum(_size(thought.text) for thought in answer.reasoning) + calls)


def _size(text: str) -> int:
    """The bytes of a text. Languages that need more bytes for a character need more tokens for it, too."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _tokens(size: int) -> int:
    return -(-size // _BYTES_PER_TOKEN)
