"""Albums: several pictures that a user sends together, and that Telegram delivers one by one.

The first of an album is the message, and those that come soon after it are part of it. Its place in the line is that of
the first, so what is said behind the album stays behind it. None of them is safe before all are.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from halter.models.types import Part, Text

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.gateway.chat.adapter import Inbound, Incoming

__all__ = ["Albums"]

_WAIT: Final = 1.0  # seconds for the others to arrive: Telegram does not say how many there are


class Albums:
    """The albums that are being received."""

    def __init__(self) -> None:
        self._open: dict[str, _Album] = {}

    async def take(self, inbound: Inbound, incoming: Incoming, album: str) -> None:
        """Take a message: by itself, or together with the others of its *album*."""
        if not album or incoming.fetch is None:
            await inbound.take(incoming)
            return
        first = self._open.get(album)
        if first is not None:
            first.others.append(incoming)
            await first.taken.wait()
            return
        first = self._open[album] = _Album(incoming, lambda: self._open.pop(album, None))
        try:
            await inbound.take(replace(incoming, fetch=first.fetch))
        finally:
            self._open.pop(album, None)
            first.taken.set()


class _Album:
    def __init__(self, first: Incoming, close: Callable[[], object]) -> None:
        self.others: list[Incoming] = []
        self.taken = asyncio.Event()
        self._first = first
        self._close = close

    async def fetch(self) -> list[Part]:
        """Download all of them."""
        await asyncio.sleep(_WAIT)
        self._close()  # later ones are messages of their own
        parts: list[Part] = []
        for each in (self._first, *self.others):
            if each is not self._first and each.text:
                parts.append(Text(each.text))
            parts += await each.fetch() if each.fetch is not None else []
        return parts
