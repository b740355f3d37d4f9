"""A response that is streamed as server-sent events, with a comment from time to time if there is nothing to send.

Proxies close connections that are silent for long, and the comment finds clients that are gone without a word.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import web

from halter.gateway.http.sse import STREAM_HEADERS

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["ChunkStream"]

_log = logging.getLogger(__name__)
_BEAT: Final = 15.0  # seconds of silence
_encode = msgspec.json.Encoder().encode


class ChunkStream:
    """One streamed response, in an `async with` block. Sending raises `ConnectionError` if the client is gone."""

    def __init__(self, request: web.Request) -> None:
        self.response = web.StreamResponse(headers=STREAM_HEADERS)
        self._request = request
        self._is_silent = True
        self._beating: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        await self.response.prepare(self._request)
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        """End the response. A boundary: after an error it cannot become another one, so the connection is closed."""
        self._beating.cancel()
        await asyncio.wait({self._beating})
        if error is None:
            await self.response.write_eof()
            return False
        if not isinstance(error, Exception) or isinstance(error, ConnectionError):
            return False
        _log.error("the response failed", exc_info=error)
        if self._request.transport is not None:
            self._request.transport.close()
        return True

    async def send(self, data: object, event: str = "") -> None:
        """Send an object as JSON, under the name of an event if it has one."""
        head = f"event: {event}\n".encode() if event else b""
        await self._write(head + b"data: " + _encode(data) + b"\n\n")

    async def done(self) -> None:
        """Send the mark of the end."""
        await self._write(b"data: [DONE]\n\n")

    async def _write(self, data: bytes) -> None:
        self._is_silent = False
        await self.response.write(data)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT)
            transport: Any = self._request.transport
            if self._is_silent and transport is not None and not transport.get_write_buffer_size():
                with contextlib.suppress(ConnectionError):  # the buffer is empty, so this does not wait
                    await self.response.write(b": \n\n")
            self._is_silent = True
