"""Requests that are not chat: one answer, and errors as for chat."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from halter.errors import HalterError
from halter.models.errors import ProviderError
from halter.models.http import wire
from halter.models.http.endpoint import Endpoint

KEY = "sk-a-very-secret-key"


@contextlib.asynccontextmanager
async def server(answer: bytes, *, ends: bool) -> AsyncIterator[str]:
    """A server that answers each connection with the same bytes, and then ends it or keeps it open."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            if not ends:
                await reader.read()  # until the other side goes
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"


def test_an_error_whose_text_never_ends_is_reported_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Was a defect: chat requests bounded the wait for the text of an error, and these did not."""
    monkeypatch.setattr(wire, "_ERROR_WAIT", 0.05)
    answer = b"HTTP/1.1 500 Oops\r\ncontent-length: 1000\r\n\r\nit began like this"

    async def main() -> None:
        async with server(answer, ends=False) as url:
            with pytest.raises(ProviderError) as caught:
                await Endpoint(url, KEY).post("/images", {})
        assert caught.value.status == 500

    asyncio.run(asyncio.wait_for(main(), 20))


def test_an_answer_that_is_not_http_says_so() -> None:
    """It read "the provider could not be reached: 400, message=...", of a status that no server had sent."""

    async def main() -> None:
        async with server(b"HTTP/1.1 abc\r\n\r\n", ends=True) as url:
            with pytest.raises(HalterError, match="the provider's answer is not valid HTTP: "):
                await Endpoint(url, KEY).post("/images", {})

    asyncio.run(asyncio.wait_for(main(), 20))


def test_an_error_does_not_repeat_the_key() -> None:
    """A server may say what it was given; ours to hide it. And it is one of our errors."""
    text = f"wrong key {KEY}".encode()
    answer = b"HTTP/1.1 401 No\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s" % (len(text), text)

    async def main() -> None:
        async with server(answer, ends=True) as url:
            with pytest.raises(HalterError, match=r"401: wrong key \[hidden\]"):
                await Endpoint(url, KEY).post("/images", {})

    asyncio.run(asyncio.wait_for(main(), 20))
