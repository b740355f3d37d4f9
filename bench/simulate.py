"""A cluster of 1, 10, 100 and 1,000 gateways with a million sessions, simulated with measured costs.

    python bench/simulate.py [--write]

Discrete events: messages arrive, leases are taken, turns stream and commit, nodes renew their keys and watch others,
stops travel, and a tenth of the nodes is lost. Each gateway is a queue with one core; each of three NATS servers is one
with `CORES`: the first leads the logs, the second the leases, the third the nodes. What a step costs is measured in
`bench/simulate_costs.py`; the load is assumed, and stands below. The network takes no time. With --write the costs and
the table go to `bench/results/simulate.json`.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import heapq
import itertools
import random
from typing import TYPE_CHECKING

from bench.measure import percentile, print_table
from bench.results import write_results
from bench.simulate_costs import Cost, measure_costs

if TYPE_CHECKING:
    from collections.abc import Callable

SESSIONS = 1_000_000
MESSAGES = SESSIONS / 3_600  # a second: each session is used once an hour
TURN = 20.0  # seconds
WORDS = 20.0  # a second
COMMIT = 0.1  # seconds between two commits of a turn's text
STOPS = 20.0  # a second
LEASE = 10.0  # seconds
RENEWALS = 4  # in a lease
IDLE = 300.0  # seconds that an unused session stays loaded
CORES = 4  # of a NATS server
LENGTH = 40.0  # seconds that are simulated, after the turns have reached their usual number
HOT = 0.5  # of all messages go to one node, where that is asked for
PATIENCE = 20.0  # seconds that a list may take


class Queue:
    """A processor: work is done in the order in which it comes."""

    def __init__(self, cores: int = 1) -> None:
        self._cores = cores
        self._free_at = 0.0
        self.busy = 0.0

    def work(self, now: float, microseconds: float) -> float:
        """Give it work; gives the time at which that is done."""
        seconds = microseconds / 1e6 / self._cores
        self.busy += seconds
        self._free_at = max(self._free_at, now) + seconds
        return self._free_at


class Simulation:
    """One cluster, for `LENGTH` seconds."""

    def __init__(self, count: int, costs: dict[str, Cost], *, hot: bool = False) -> None:
        self._costs = costs
        self._rng = random.Random(count)
        self._hot = hot
        self.nodes = [Queue() for _ in range(count)]
        self.logs, self.leases, self.keys = (Queue(CORES) for _ in range(3))
        self._running = [0] * count
        self._turns: list[tuple[int, float]] = []  # the node and the end of each
        self._loaded: dict[int, int] = {}
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = itertools.count()
        self.acknowledged: list[float] = []
        self.stopped: list[float] = []
        self.renewed: list[float] = []

    def run(self) -> None:
        for session in range(int(MESSAGES * IDLE)):  # the first of these were used within the last minutes
            self._loaded[session] = self._pick()
        for _ in range(int(MESSAGES * TURN)):
            self._begin_turn(0.0, self._pick(), self._rng.random() * TURN)
        self._at(0.0, self._message)
        self._at(0.0, self._stop)
        for node in range(len(self.nodes)):
            self._at(self._rng.random() * COMMIT, lambda now, node=node: self._commit(now, node))
            self._at(self._rng.random() * LEASE / RENEWALS, lambda now, node=node: self._renew(now, node))
        while self._events and self._events[0][0] < LENGTH:
            now, _, event = heapq.heappop(self._events)
            event(now)

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), event))

    def _pick(self) -> int:
        """The node that a client's request reaches."""
        return 0 if self._hot and self._rng.random() < HOT else self._rng.randrange(len(self.nodes))

    def _message(self, now: float) -> None:
        self._at(now + self._rng.expovariate(MESSAGES), self._message)
        asked, session = self._pick(), self._rng.randrange(SESSIONS)
        owner = self._loaded.setdefault(session, -1)
        if owner < 0:  # nobody has it
            owner = self._loaded[session] = asked
            here, server = self._costs["lease"]
            at = self.leases.work(self.nodes[owner].work(now, here), server)
        else:
            at = self._request(now, asked, owner)
        done = self.logs.work(self.nodes[owner].work(at, self._costs["append"].gateway), self._costs["append"].server)
        self.acknowledged.append(done - now)
        self._begin_turn(done, owner, TURN)

    def _request(self, now: float, asked: int, owner: int) -> float:
        """Have the node that has the session do something, by way of the one that was asked."""
        here = self._costs["request"].gateway
        at = now if asked == owner else self.nodes[asked].work(now, here)
        return self.nodes[owner].work(at, here)

    def _begin_turn(self, now: float, node: int, seconds: float) -> None:
        self._running[node] += 1
        turn = node, now + seconds
        self._turns.append(turn)

        def end(_now: float) -> None:
            self._running[node] -= 1

        self._at(now + seconds, end)

    def _commit(self, now: float, node: int) -> None:
        """The text of all turns of a node, in one batch."""
        self._at(now + COMMIT, lambda later: self._commit(later, node))
        turns = self._running[node]
        cost = turns * (WORDS * COMMIT * self._costs["word"].gateway + self._costs["append"].gateway)
        self.logs.work(self.nodes[node].work(now, cost), turns * self._costs["append"].server)

    def _renew(self, now: float, node: int) -> None:
        """Renew the key, and take the renewals of all others since the last time."""
        self._at(now + LEASE / RENEWALS, lambda later: self._renew(later, node))
        count = len(self.nodes)
        at = self.nodes[node].work(now, self._costs["heartbeat"].gateway + count * self._costs["watch"].gateway)
        done = self.keys.work(at, self._costs["heartbeat"].server + count * self._costs["watch"].server)
        self.renewed.append(done - now)

    def _stop(self, now: float) -> None:
        """Somebody stops a running turn through any node."""
        self._at(now + self._rng.expovariate(STOPS), self._stop)
        node, end = self._rng.choice(self._turns[-int(MESSAGES * TURN) :])
        if end > now:
            self.stopped.append(self._request(now, self._pick(), node) - now)


def take_over(count: int, costs: dict[str, Cost]) -> tuple[int, float, float]:
    """The loss of a tenth of the nodes: how many, seconds of each other node's work, and until the servers are done.

    Each node that is left lists all leases, and all sessions, once for each node that is lost.
    """
    lost = count // 10
    one = SESSIONS * lost / 1e6
    own = one * (costs["list leases"].gateway + costs["list sessions"].gateway)
    server = one * (count - lost) * max(costs["list leases"].server, costs["list sessions"].server) / CORES
    return lost, own, server


def describe(count: int, costs: dict[str, Cost]) -> dict[str, object]:
    calm, hot = Simulation(count, costs), Simulation(count, costs, hot=True)
    calm.run()
    hot.run()
    lost, own, server = take_over(count, costs)
    return {
        "gateway_percent": round(100 * sum(node.busy for node in calm.nodes) / LENGTH / count),
        "hot_gateway_percent": round(100 * hot.nodes[0].busy / LENGTH),
        "log_server_percent": round(100 * calm.logs.busy / LENGTH),
        "lease_server_percent": round(100 * calm.leases.busy / LENGTH),
        "node_server_percent": round(100 * calm.keys.busy / LENGTH),
        "message_p99_ms": round(1e3 * percentile(calm.acknowledged, 99), 1),
        "stop_p99_ms": round(1e3 * percentile(calm.stopped, 99), 1),
        "hot_stop_p99_ms": round(1e3 * percentile(hot.stopped, 99), 1),
        "renewal_longest_ms": round(1e3 * max(calm.renewed), 1),
        "lost_nodes": lost,
        "take_over_gateway_seconds": round(own),
        "take_over_server_seconds": round(server),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write bench/results/simulate.json")
    options = parser.parse_args()
    costs = measure_costs()
    print_table(
        "Costs in µs of processor time",
        ["step", "gateway", "server"],
        [[step, f"{cost.gateway:g}", f"{cost.server:g}"] for step, cost in costs.items()],
    )
    found = {f"nodes_{count}": describe(count, costs) for count in (1, 10, 100, 1_000)}
    names = list(found["nodes_1"])
    print_table(
        f"{SESSIONS:,} sessions",
        ["", *(key.removeprefix("nodes_") for key in found)],
        [[name, *(f"{each[name]}" for each in found.values())] for name in names],
    )
    if options.write:
        measured = {step.replace(" ", "_"): cost._asdict() for step, cost in costs.items()}
        print(write_results("simulate", {"costs": measured, **found}))


if __name__ == "__main__":
    main()
