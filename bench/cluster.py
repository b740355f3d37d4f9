"""A cluster as its clients see it: a stop through another node, a take-over after kill -9, a drain.

    python bench/cluster.py [--stops 60] [--takeovers 3] [--turns 50]

Gateways are processes that share one NATS server; the provider is a real HTTP server in this process. A stop is
measured from the moment it is sent until the provider sees its connection closed: sent to the gateway that has the
session, and to another one, by turns. A take-over is measured from kill -9 of a gateway until another one has sealed
the turn. A drain ends a gateway with running turns; each of them has to end once, and no message may be lost.

Goals: a stop through another node p99 under 5 ms more; a take-over within the lease and one second; nothing lost.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import Goals, percentile, print_table
from halter.testing import FakeProvider, hang_mid_stream
from tests.support.nats_server import NATSServer
from tests.support.node_processes import NodeProcess

if TYPE_CHECKING:
    from tests.support.gateway_client import Client

_LEASE = 2.0


async def stop_times(server: NATSServer, provider: FakeProvider, count: int) -> dict[str, list[float]]:
    """Seconds from a stop to the closed connection, through the owner and through another node."""
    times: dict[str, list[float]] = {"owner": [], "another node": []}
    async with (
        NodeProcess(server.url, "stops", provider=provider.openai_url) as one,
        NodeProcess(server.url, "stops") as two,
        one.client() as owner,
        two.client() as other,
    ):
        await owner.create()
        for number in range(2 * count + 2):
            name, client = ("owner", owner) if number % 2 else ("another node", other)
            seen, closes = len(provider.requests), len(provider.closes)
            await owner.post("Go.")
            await asyncio.to_thread(provider.wait_for_pieces, 1, seen + 1)
            await asyncio.sleep(0.02)
            began = time.monotonic()
            stopping = asyncio.create_task(client.stop(wait=True))
            closed = await provider.await_close(closes + 1)
            assert (await stopping).body["stopped"]
            if number >= 2:
                times[name].append(closed - began)
    return times


async def takeover_time(server: NATSServer, number: int) -> float:
    """Seconds from kill -9 of a node until another one has sealed its turn."""
    prefix = f"takeover{number}"
    async with (
        NodeProcess(server.url, prefix, lease_seconds=_LEASE) as one,
        NodeProcess(server.url, prefix, lease_seconds=_LEASE) as two,
        two.client() as other,
    ):
        async with one.client() as client:
            await client.create()
            await client.post("wait 60")
            async with client.events() as stream:
                await stream.until("text.delta", 3)
        async with other.events() as stream:
            await stream.until("text.delta", 3)
            began = time.monotonic()
            one.signal(signal.SIGKILL)
            await stream.until("turn.finished")
            return time.monotonic() - began


async def drain(server: NATSServer, turns: int) -> tuple[float, int, int]:
    """End a node with running turns; gives the seconds, and how many turns were lost and how many ran twice."""
    names = [f"s{number}" for number in range(turns)]
    async with (
        NodeProcess(server.url, "drain", patience=20.0) as one,
        NodeProcess(server.url, "drain") as two,
        two.client() as other,
    ):
        async with one.client() as client:
            for name in names:
                await client.create(name)
            await asyncio.gather(*(client.post("wait 2", name, id="m1") for name in names))
            await asyncio.gather(*(client.post("hi", name, id="m2") for name in names))
            began = time.monotonic()
            one.signal(signal.SIGTERM)
            await one.ended()
            took = time.monotonic() - began
        found = await asyncio.gather(*(_ends(other, name) for name in names))
    return took, sum(done < 2 for done, _ in found), sum(applied > 2 for _, applied in found)


async def _ends(client: Client, name: str) -> tuple[int, int]:
    """How many turns of a session are done, and how many messages were applied."""
    events = await client.finished(name, turns=2)
    ends = [each["data"]["status"] for each in events if each["data"]["type"] == "turn.finished"]
    return ends.count("done"), sum(each["data"]["type"] == "message.applied" for each in events)


async def run(stops: int, takeovers: int, turns: int) -> Goals:
    goals = Goals()
    with tempfile.TemporaryDirectory() as folder, NATSServer(Path(folder)) as server:
        with FakeProvider(default=hang_mid_stream()) as provider:
            times = await stop_times(server, provider, stops)
        rows = [
            [name, *(f"{1_000 * percentile(values, each):.1f} ms" for each in (50, 90, 99))]
            for name, values in times.items()
        ]
        print_table(
            f"A stop, until the provider's connection is closed ({stops} each)", ["through", "p50", "p90", "p99"], rows
        )
        more = [percentile(times["another node"], each) - percentile(times["owner"], each) for each in (50, 99)]
        goals.check(
            f"through another node: p50 {1_000 * more[0]:+.1f} ms, p99 {1_000 * more[1]:+.1f} ms (under 5)",
            is_met=more[1] < 0.005,
        )
        taken = [await takeover_time(server, number) for number in range(takeovers)]
        text = f"take-over after kill -9: {statistics.median(taken):.2f} s at the median, {max(taken):.2f} s at most"
        goals.check(f"{text}, with a lease of {_LEASE:g} s", is_met=max(taken) < _LEASE + 1)
        took, lost, twice = await drain(server, turns)
        goals.check(
            f"drain of {turns} running turns in {took:.1f} s: {lost} lost, {twice} twice", is_met=not (lost or twice)
        )
    return goals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stops", type=int, default=60)
    parser.add_argument("--takeovers", type=int, default=3)
    parser.add_argument("--turns", type=int, default=50)
    options = parser.parse_args()
    goals = asyncio.run(run(options.stops, options.takeovers, options.turns))
    sys.exit(goals.exit_code)


if __name__ == "__main__":
    main()
