"""Images in the terminal, where it can show them: by kitty's graphics protocol, or as iTerm2's inline images.

Environment variables tell which terminal it is. The terminal is not queried: its reply would arrive among the keys, or
never.
"""

from __future__ import annotations

import base64
import os
import struct
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from halter.models.types import Image

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halter.views.items import CallItem

__all__ = ["ImageProtocol", "image_protocol", "image_sequence", "images_of"]

ImageProtocol: TypeAlias = Literal["kitty", "iterm2"]

_MAX_BYTES: Final = 2_000_000  # a larger image would block the terminal for too long
_CHUNK: Final = 4096  # characters, the maximum of kitty's protocol
_MAX_HEIGHT: Final = 480  # pixels; a taller image is scaled to _ROWS
_ROWS: Final = 20
_KITTY: Final = frozenset({"ghostty", "kitty"})
_ITERM2: Final = frozenset({"iTerm.app", "WezTerm"})
_PNG: Final = b"\x89PNG\r\n\x1a\n"


def image_protocol(env: Mapping[str, str] = os.environ) -> ImageProtocol | None:
    """How this terminal shows images; None if it does not, or inside of tmux and screen, which pass none on."""
    if env.get("TMUX") or env.get("TERM", "").startswith(("screen", "tmux", "dumb")):
        return None
    program = env.get("TERM_PROGRAM", "")
    if env.get("KITTY_WINDOW_ID") or env.get("TERM") in ("xterm-kitty", "xterm-ghostty") or program in _KITTY:
        return "kitty"
    return "iterm2" if program in _ITERM2 or env.get("LC_TERMINAL") == "iTerm2" else None


def images_of(call: CallItem) -> list[Image]:
    """The images that a call has returned."""
    content = call.outcome.content if call.outcome is not None else ""
    return [] if isinstance(content, str) else [part for part in content if isinstance(part, Image)]


def image_sequence(image: Image, protocol: ImageProtocol | None) -> str:
    """The escape sequence that shows an image; empty if the terminal cannot show it."""
    data = image.data or b""
    if protocol is None or not data or len(data) > _MAX_BYTES:
        return ""
    text = base64.b64encode(data).decode()
    if protocol == "iterm2":
        return f"\x1b]1337;File=inline=1;size={len(data)};preserveAspectRatio=1:{text}\x07"
    if not data.startswith(_PNG) or len(data) < len(_PNG) + 16:
        return ""  # kitty takes no other format
    (height,) = struct.unpack_from(">I", data, len(_PNG) + 12)
    options = f"a=T,f=100{f',r={_ROWS}' if height > _MAX_HEIGHT else ''}"
    pieces = [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]
    sent = [f"m={int(number < len(pieces))};{piece}" for number, piece in enumerate(pieces, 1)]
    return f"\x1b_G{options},{sent[0]}\x1b\\" + "".join(f"\x1b_G{each}\x1b\\" for each in sent[1:])
