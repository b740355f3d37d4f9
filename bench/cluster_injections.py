"""What may fail in a cluster: each fault breaks something, waits, and mends it.

The clocks of the NATS servers are not stepped: only the machine's own clock would do that, for everybody on it. Those
of gateways are, which is a change of what `time.time()` says in that process.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import NEVER

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from bench.cluster_servers import NATSCluster
    from tests.support.node_processes import NodeProcess

__all__ = ["FAULTS", "inject"]

FAULTS = (
    "kill gateway",
    "suspend gateway",
    "drain gateway",
    "step clock of gateway",
    "kill NATS",
    "kill NATS leader",
    "suspend NATS",
    "full disk",
    "full disks",
    "partition gateway",
    "partition gateway from one NATS",
    "partition NATS",
    "partition NATS leader",
    "split",
)


class _Scene:
    """What a fault happens to."""

    def __init__(self, rng: random.Random, nodes: list[NodeProcess], servers: NATSCluster, lease: float) -> None:
        self.rng = rng
        self.servers = servers
        self.gateway = rng.randrange(len(nodes))
        self.node = nodes[self.gateway]
        self.number = rng.randrange(len(servers.servers))  # of a NATS server
        self._lease = lease

    async def wait(self, least: float, most: float) -> None:
        """Wait for some time; in leases."""
        await asyncio.sleep(self._lease * self.rng.uniform(least, most))

    async def choose_leader(self) -> None:
        """Have it happen to the server that leads the stream of all logs."""
        leader = await _call(lambda: self.servers.leader("halter_log"))
        self.number = self.number if leader is None else leader

    async def hold(self, links: list[str]) -> None:
        """Break links for a while. Then what was sent arrives late, or the connections are found broken."""
        await _call(lambda: self.servers.links.hold(links))
        await self.wait(0.5, 3.0)
        if self.rng.random() < 0.5:
            await _call(lambda: self.servers.links.cut(links))
        await _call(lambda: self.servers.links.go(links))

    async def fill(self, numbers: list[int]) -> None:
        """Let the disks of servers be full for a while. Then they are started again, as JetStream has turned off."""
        for number in numbers:
            await _call(lambda number=number: self.servers.fill_disk(number))  # type: ignore[misc]
        await self.wait(0.5, 2.0)
        for number in numbers:
            await _call(lambda number=number: self.servers.empty_disk(number))  # type: ignore[misc]
            await _call(self.servers.servers[number].kill)
            await _call(self.servers.servers[number].start)

    def gateway_links(self) -> list[str]:
        return [f"gateway{self.gateway}/{number}" for number in range(len(self.servers.servers))]


async def _call(fn: Callable[[], object]) -> object:
    return await run_blocking_async(fn, token=NEVER)


async def inject(fault: str, rng: random.Random, nodes: list[NodeProcess], servers: NATSCluster, lease: float) -> None:
    """Let something fail, and mend it."""
    scene = _Scene(rng, nodes, servers, lease)
    if fault.endswith("leader"):
        await scene.choose_leader()
    if "gateway" in fault and "partition" not in fault:
        await _to_gateway(fault, scene)
    elif "disk" in fault:
        await scene.fill(list(range(len(servers.servers))) if fault == "full disks" else [scene.number])
    elif "partition" in fault or fault == "split":
        await scene.hold(_links(fault, scene))
    else:
        await _to_server(fault, scene)


async def _to_gateway(fault: str, scene: _Scene) -> None:
    node = scene.node
    if fault == "kill gateway":
        node.signal(signal.SIGKILL)
        await node.ended()
        await scene.wait(0.0, 2.0)
        await node.start()
    elif fault == "drain gateway":
        node.signal(signal.SIGTERM)
        await node.ended()
        await node.start()
    elif fault == "suspend gateway":
        node.signal(signal.SIGSTOP)
        await scene.wait(0.5, 2.0)
        node.signal(signal.SIGCONT)
    else:
        forth, back = scene.rng.choice([(signal.SIGUSR1, signal.SIGUSR2), (signal.SIGUSR2, signal.SIGUSR1)])
        node.signal(forth)
        await scene.wait(0.5, 2.0)
        node.signal(back)


async def _to_server(fault: str, scene: _Scene) -> None:
    server = scene.servers.servers[scene.number]
    if fault == "suspend NATS":
        os.kill(server.pid, signal.SIGSTOP)
        await scene.wait(0.5, 2.0)
        os.kill(server.pid, signal.SIGCONT)
    else:
        await _call(server.kill)
        await scene.wait(0.0, 2.0)
        await _call(server.start)


def _links(fault: str, scene: _Scene) -> list[str]:
    """The links that a partition breaks."""
    own = scene.gateway_links()
    if fault == "partition gateway":
        return own
    if fault == "partition gateway from one NATS":
        return [own[scene.number]]
    routes = scene.servers.routes_of(scene.number)
    if fault == "split":  # a gateway and a server on one side, all others on the other side
        return routes + [link for link in own if link != own[scene.number]]
    return routes
