"""Images and recordings in events, replaced by their URLs.

In the log an event contains the bytes of an image. A client gets its URL, type and size instead: on a reconnect it is
sent all events again, and fetches only what it shows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from msgspec.structs import replace

from halter.events import Event, MessageAccepted, MessageEdited
from halter.events.tools import ToolFinished, ToolFinishedLate
from halter.models.types import Audio, Image, UserMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.models.types import Part
    from halter.tools.outcome import ToolOutcome

__all__ = ["detect_audio", "find_media", "is_sound", "replace_media"]

Medium: TypeAlias = Image | Audio

_SOUNDS: Final = frozenset({"application/ogg", "video/webm", "video/mp4"})  # what browsers call a recording
_AUDIO: Final = re.compile(r"audio/[a-z0-9.+-]{1,40}")
_MAGIC: Final = (
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"ID3", "audio/mpeg"),
    (b"\x1a\x45\xdf\xa3", "audio/webm"),
)
_WITH_MEDIA: Final = frozenset({MessageAccepted, MessageEdited, ToolFinished, ToolFinishedLate})


def is_sound(kind: str) -> bool:
    """Whether a media type is one of a recording."""
    return _AUDIO.fullmatch(kind) is not None or kind in _SOUNDS


def detect_audio(head: bytes) -> str:
    """The media type of a recording by its first bytes; empty if it is none of the usual ones."""
    if head[8:12] == b"WAVE":
        return "audio/wav"
    if head[4:8] == b"ftyp":
        return "audio/mp4"
    if head[:1] == b"\xff" and head[1:2] >= b"\xe0":
        return "audio/mpeg"
    return next((kind for magic, kind in _MAGIC if head.startswith(magic)), "")


def replace_media(event: Event) -> Event:
    """The event for clients; the same object if it has no media."""
    if type(event.data) not in _WITH_MEDIA:
        return event
    count = 0

    def reference(medium: Medium) -> dict[str, Any]:
        nonlocal count
        count += 1
        return {
            "type": medium.__struct_config__.tag,
            "media_type": medium.media_type,
            "bytes": len(medium.data or b""),
            "href": f"/v1/sessions/{quote(event.session, safe='')}/media/{event.seq}/{count}",
        }

    data = _with_media(event.data, reference)
    return replace(event, data=data) if count else event


def find_media(event: Event, number: int) -> Medium | None:
    """The image or recording with this number in its URL, counted from 1."""
    found: list[Medium] = []
    if type(event.data) in _WITH_MEDIA:
        _with_media(event.data, found.append)
    return found[number - 1] if 0 < number <= len(found) else None


def _with_media(data: Any, change: Callable[[Medium], object]) -> Any:  # noqa: ANN401  (of the kind that it was)
    """Replace each image and recording by what *change* returns, in order."""
    if isinstance(data, (MessageAccepted, MessageEdited)):
        return replace(data, message=UserMessage(_changed(data.message.parts, change)))
    return replace(data, outcome=_changed_outcome(data.outcome, change))


def _changed_outcome(outcome: ToolOutcome, change: Callable[[Medium], object]) -> ToolOutcome:
    late = outcome.late
    if late is not None and isinstance(late.content, list):
        late = replace(late, content=_changed(late.content, change))
    if isinstance(outcome.content, list):
        return replace(outcome, content=_changed(outcome.content, change), late=late)
    return replace(outcome, late=late)


def _changed(parts: list[Part], change: Callable[[Medium], object]) -> list[Any]:
    return [change(part) if isinstance(part, (Image, Audio)) and part.data is not None else part for part in parts]
