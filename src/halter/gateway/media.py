"""Pictures and recordings of messages and results, told of by their address.

An event has a picture's bytes in the log. To a client it says where they are, of what type and how many: whoever comes
back is sent all events again, and fetches only what is to be seen or heard.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

from msgspec.structs import replace

from halter.events import Event, MessageAccepted, MessageEdited
from halter.models.model import Audio, Image, UserMessage
from halter.tools.events import ToolFinished, ToolFinishedLate

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.models.model import Part
    from halter.tools.outcome import ToolOutcome

__all__ = ["IMAGES", "find_media", "is_sound", "tell_media"]

Medium: TypeAlias = Image | Audio

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
_SOUNDS: Final = frozenset({"application/ogg", "video/webm", "video/mp4"})  # what browsers call a recording
_AUDIO: Final = re.compile(r"audio/[a-z0-9.+-]{1,40}")
_WITH_MEDIA: Final = frozenset({MessageAccepted, MessageEdited, ToolFinished, ToolFinishedLate})


def is_sound(kind: str) -> bool:
    """Whether a media type is one of a recording."""
    return _AUDIO.fullmatch(kind) is not None or kind in _SOUNDS


def tell_media(event: Event) -> Event:
    """The event as clients are told of it: the same, if it has no picture and no recording in it."""
    if type(event.data) not in _WITH_MEDIA:
        return event
    count = 0

    def tell(medium: Medium) -> dict[str, Any]:
        nonlocal count
        count += 1
        return {
            "type": medium.__struct_config__.tag,
            "media_type": medium.media_type,
            "bytes": len(medium.data or b""),
            "href": f"/v1/sessions/{quote(event.session, safe='')}/media/{event.seq}/{count}",
        }

    data = _with_media(event.data, tell)
    return replace(event, data=data) if count else event


def find_media(event: Event, number: int) -> Medium | None:
    """The one that is told of as this number, from 1 on."""
    found: list[Medium] = []
    if type(event.data) in _WITH_MEDIA:
        _with_media(event.data, found.append)
    return found[number - 1] if 0 < number <= len(found) else None


def _with_media(data: Any, change: Callable[[Medium], object]) -> Any:  # noqa: ANN401  (of the kind that it was)
    """Go through all that has bytes in it, in order, and put in its place what *change* gives."""
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
