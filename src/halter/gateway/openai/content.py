"""Images and recordings as OpenAI's clients send them: URLs and base64."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from halter.gateway.http.errors import Problem
from halter.models.image_types import IMAGE_TYPES, image_type
from halter.models.types import Audio, Image

__all__ = ["audio_part", "image_part"]

_DATA_URL: Final = re.compile(r"data:[^,]{0,200};base64,", re.IGNORECASE)
_URL: Final = re.compile(r"https?://[^\s/]", re.IGNORECASE)
_SOUNDS: Final = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def image_part(url: str, field: str) -> Image:
    """An image by its URL, which the provider fetches, or inside of a `data:` URL."""
    head = _DATA_URL.match(url)
    if head is None:
        if _URL.match(url):
            return Image(url=url)
        raise Problem(422, "an image must be an https:// URL or data:image/…;base64,…", field=field, kind="image")
    data = _decoded(url[head.end() :], field)
    kind = image_type(data)
    if not kind:
        names = ", ".join(sorted(IMAGE_TYPES))
        raise Problem(422, f"an image must be one of {names}", field=field, kind="image")
    return Image(data, media_type=kind)


def audio_part(data: str, kind: str, field: str) -> Audio:
    """A recording: *kind* is "wav" or "mp3"."""
    if kind not in _SOUNDS:
        raise Problem(422, f"audio must be one of {', '.join(_SOUNDS)}", field=field, kind="audio")
    return Audio(_decoded(data, field), media_type=_SOUNDS[kind])


def _decoded(text: str, field: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Problem(422, f"this is not base64: {error}", field=field, kind="base64") from error
    if not data:
        raise Problem(422, "this part is empty", field=field, kind="empty")
    return data
