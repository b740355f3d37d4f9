"""A streamed response: silence is filled, and an error closes it."""

from __future__ import annotations

import aiohttp
import pytest

from halter.gateway.openai import chunk_stream
from halter.gateway.openai.answer_text import AnswerText
from halter.testing import Gate
from tests.support.gateway_client import AT_MOST, gateway_of
from tests.support.looped import looped
from tests.support.openai_client import HELLO
from tests.support.waiting import until

BODY = {"model": "halter", "messages": HELLO, "stream": True}


def test_a_silent_stream_sends_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that says nothing for long is not cut off by a proxy, and clients skip the comments."""
    monkeypatch.setattr(chunk_stream, "_BEAT", 0.01)

    @looped
    async def run() -> None:
        gate = Gate()
        async with gateway_of([gate, "Hi."]) as (_, client):
            async with client.http.post("/v1/chat/completions", json=BODY, timeout=AT_MOST) as response:
                assert await response.content.readuntil(b"\n\n") != b": \n\n"
                for _ in range(3):
                    assert await response.content.readuntil(b"\n\n") == b": \n\n"
                gate.open()
                rest = await response.read()
        assert b'"content":"Hi."' in rest
        assert rest.endswith(b"data: [DONE]\n\n")

    run()


def test_an_unexpected_error_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The response has begun, so it cannot become a 500; the client sees that it is not whole, and the log says why."""

    def fail(self: AnswerText, data: object) -> str:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(AnswerText, "take", fail)

    @looped
    async def run() -> None:
        async with gateway_of("Hi.") as (gateway, client):
            async with client.http.post("/v1/chat/completions", json=BODY, timeout=AT_MOST) as response:
                assert response.status == 200
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()

            async def is_over() -> bool:
                return not gateway.registry.busy

            await until(is_over)

    run()
    assert "unexpected" in caplog.text
