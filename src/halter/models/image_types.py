"""The kinds of images that every model accepts, recognised by their first bytes: names and headers are often wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.models.types import Image, Text

if TYPE_CHECKING:
    from collections.abc import Container

    from halter.models.types import Part

__all__ = ["IMAGE_TYPES", "image_type", "sendable"]

IMAGE_TYPES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def image_type(data: bytes) -> str:
    """The media type of an image; "" if it is none of these. The first 12 bytes are enough."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""


def sendable(part: Part, *, others: Container[str] = ()) -> Part:
    """A part as providers accept it: an image with its real type, or text about one of a kind that they refuse.

    A refused image would make every later request of its conversation fail. *others* are types that a provider also
    accepts, as the image names them.
    """
    if not isinstance(part, Image) or part.data is None:
        return part
    kind = image_type(part.data) or (part.media_type if part.media_type in others else "")
    return (
        Image(part.data, media_type=kind) if kind else Text(f"[an image ({part.media_type}) that models do not take]")
    )
