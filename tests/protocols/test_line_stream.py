"""Lines over two descriptors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from halter.cancel.threads import blocking
from halter.protocols.line_stream import LineStream


class Pipes(NamedTuple):
    """What a client has and what the stream has."""

    to_stream: int
    from_stream: int
    reading: int
    writing: int


@pytest.fixture
def pipes() -> Iterator[Pipes]:
    reading, to_stream = os.pipe()
    from_stream, writing = os.pipe()
    pipes = Pipes(to_stream, from_stream, reading, writing)
    yield pipes
    for each in pipes:
        try:
            os.close(each)
        except OSError:
            continue


def test_lines_are_put_together(pipes: Pipes) -> None:
    """Lines come whole, however they were written; the last one needs no end, and then the token is cancelled."""

    async def scenario() -> list[object]:
        stream = LineStream(pipes.reading, pipes.writing)
        os.write(pipes.to_stream, b"one\ntw")
        found: list[object] = []
        async for line in stream.lines():
            found.append(line)
            if line == b"one":
                os.write(pipes.to_stream, b"o\n\nlast")
                os.close(pipes.to_stream)
        assert (stream.token.reason, stream.token.detail) == ("disconnect", "the client closed the connection")
        await stream.flush(1.0)
        return found

    assert asyncio.run(scenario()) == [b"one", b"two", b"", b"last"]


def test_a_cancelled_token_ends_the_lines(pipes: Pipes) -> None:
    """A read that waits for the client does not keep anybody who ends the connection."""

    async def scenario() -> None:
        stream = LineStream(pipes.reading, pipes.writing)
        asyncio.get_running_loop().call_later(0.01, stream.token.cancel, "shutdown")
        assert [line async for line in stream.lines()] == []
        await stream.flush(1.0)
        os.write(pipes.to_stream, b"late\n")  # ends the read that was left behind

    asyncio.run(scenario())


def test_a_flush_is_bounded(pipes: Pipes) -> None:
    """What the client does not read is given up after the seconds; what it reads comes in order."""

    async def scenario() -> None:
        stream = LineStream(pipes.reading, pipes.writing)
        stream.write(b"x" * 1_000_000)
        async with asyncio.timeout(10.0):
            await stream.flush(0.05)
        stream.write(b"dropped")
        assert os.read(pipes.from_stream, 10) == b"x" * 10
        os.close(pipes.from_stream)  # ends the write that was left behind

    asyncio.run(scenario())


def test_a_drain_ends_with_the_client(pipes: Pipes) -> None:
    """Who waits for a slow client goes on when it is disconnected."""

    async def scenario() -> None:
        stream = LineStream(pipes.reading, pipes.writing)
        stream.write(b"x" * 3_000_000)
        draining = asyncio.create_task(stream.drain())
        await asyncio.sleep(0)
        assert not draining.done()
        stream.token.cancel("disconnect")
        async with asyncio.timeout(10.0):
            await draining
        os.close(pipes.from_stream)
        await stream.flush(1.0)

    asyncio.run(scenario())


def test_a_client_that_is_gone_is_disconnected(pipes: Pipes) -> None:
    """A pipe that nobody reads any more cancels the token."""

    async def scenario() -> None:
        stream = LineStream(pipes.reading, pipes.writing)
        os.close(pipes.from_stream)
        stream.write(b"hello")
        async with asyncio.timeout(10.0):
            await stream.token.wait_async()
        assert stream.token.detail == "cannot write to the client: Broken pipe"
        assert not stream.has_overflowed
        await stream.flush(1.0)

    asyncio.run(scenario())


def test_lines_are_exchanged_although_too_many_tools_are_stuck(pipes: Pipes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of an editor died at the limit of stuck calls, so that it could not stop anything any more."""
    monkeypatch.setattr(blocking.abandoned, "limit", 0)

    async def scenario() -> None:
        stream = LineStream(pipes.reading, pipes.writing)
        os.write(pipes.to_stream, b"stop\n")
        async for line in stream.lines():
            assert line == b"stop"
            stream.write(b"stopped")
            break
        await asyncio.wait_for(stream.drain(), 20)
        await stream.flush(20.0)
        assert os.read(pipes.from_stream, 100) == b"stopped\n"

    asyncio.run(scenario())
