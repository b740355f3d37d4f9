"""What single steps of a cluster cost, in microseconds of processor time: of a gateway's process, and of a NATS server.

Processor time, not time on the clock: other work on the machine changes it little. One server without replicas is
measured, and the provider is in the same process as the turn that it answers.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import nats

from halter import Agent
from halter.stores import NATSStore
from halter.stores.nats.streams import Append
from halter.testing import ScriptedModel
from tests.support.nats_server import NATSServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.js.kv import KeyValue

__all__ = ["Cost", "measure_costs"]

_KEYS = 400
_WORDS = 200  # in one answer
_TURNS = 20
_WATCHERS = 5
_BATCHES, _BATCH = 20, 100


class Cost(NamedTuple):
    """Of one step."""

    gateway: float
    server: float


class _Meter:
    def __init__(self, server: NATSServer) -> None:
        self._tasks = Path(f"/proc/{server.pid}/task")

    def server(self) -> float:
        """Seconds of processor time that all threads of the server have had."""
        return sum(int((each / "schedstat").read_text().split()[0]) for each in self._tasks.iterdir()) / 1e9

    def cost(self, work: Callable[[], object], count: int) -> Cost:
        """The cost of one of *count* steps that *work* does."""
        here, there = time.process_time(), self.server()
        work()
        return Cost(
            round(1e6 * (time.process_time() - here) / count, 1), round(1e6 * (self.server() - there) / count, 1)
        )


def measure_costs() -> dict[str, Cost]:
    with tempfile.TemporaryDirectory() as folder, NATSServer(Path(folder)) as server:
        meter = _Meter(server)
        with NATSStore(server.url, patience=60) as store:
            return _measure(store, meter, server.url)


def _measure(store: NATSStore, meter: _Meter, url: str) -> dict[str, Cost]:
    costs = {}
    leases = []
    names = [f"s{number}" for number in range(_KEYS)]

    async def acquire() -> None:
        leases.extend(await asyncio.gather(*map(store._acquire, names)))

    store.join()
    costs["lease"] = meter.cost(lambda: store._run(acquire), _KEYS)

    words = [f"word{number} " for number in range(_WORDS)]
    sessions = [Agent(ScriptedModel(words)).session(f"t{number}", store) for number in range(_TURNS)]

    async def turns() -> None:
        await asyncio.gather(*(session.arun("Go.") for session in sessions))

    costs["word"] = meter.cost(lambda: asyncio.run(turns()), _TURNS * _WORDS)._replace(server=0.0)
    for session in sessions:
        session.close()
    costs["list leases"] = meter.cost(store.owners, _KEYS)

    async def release() -> None:
        await asyncio.gather(*map(store._release, leases))

    store._run(release)
    costs["list sessions"] = meter.cost(store.sessions, _TURNS + _KEYS)
    costs["append"] = meter.cost(lambda: store._run(lambda: _append(store)), _BATCHES * _BATCH)
    costs |= asyncio.run(_core(url, meter))
    return costs


async def _append(store: NATSStore) -> None:
    """Commits of many sessions, as a busy gateway writes them: a piece of text of each in one atomic batch."""
    headers = {"Halter-Commit": "0" * 16, "Halter-Generation": "1", "Halter-Last": "1", "Halter-Info": "0.0 0.0 0"}
    for number in range(_BATCHES):
        subjects = [store.names.log(f"x{number}-{each}") for each in range(_BATCH)]
        await store._stream.append([Append(subject, b"x" * 200, headers, 0) for subject in subjects])


async def _watch(bucket: KeyValue) -> None:
    """Watch a bucket until the key `end` has come."""
    watcher = await bucket.watchall()
    async for entry in watcher:
        if entry is not None and entry.key == "end":
            break
    await watcher.stop()


async def _core(url: str, meter: _Meter) -> dict[str, Cost]:
    """A heartbeat, what each watcher of it costs, and a request with its reply."""
    one, two = await nats.connect(url), await nats.connect(url)
    bucket = await one.jetstream().create_key_value(bucket="beats", history=1)
    costs = {}

    def cpu() -> tuple[float, float]:
        return time.process_time(), meter.server()

    def since(start: tuple[float, float], count: int) -> Cost:
        now = cpu()
        return Cost(*(round(1e6 * (after - before) / count, 1) for after, before in zip(now, start, strict=True)))

    start = cpu()
    await asyncio.gather(*(bucket.put(f"n{number % 100}", b"{}") for number in range(_KEYS)))
    costs["heartbeat"] = since(start, _KEYS)
    there = await two.jetstream().key_value("beats")
    watches = [asyncio.create_task(_watch(there)) for _ in range(_WATCHERS)]
    start = cpu()
    await asyncio.gather(*(bucket.put(f"n{number % 100}", b"{}") for number in range(_KEYS)))
    await bucket.put("end", b"{}")
    await asyncio.gather(*watches)
    watched, beat = since(start, _KEYS), costs["heartbeat"]
    costs["watch"] = Cost(*(round(max(a - b, 0.0) / _WATCHERS, 1) for a, b in zip(watched, beat, strict=True)))

    async def reply(message: object) -> None:
        await message.respond(b"{}")  # type: ignore[attr-defined]

    await two.subscribe("ask", cb=reply)
    await two.flush()
    start = cpu()
    await asyncio.gather(*(one.request("ask", b"{}", 60) for _ in range(_KEYS)))
    costs["request"] = since(start, 2 * _KEYS)  # both sides are in this process
    await one.close()
    await two.close()
    return costs


if __name__ == "__main__":
    for step, cost in measure_costs().items():
        print(f"{step}: gateway {cost.gateway} µs, server {cost.server} µs")
