"""Content blocks of the protocol, and the parts of our messages."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from halter.models.types import Audio, Image, Text
from halter.protocols.acp.schema import AudioBlock, ImageBlock, ResourceBlock, ResourceLinkBlock, TextBlock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from halter.models.types import Part
    from halter.protocols.acp.schema import ContentBlock, Resource

__all__ = ["fenced", "part_block", "pieces", "text_block", "to_parts"]

_PIECE: Final = 16_000  # characters of one chunk: some clients limit the length of a line


def to_parts(blocks: Iterable[ContentBlock]) -> list[str | Part]:
    """The parts of a message for the model."""
    return [_part(block) for block in blocks]


def _part(block: ContentBlock) -> Part:
    match block:
        case TextBlock():
            return Text(block.text)
        case ImageBlock():
            return Image(block.data, media_type=block.mime_type)
        case AudioBlock():
            return Audio(block.data, block.mime_type)
        case ResourceLinkBlock():
            return Text(f"[{block.name or _path(block.uri)}]({_path(block.uri)})")
        case ResourceBlock():
            return _resource(block.resource)


def _resource(resource: Resource) -> Part:
    name, kind, data = _path(resource.uri), resource.mime_type or "", resource.blob or b""
    if resource.text is not None:
        return Text(_file(name, resource.text))
    if kind.startswith("image/"):
        return Image(data, media_type=kind)
    if kind.startswith("audio/"):
        return Audio(data, kind)
    try:
        return Text(_file(name, data.decode()))
    except UnicodeDecodeError:
        return Text(f"({name}: {len(data):,} bytes of {kind or 'data'}, which is not text)")


def _file(name: str, text: str) -> str:
    return f'<file path="{name}">\n{text}\n</file>'


def _path(uri: str) -> str:
    """The path of a file, or the address of something else."""
    url = urlsplit(uri)
    return unquote(url.path) if url.scheme == "file" else uri


def text_block(text: str) -> dict[str, Any]:
    """A text for the client."""
    return {"type": "text", "text": text}


def part_block(part: Part) -> dict[str, Any]:
    """A part of a message or a result for the client."""
    if isinstance(part, Text):
        return text_block(part.text)
    if isinstance(part, Image) and part.data is None:
        return text_block(f"![image]({part.url})")
    kind = "image" if isinstance(part, Image) else "audio"
    return {"type": kind, "data": base64.b64encode(part.data or b"").decode(), "mimeType": part.media_type}


def pieces(text: str) -> Iterator[str]:
    """A long text in pieces that fit into one chunk each."""
    for start in range(0, len(text), _PIECE):
        yield text[start : start + _PIECE]


def fenced(text: str) -> str:
    """A text as a block of code, so that a client that renders Markdown shows it as it is."""
    longest = max((len(each) for each in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.rstrip()}\n{fence}"
