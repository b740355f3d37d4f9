"""Albums: several pictures that a user sends together, and that Telegram delivers one by one.

The first picture of an album is the message, and those that come soon after it are part of it. The album has the order
of its first picture, so what is sent after it stays after it. No picture is acknowledged before all are stored.
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

_WAIT: Final = 1.0  # seconds for the others to arrive: Telegram does not send their number


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
