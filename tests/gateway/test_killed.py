"""kill -9 while many clients send messages: what was answered with 202 is applied exactly once, and streams go on."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp

from halter.events import MessageAccepted, MessageApplied
from halter.stores import SQLiteStore
from tests.support.gateway_client import OWN, EventStream
from tests.support.ports import held_ports

ALL = bool(os.environ.get("HALTER_EVERY_POINT"))
KILLS = 50 if ALL else 2
CLIENTS = 200
A_LIFE = 3  # messages that each client sends in each life of the gateway
WAIT = 30.0


class Lives:
    """A gateway that is killed and started again, always at the same address."""

    def __init__(self, store: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.is_up = asyncio.Event()
        self._argv = [sys.executable, "-m", "tests.support.gateway_program", str(store), str(port)]

    @contextlib.asynccontextmanager
    async def life(self, end: signal.Signals) -> AsyncIterator[None]:
        process = await asyncio.create_subprocess_exec(*self._argv, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            line = await asyncio.wait_for(process.stdout.readline(), WAIT)
            assert line.decode().strip() == self.url
            self.is_up.set()
            yield
        finally:
            self.is_up.clear()
            process.send_signal(end)
            await asyncio.wait_for(process.communicate(), WAIT)


class Person:
    """A client that sends messages until each of them is accepted, and follows its session through all lives."""

    def __init__(self, number: int, lives: Lives, http: aiohttp.ClientSession) -> None:
        self.session = f"s{number}"
        self.accepted: list[str] = []
        self.applied: collections.Counter[str] = collections.Counter()
        self.last = 0
        self._lives = lives
        self._http = http
        self._news = asyncio.Event()

    async def say(self, messages: int) -> None:
        """Have so many more messages accepted, whatever happens to the gateway. Each is sent until it is."""
        end = len(self.accepted) + messages
        while len(self.accepted) < end:
            name = f"{self.session}-{len(self.accepted)}"
            path = f"/v1/sessions/{self.session}/messages"
            try:
                await self._lives.is_up.wait()
                async with self._http.post("/v1/sessions", json={"id": self.session}) as made:
                    assert made.status in (200, 201), await made.text()
                async with self._http.post(path, json={"text": f"say {name}", "id": name}) as answer:
                    assert answer.status == 202, await answer.text()
                    await answer.read()
            except (aiohttp.ClientError, ConnectionError):
                await asyncio.sleep(0)  # it was killed; and the answer may have been on its way
            else:
                self.accepted.append(name)

    async def follow(self) -> None:
        """Read events for ever; each has to be the next one."""
        while True:
            await self._lives.is_up.wait()
            try:
                headers = {"Last-Event-ID": str(self.last)}
                async with self._http.get(f"/v1/sessions/{self.session}/events", headers=headers) as response:
                    if response.status == 404:  # it is not made yet
                        await asyncio.sleep(0.02)
                        continue
                    assert response.status == 200, await response.text()
                    stream = EventStream(response)
                    while (event := await stream.next()) is not None:
                        assert event["seq"] == self.last + 1
                        self.last = event["seq"]
                        if event["data"]["type"] == "message.applied":
                            self.applied[event["data"]["id"]] += 1
                            self._news.set()
            except (aiohttp.ClientError, ConnectionError):
                await asyncio.sleep(0)

    async def wait_until_applied(self) -> None:
        while not all(self.applied[name] for name in self.accepted):
            self._news.clear()
            await self._news.wait()


async def live(lives: Lives, chance: random.Random) -> list[Person]:
    """All lives of the gateway: killed at random moments, and in the last one left to finish."""
    connector = aiohttp.TCPConnector(limit=0)
    headers = {"Authorization": f"Bearer {OWN}"}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(lives.url, headers=headers, timeout=timeout, connector=connector) as http:
        people = [Person(number, lives, http) for number in range(CLIENTS)]
        following = [asyncio.create_task(person.follow()) for person in people]
        for _ in range(KILLS):
            saying = [asyncio.create_task(person.say(A_LIFE)) for person in people]
            async with lives.life(signal.SIGKILL):
                await asyncio.wait(saying, timeout=chance.uniform(0.0, 1.0))
            for task in saying:
                task.cancel()
            await asyncio.wait(saying)
            broken = [task for task in saying if not task.cancelled() and task.exception()]
            assert not broken, broken[0].exception()
        async with lives.life(signal.SIGTERM):
            await asyncio.wait_for(asyncio.gather(*(person.say(1) for person in people)), WAIT)
            await asyncio.wait_for(asyncio.gather(*(person.wait_until_applied() for person in people)), WAIT)
        for task in following:
            assert not task.done(), task.exception()
            task.cancel()
        await asyncio.wait(following)
        return people


def test_what_was_accepted_is_applied_exactly_once_whenever_the_gateway_is_killed(tmp_path: Path) -> None:
    """200 clients, and a kill -9 at random moments: no 202 is lost or done twice, no stream has a gap or a repeat."""
    seed = random.randrange(1_000_000)
    print(f"seed {seed}")

    async def run() -> list[Person]:
        with held_ports() as ports:
            return await live(Lives(tmp_path / "sessions.db", ports[0]), random.Random(seed))

    people = asyncio.run(asyncio.wait_for(run(), 60 + 20 * KILLS))
    with SQLiteStore(tmp_path / "sessions.db") as store:
        for person in people:
            data = [event.data for event in store.read(person.session)]
            accepted = collections.Counter(each.id for each in data if isinstance(each, MessageAccepted))
            applied = collections.Counter(each.id for each in data if isinstance(each, MessageApplied))
            assert set(person.accepted) <= set(accepted)
            assert set(accepted.values()) == set(applied.values()) == {1}
            assert accepted.keys() == applied.keys()
            assert applied == person.applied
            assert person.last <= len(data)
