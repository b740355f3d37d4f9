"""The gateway under load, as its clients see it: 1,000 sessions that stream, a stop to all of them, idle ones beside.

    python bench/gateway.py [--sessions 1000] [--idle 1000 10000] [--seconds 4]

The gateway is a process of its own, with a SQLite file; the clients are this one. Each session's model says a word 20
times a second, and each session has a client with an open event stream. Then all are stopped at once: each by a request
on a connection of its own; then again, each over the WebSocket over which its events come; then again, all by one
request. Counted for each is the time from writing that to reading `turn.finished` on its stream. Idle sessions are
awake, have had one turn each, and have no client; their memory is what the process has grown by. The last column is the
machine's pace just before the stop: how long a plain loop took. At the end, ten times as many messages come as may run
at once: each is answered with 202 or 429, and whether every 202 was applied exactly once is looked up in the file.

Goals: all stopped with p99 under 250 ms; 10,000 idle sessions under 200 MB; no message lost.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import collections
import contextlib
import gc
import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measure import Goals, percentile, plain_loop, print_table

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncIterator, Callable, Iterator

_KEY = "a-key-for-the-benchmark"
_RATE = 20
_WORD = "word "
_AT_MOST = 60.0
_WAYS = ("requests", "WebSockets", "one request")
_TURNS = 1_000  # that may run at once, where ten times as many come


# -- the server's process --------------------------------------------------------------------------------------------


class Ticking:
    """Says a word 20 times a second, for as long as it is let; or, if it is asked briefly, once."""

    name = "ticking"

    async def stream(self, request) -> AsyncIterator[object]:
        from halter.models.types import Finished, TextDelta

        yield TextDelta(_WORD)
        if request.messages[-1].text.startswith("tick"):
            while True:
                await asyncio.sleep(1 / _RATE)
                yield TextDelta(_WORD)
        elif request.messages[-1].text.startswith("a while"):
            await asyncio.sleep(5)
        yield Finished("stop")


async def serve(place: str, turns: int, sockets: list[socket.socket] | None = None) -> None:
    """Serve sessions that are in a SQLite file, or in NATS if *place* is its address."""
    from halter import Agent
    from halter.gateway import Gateway, GatewayLimits, Keys
    from halter.stores import NATSStore, SQLiteStore

    gc.freeze()
    gc.set_threshold(50_000, 50, 100)  # as `halter serve` does, and the next line, too
    sys.setswitchinterval(0.0002)
    limits = GatewayLimits(
        turns=turns, key_turns=turns, key_messages=10_000_000, key_sessions=10_000_000, streams=100_000
    )
    with NATSStore(place) if place.startswith("nats:") else SQLiteStore(place) as store:
        async with Gateway(
            Agent(Ticking()), store, Keys(own=_KEY), limits=limits, idle_after=3600, sockets=sockets
        ) as gateway:
            print(gateway.url.rpartition(":")[2], flush=True)
            await asyncio.Event().wait()


def child(path: str, turns: int, loop: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with contextlib.suppress(KeyboardInterrupt):
        if loop == "uvloop":
            import uvloop

            uvloop.run(serve(path, turns))
        else:
            asyncio.run(serve(path, turns))


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """The gateway's process."""

    def __init__(self, folder: str, turns: int, loop: str) -> None:
        self.path = f"{folder}/sessions.db"
        argv = [sys.executable, "-m", "bench.gateway", "--child", self.path, str(turns), loop]
        root = Path(__file__).resolve().parents[1]
        self.process = subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU so far, by part."""
        return {"gateway": cpu_of(self.process.pid)}

    def memory(self) -> float:
        """Megabytes in memory."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(30)


# -- the clients -----------------------------------------------------------------------------------------------------


class Connection(asyncio.Protocol):
    """A connection that costs as little as it can: what comes is counted, and looked through for two words."""

    def __init__(self) -> None:
        self.words = 0
        self.finished: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.answer: asyncio.Future[bytes] | None = None
        self.word = b"\nevent: text.delta"
        self.end = b"\nevent: turn.finished"
        self._tail = b""

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if self.answer is not None:
            self._tail += data
            head, found, body = self._tail.partition(b"\r\n\r\n")
            if found and len(body) >= _length(head):
                answer, self.answer, self._tail = self.answer, None, b""
                answer.set_result(head + found + body)
            return
        self.words += data.count(self.word)
        if self.end in data and not self.finished.done():
            self.finished.set_result(time.perf_counter())

    def listen(self, name: str, *, by_socket: bool) -> None:
        """Ask for the events of a session: as a stream, or over a WebSocket."""
        if by_socket:
            self.word, self.end = b'"type":"text.delta"', b'"type":"turn.finished"'
            self.transport.write(
                f"GET /v1/sessions/{name}/ws HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {_KEY}\r\n"
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
            )
        else:
            self.transport.write(_request("GET", f"/v1/sessions/{name}/events", b""))

    def stop(self) -> None:
        """Stop the session over its WebSocket: one frame, masked with zeros."""
        body = b'{"type":"stop"}'
        self.transport.write(bytes([0x81, 0x80 | len(body), 0, 0, 0, 0]) + body)

    def send(self, method: str, path: str, body: bytes = b"") -> asyncio.Future[bytes]:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(_request(method, path, body))
        return self.answer


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _request(method: str, path: str, body: bytes) -> bytes:
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {_KEY}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body


async def connect(port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


async def together(jobs: Iterator, at_once: int) -> None:
    """Run all of them, some at a time."""

    async def work() -> None:
        for job in jobs:
            await job

    await asyncio.wait_for(asyncio.gather(*(work() for _ in range(at_once))), _AT_MOST * 4)


async def make(port: int, names: list[str], message: str = "", at_once: int = 50) -> collections.Counter[int]:
    """Make sessions or leave a message in each; gives how often which status came back for the message."""
    statuses: collections.Counter[int] = collections.Counter()
    connections = [await connect(port) for _ in range(at_once)]

    async def one(name: str) -> None:
        connection = connections.pop()
        if not message:
            await connection.send("POST", "/v1/sessions", f'{{"id": "{name}"}}'.encode())
        else:
            body = f'{{"text": "{message}", "id": "{name}"}}'.encode()
            answer = await connection.send("POST", f"/v1/sessions/{name}/messages", body)
            statuses[int(answer.split()[1])] += 1
        connections.append(connection)

    await together((one(name) for name in names), at_once)
    for connection in connections:
        connection.transport.close()
    return statuses


async def stream(server: Server, count: int, seconds: float, how: str) -> dict[str, Any]:
    """Have sessions stream, and stop them all, in one of the ways of `_WAYS`.

    The server may be several processes: its `cpu()` has them as "gateway", and others by their names.
    """
    port = server.port
    names = [f"stream-{number}-{time.time():.0f}" for number in range(count)]
    await make(port, names)
    streams, controls = [], []
    for name in names:
        listener = await connect(port)
        listener.listen(name, by_socket=how == "WebSockets")
        streams.append(listener)
        controls.append(await connect(port))
    began = [
        control.send("POST", f"/v1/sessions/{name}/messages", b'{"text": "tick"}')
        for name, control in zip(names, controls, strict=True)
    ]
    await asyncio.wait_for(asyncio.gather(*began), _AT_MOST)
    await asyncio.sleep(1)
    words, before, since = sum(each.words for each in streams), _cpu_with_clients(server), time.perf_counter()
    await asyncio.sleep(seconds)
    words, took = sum(each.words for each in streams) - words, time.perf_counter() - since
    cores = {name: (spent - before[name]) / took for name, spent in _cpu_with_clients(server).items()}
    rate = plain_loop()
    asked = []
    answers = []
    stopping = server.cpu()["gateway"]
    for name, control, listener in zip(names, controls, streams, strict=True):
        asked.append(time.perf_counter())
        if how == "WebSockets":
            listener.stop()
        elif how == "requests":
            answers.append(control.send("POST", f"/v1/sessions/{name}/stop"))
        elif not answers:
            answers.append(control.send("POST", "/v1/stop"))
    ends = await asyncio.wait_for(asyncio.gather(*(each.finished for each in streams)), _AT_MOST)
    await asyncio.wait_for(asyncio.gather(*answers), _AT_MOST)
    word = b'"stopped":%d' % count if how == "one request" else b'"stopped":true'
    stopping = server.cpu()["gateway"] - stopping
    waits = [end - at for end, at in zip(ends, asked, strict=True)]
    unconfirmed = sum(word not in each.result() for each in answers) + sum(wait < 0 for wait in waits)
    for each in (*streams, *controls):
        each.transport.close()
    return {
        "events": words / took,
        "share": words / took / (count * _RATE),
        "core": words / took / cores["gateway"],
        "cores": cores,
        "stop": stopping / count * 1e6,
        "p50": percentile(waits, 50) * 1000,
        "p99": percentile(waits, 99) * 1000,
        "max": max(waits) * 1000,
        "rate": rate,
        "unconfirmed": unconfirmed,  # stops whose answer does not say that they stopped the turn, or after its end
    }


def _cpu_with_clients(server: Server) -> dict[str, float]:
    return {**server.cpu(), "clients": time.process_time()}


def run(turns: int, loop: str, what: Callable) -> object:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder, turns, loop)
        try:
            return asyncio.run(what(server))
        finally:
            server.end()


async def beside(server: Server, idle: int, sessions: int, seconds: float) -> list[dict[str, Any]]:
    first = [f"first-{number}" for number in range(20)]
    await make(server.port, first)
    await make(server.port, first, "hello")
    before = server.memory()
    names = [f"idle-{number}" for number in range(idle)]
    await make(server.port, names)
    statuses = await make(server.port, names, "hello")
    assert statuses == ({202: idle} if idle else {}), statuses
    await asyncio.sleep(0.5)
    figures = {"memory": server.memory(), "each": (server.memory() - before) * 1024 / max(idle, 1)}
    awake = server.memory()
    found = []
    for how in _WAYS:
        found.append(figures | await stream(server, sessions, seconds, how))
        found[-1]["streaming"] = (server.memory() - awake) * 1024 / sessions
        awake = server.memory()
    return found


async def overload(server: Server) -> tuple[collections.Counter[int], int, int]:
    """Ten times as many messages as may run; gives the answers, and how many messages were applied and are lost."""
    names = [f"many-{number}" for number in range(10 * _TURNS)]
    await make(server.port, names)
    statuses = await make(server.port, names, "a while", at_once=500)
    from halter.events import MessageAccepted, MessageApplied
    from halter.stores import SQLiteStore

    with SQLiteStore(server.path) as store:
        deadline = time.monotonic() + _AT_MOST
        while any(info.waiting for info in store.sessions()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.2)  # it is another process that ends it
        accepted: collections.Counter[str] = collections.Counter()
        applied: collections.Counter[str] = collections.Counter()
        for info in store.sessions():
            for event in store.read(info.id):
                accepted[info.id] += isinstance(event.data, MessageAccepted)
                applied[info.id] += isinstance(event.data, MessageApplied)
    assert accepted.total() == statuses[202], (accepted.total(), statuses)
    return statuses, applied.total(), sum(accepted[each] != applied[each] for each in accepted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1_000)
    parser.add_argument("--idle", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--loop", choices=["asyncio", "uvloop"], default="asyncio")
    parser.add_argument("--no-overload", action="store_true")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]), options.child[2])
        return 0
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    goals = Goals()
    print(f"On {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at the beginning; {options.loop}.\n")
    rows = []
    for idle in options.idle:
        found = run(
            10_000, options.loop, lambda server, idle=idle: beside(server, idle, options.sessions, options.seconds)
        )
        for how, figures in zip(_WAYS, found, strict=True):
            assert not figures["unconfirmed"], figures
            names = ("events", "core", "stop", "p50", "p99", "max", "streaming")
            row = [f"{idle:,} idle beside, {how}", *(f"{figures[name]:,.0f}" for name in names)]
            rows.append([*row, f"{figures['rate'] * 1000:.2f}"])
            share, cores = figures["share"], figures["cores"]["gateway"]
            print(f"  {idle:,} idle, {how}: {share:.0%} of the words came in time; the gateway got {cores:.2f} cores.")
            goals.at_most(f"{idle:,} idle, {how}: stop to finished, p99", figures["p99"], 250, " ms")
        if idle:
            print(f"  {idle:,} idle: {found[0]['memory']:.0f} MB, {found[0]['each']:.1f} KB each")
        if idle >= 10_000:
            goals.at_most(f"{idle:,} idle sessions", found[0]["memory"], 200, " MB")
    if rows:
        print_table(
            f"\n{options.sessions:,} sessions at {_RATE} events/s, then a stop to all; Python {sys.version.split()[0]}",
            ["", "events/s", "for a core", "µs for a stop", "p50 ms", "p99 ms", "worst ms", "KB streaming", "pace ms"],
            rows,
        )
    if not options.no_overload:
        statuses, applied, lost = run(_TURNS, options.loop, overload)
        print(f"  {10 * _TURNS:,} messages where {_TURNS:,} turns may run: {dict(statuses)}; applied: {applied:,}")
        goals.check(f"messages that were accepted and are lost: {lost}", is_met=lost == 0 and applied == statuses[202])
    print(f"\nLoad {os.getloadavg()[0]:.1f} at the end.")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
