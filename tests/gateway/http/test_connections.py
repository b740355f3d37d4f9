"""Many connections: those that have sent no whole request make room for others, and a stop is always answered."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from halter.gateway import Gateway, GatewayLimits
from halter.testing import Gate
from tests.support.gateway_client import AT_MOST, OWN, Client, gateway_of
from tests.support.looped import looped

HALF = b"POST /v1/stop HTTP/1.1\r\nHost: 127.0.0.1\r\n"
MANY = 260


@contextlib.asynccontextmanager
async def half_open(url: str, count: int) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """Connections whose clients have sent half of a request."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    opened = []
    for _ in range(count):
        opened.append(await asyncio.open_connection(host, int(port)))
        opened[-1][1].write(HALF)
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


@looped
async def test_a_stop_is_answered_beside_many_half_open_connections(tmp_path: Path) -> None:
    """With 256 files, 260 clients that sent half a request took all of them, and no stop was answered."""
    program = [sys.executable, "-m", "tests.support.gateway_program", str(tmp_path / "sessions.db"), "0"]
    limited = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *program]
    process = await asyncio.create_subprocess_exec(*limited, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()
        async with half_open(url, MANY):
            for _ in range(3):  # each on a connection of its own
                async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {OWN}"}) as http:
                    assert (await Client(http).ask("POST", "/v1/stop", {})).body == {"stopped": 0, "finished": 0}
                    assert (await Client(http).ask("GET", "/healthz")).status == 200
    finally:
        process.kill()
        await process.wait()


async def streaming(gateway: Gateway, client: Client, count: int) -> list[aiohttp.ClientResponse]:
    """Open event streams, each on a connection."""
    opened = []
    for _ in range(count):
        opened.append(await client.http.get("/v1/sessions/s/events", timeout=AT_MOST))
        assert opened[-1].status == 200
    return opened


@looped
async def test_connections_in_use_leave_room_for_stops() -> None:
    """Beyond its share a request is refused and told when to come again; a stop and the health check are answered."""
    gate = Gate()
    async with gateway_of(["One.", gate], limits=GatewayLimits(connections=16)) as (gateway, client):
        await client.create()
        await client.post("go")
        await gate.await_reached()
        streams = await streaming(gateway, client, 12)
        for _ in range(30):  # a new connection each
            async with aiohttp.ClientSession(gateway.url, headers={"Authorization": f"Bearer {OWN}"}) as http:
                other = Client(http)
                refused = await other.ask("GET", "/v1/sessions")
                assert (refused.status, refused.body["type"]) == (503, "urn:halter:problem:connections")
                assert (refused.headers["Retry-After"], refused.headers["Connection"]) == ("2", "close")
                assert (await other.ask("GET", "/healthz")).status == 200
        async with half_open(gateway.url, 40), aiohttp.ClientSession(gateway.url) as http:
            key = {"Authorization": f"Bearer {OWN}"}
            stopped = await Client(http).ask("POST", "/v1/sessions/s/stop", {}, headers=key)
            assert stopped.body["stopped"]
        for each in streams:  # none of them was closed to make room
            assert not each.content.at_eof()
            each.close()


@looped
async def test_the_connection_that_waited_longest_makes_room() -> None:
    """One whose request has come before is not touched, and the newest ones are served."""
    async with gateway_of(limits=GatewayLimits(connections=16)) as (gateway, client):
        await client.create()
        [stream] = await streaming(gateway, client, 1)
        async with half_open(gateway.url, 40) as opened:
            for reader, _ in opened[:25]:
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), 10) == b""
            reader, writer = opened[-1]
            writer.write(f"Authorization: Bearer {OWN}\r\n\r\n".encode())
            assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")
        assert not stream.content.at_eof()
        stream.close()


@looped
async def test_headers_that_never_end_are_not_waited_for() -> None:
    """There was no limit: such a connection stayed open for an hour."""
    limits = GatewayLimits(header_timeout=0.05)
    async with gateway_of(limits=limits) as (gateway, _), half_open(gateway.url, 1) as [(reader, _)]:
        assert await asyncio.wait_for(reader.read(), 10) == b""
