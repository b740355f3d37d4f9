"""Events as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from halter.events import Event

__all__ = ["encode_event"]

_encode = msgspec.json.Encoder().encode


def encode_event(event: Event) -> bytes:
    """An event as one line of JSON, without the line end."""
    try:
        return _encode(event)
    except UnicodeEncodeError:  # a lone surrogate, as in some file names: only JSON's escapes can carry it
        return json.dumps(msgspec.to_builtins(event)).encode()
