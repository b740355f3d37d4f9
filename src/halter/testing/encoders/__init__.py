"""How a scripted reply is written for each API that a `FakeProvider` speaks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from halter.testing.encoders import anthropic, chat, gemini, responses

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from halter.testing.replies import ScriptedReply

__all__ = ["stream_events", "whole_answer", "wire_of"]

_ENDINGS: Final[dict[str, ModuleType]] = {
    "/chat/completions": chat,
    "/messages": anthropic,
    "/responses": responses,
    ":streamGenerateContent": gemini,
    ":generateContent": gemini,
}


def wire_of(path: str) -> ModuleType | None:
    """The encoder for requests to this path; None if no API has it."""
    path = path.partition("?")[0]
    return next((encoder for ending, encoder in _ENDINGS.items() if path.endswith(ending)), None)


def stream_events(reply: ScriptedReply, wire: ModuleType, model: str) -> tuple[bytes, Iterable[bytes], Iterable[bytes]]:
    """Encode a reply as a stream: its beginning, its chunks of content, its end."""
    encoded: tuple[bytes, Iterable[bytes], Iterable[bytes]] = wire.stream(reply, model)
    return encoded


def whole_answer(reply: ScriptedReply, wire: ModuleType, model: str) -> bytes:
    """Encode a reply that is not streamed."""
    return json.dumps(wire.whole(reply, model)).encode()
