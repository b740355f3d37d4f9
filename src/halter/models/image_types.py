"""The kinds of images that every model accepts, recognised by their first bytes: names and headers are often wrong."""

from __future__ import annotations

from typing import Final

__all__ = ["IMAGE_TYPES", "image_type"]

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
