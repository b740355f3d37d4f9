"""The gateway as a program: it drains at a signal, ends in bounded time with an honest code, and loses nothing."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from halter.events import TurnFinished
from halter.stores import SQLiteStore
from tests.support.gateway_client import AT_MOST, OWN, Client
from tests.support.hooked_store import waiting_in
from tests.support.looped import looped


class Program:
    """A gateway's process, and a client of it."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, client: Client) -> None:
        self.process = process
        self.url = url
        self.client = client

    async def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; how it ended, and what it said."""
        self.process.send_signal(number)
        return await self.ended()

    async def ended(self) -> tuple[int, str]:
        _, said = await asyncio.wait_for(self.process.communicate(), 15)
        assert self.process.returncode is not None
        return self.process.returncode, said.decode()


@contextlib.asynccontextmanager
async def program(store: Path, patience: float) -> AsyncIterator[Program]:
    argv = [sys.executable, "-m", "tests.support.gateway_program", str(store), "0", str(patience)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await asyncio.wait_for(process.stdout.readline(), 15)).decode().strip()
        async with aiohttp.ClientSession(url, headers={"Authorization": f"Bearer {OWN}"}) as http:
            yield Program(process, url, Client(http))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def speak(client: Client, text: str, session: str = "s") -> list[dict[str, Any]]:
    """Make a session with a turn that has said its words."""
    await client.create(session)
    await client.post(text, session)
    async with client.events(session) as stream:
        return await stream.until("text.delta", 3)


def ends(store: Path, session: str = "s") -> list[TurnFinished]:
    with SQLiteStore(store) as kept:
        return [event.data for event in kept.read(session) if isinstance(event.data, TurnFinished)]


@looped
async def test_a_turn_gets_the_chance_to_end(tmp_path: Path) -> None:
    """At a signal no message is taken any more, the turn goes on to its end, streams tell of it, and code 143 it is."""
    store = tmp_path / "sessions.db"
    go = tmp_path / "go"
    async with program(store, patience=30) as gateway:
        client = gateway.client
        seen = await speak(client, f"until {go}")
        async with client.events(after=seen[-1]["seq"]) as stream:
            gateway.process.terminate()
            while (answer := await client.post("too late")).status == 202:
                pass  # the signal is on its way; and what was accepted before it is kept
            assert (answer.status, answer.body["type"]) == (503, "urn:halter:problem:draining")
            assert int(answer.headers["Retry-After"]) >= 1
            assert (await client.ask("GET", "/healthz")).status == 503
            assert (await client.ask("POST", "/v1/sessions", {"id": "new"})).status == 503
            go.touch()
            assert [event["data"]["status"] for event in (await stream.rest())[-1:]] == ["done"]
        code, said = await gateway.ended()
        assert code == 143
        assert "SIGTERM" in said
    assert [end.status for end in ends(store)] == ["done"]


@looped
async def test_a_turn_that_does_not_end_is_sealed_as_shutdown(tmp_path: Path) -> None:
    """After the patience it is stopped; what it has said is kept, and what waits is applied by the next start."""
    store = tmp_path / "sessions.db"
    async with program(store, patience=0.2) as gateway:
        await speak(gateway.client, "wait 60")
        assert (await gateway.client.post("And then?", id="next")).status == 202
        began = time.monotonic()
        code, _ = await gateway.end()
        assert code == 143
        assert time.monotonic() - began < 10
    [end] = ends(store)
    assert (end.status, end.reason) == ("interrupted", "shutdown")
    with SQLiteStore(store) as kept:
        assert waiting_in(kept, "s") == ["next"]
    async with program(store, patience=0.2) as gateway:
        events = await gateway.client.finished(turns=2)  # nobody has asked for it but the store
        applied = [each["data"]["id"] for each in events if each["data"]["type"] == "message.applied"]
        assert applied[1:] == ["next"]
        assert (await gateway.end(signal.SIGINT))[0] == 130


@looped
async def test_a_second_signal_leaves_at_once(tmp_path: Path) -> None:
    """However patient it was to be; the exit code says that a turn was left behind."""
    async with program(tmp_path / "sessions.db", patience=30) as gateway:
        await speak(gateway.client, "wait 60")
        gateway.process.terminate()
        assert gateway.process.stderr is not None
        await asyncio.wait_for(gateway.process.stderr.readuntil(b"SIGTERM"), 10)
        code, said = await gateway.end(signal.SIGINT)  # SIGTERM that comes twice at once is one request
        assert code == 70
        assert "after a second signal" in said
    [*_] = ends(tmp_path / "sessions.db")


@looped
async def test_a_stop_works_while_it_drains(tmp_path: Path) -> None:
    """A person may still end what the gateway waits for."""
    async with program(tmp_path / "sessions.db", patience=30) as gateway:
        await speak(gateway.client, "wait 60")
        gateway.process.terminate()
        while (await gateway.client.ask("GET", "/healthz")).status == 200:
            pass
        assert (await gateway.client.stop()).body["stopped"]
        assert (await gateway.ended())[0] == 143
    assert [end.reason for end in ends(tmp_path / "sessions.db")] == ["stop"]


@looped
async def test_an_address_that_is_taken(tmp_path: Path) -> None:
    """It says so and ends; nothing hangs."""
    async with program(tmp_path / "sessions.db", patience=1) as gateway:
        port = gateway.url.rpartition(":")[2]
        argv = [sys.executable, "-m", "tests.support.gateway_program", str(tmp_path / "other.db"), port]
        other = await asyncio.create_subprocess_exec(*argv, stderr=subprocess.PIPE)
        _, said = await asyncio.wait_for(other.communicate(), AT_MOST.total)
        assert other.returncode == 1
        assert b"address already in use" in said
