"""Faults in a cluster under load: three NATS servers and three gateways as processes, and clients that use ids.

    python bench/cluster_faults.py [--rounds 10] [--clients 20] [--seed 1] [--first 0] [--lease 2] [--keep FOLDER]
                                   [--fault NAME]

In each round clients talk to new sessions through whatever gateway they pick, stop turns, and follow the events; in the
middle of it something fails: see `bench/cluster_injections.py`. When all is at rest again, `bench/cluster_checker.py`
judges by what the clients saw and what is in the log. The seed and the number of the round decide the fault and what
the clients do; the time at which something happens is the machine's. What is wrong is kept in FOLDER, with the logs.
With a NAME, that fault happens in every round.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import contextlib
import json
import random
import shlex
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from bench.cluster_checker import Commit, Report, check
from bench.cluster_injections import FAULTS, inject
from bench.cluster_servers import nats_cluster
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import NEVER
from halter.stores import NATSStore
from halter.views.event_json import encode_event
from tests.support.gateway_client import OWN, EventStream
from tests.support.node_processes import NodeProcess

if TYPE_CHECKING:
    from bench.cluster_servers import NATSCluster

_TIMEOUT = aiohttp.ClientTimeout(total=15)
_REST = 120.0  # seconds until all must be at rest
_LEAST = 4  # messages of each client
_BEGUN = 60.0  # seconds until half of the clients must have begun
_ROUND = 1_200.0  # seconds until a round must have ended
_REFUSED = (409, 429, 500, 503)


class Fleet:
    """The gateways, and how clients reach one of them."""

    def __init__(self, servers: NATSCluster, lease: float) -> None:
        self.lease = lease
        self.nodes = [
            NodeProcess(servers.urls_for(f"gateway{each}"), "halter", lease_seconds=lease, patience=3.0, replicas=3)
            for each in range(3)
        ]
        self.http: aiohttp.ClientSession

    async def ask(self, rng: random.Random, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Ask some gateway; the status is 0 if it could not be reached."""
        node = rng.choice(self.nodes)
        try:
            async with self.http.request(method, node.url + path, json=body, timeout=_TIMEOUT) as answer:
                return answer.status, await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return 0, None


class Talker:
    """A client of one session: it sends messages, stops some turns, and follows all events."""

    def __init__(self, fleet: Fleet, name: str, seed: int) -> None:
        self.report = Report(name)
        self._fleet = fleet
        self._rng = random.Random(seed)
        self._path = f"/v1/sessions/{name}"
        self._may_end = asyncio.Event()
        self.has_begun = asyncio.Event()  # its first message was acknowledged

    async def talk(self, until: float) -> None:
        """Talk until a moment, then see to it that all is settled."""
        name = self.report.session
        await self._insist("POST", "/v1/sessions", {"id": name}, (200, 201))
        number = 0
        while time.monotonic() < until or number < _LEAST:
            number += 1
            mode = self._rng.choice(["queue", "queue", "steer", "interrupt"])
            text = self._rng.choice(["hi", "hi", "wait 0.3", "wait 30"])
            body = {"text": text, "id": f"m{number}", "mode": mode}
            if await self._insist("POST", f"{self._path}/messages", body, (202,)) is not None:
                self.report.accepted.add(f"m{number}")
            self.has_begun.set()
            await asyncio.sleep(self._rng.random() * 0.3)
            if self._rng.random() < 0.5:
                await self._stop()
                await self._release()
        await self._settle()
        self._may_end.set()

    async def _stop(self) -> None:
        receipt = await self._insist("POST", f"{self._path}/stop", {"wait": 5}, (200,))
        if receipt is not None and receipt["stopped"] and receipt["turn_id"]:  # without an id, it had not begun
            self.report.stopped.add(receipt["turn_id"])

    async def _release(self) -> None:
        for message in await self._insist("GET", f"{self._path}/inbox", None, (200,)) or ():
            if message["state"] == "held":
                await self._fleet.ask(self._rng, "PATCH", f"{self._path}/inbox/{message['id']}", {"state": "accepted"})

    async def _settle(self) -> None:
        """Stop what runs, until nothing runs and nothing is about to."""
        end = time.monotonic() + _REST
        while time.monotonic() < end:
            await self._stop()
            view = await self._insist("GET", self._path, None, (200,))
            inbox = await self._insist("GET", f"{self._path}/inbox", None, (200,))
            if view and view["state"] == "idle" and all(each["state"] == "held" for each in inbox or ()):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(f"{self.report.session} does not come to rest")

    async def _insist(self, method: str, path: str, body: object, wanted: tuple[int, ...]) -> Any:
        """Ask until it is done. Sent again with the same id: it must be done once."""
        end = time.monotonic() + _REST
        while time.monotonic() < end:
            status, found = await self._fleet.ask(self._rng, method, path, body)
            if status in wanted:
                return found
            if status and status not in _REFUSED:
                raise AssertionError(f"{method} {path}: {status} {found}")
            await asyncio.sleep(0.05)
        return None

    async def follow(self) -> None:
        """Follow the events over any number of connections, to the end of the log."""
        seen = self.report.seen
        while True:
            last = seen[-1]["seq"] if seen else 0
            node = self._rng.choice(self._fleet.nodes)
            headers = {"Last-Event-ID": str(last)} if last else {}
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError, ValueError):
                async with self._fleet.http.get(
                    node.url + f"{self._path}/events", headers=headers, timeout=aiohttp.ClientTimeout(total=20)
                ) as answer:
                    stream = EventStream(answer)
                    while answer.status == 200 and (event := await stream.next()) is not None:
                        seen.append(event)
                        if self._may_end.is_set() and event["seq"] >= self.last:
                            return
            if self._may_end.is_set() and seen and seen[-1]["seq"] >= self.last:
                return
            await asyncio.sleep(0.05)

    last = 1 << 60  # the number of the last event, once that is known


def read_log(store: NATSStore, session: str) -> tuple[list[dict[str, Any]], list[Commit]]:
    """A session's log, as events and as what the servers have."""
    events = [json.loads(encode_event(event)) for event in store.read(session)]

    async def read() -> list[Commit]:
        subject, sequence, commits = store.names.log(session), 1, []
        while page := await store._stream.read(subject, sequence):
            commits += [
                Commit(int(each.headers["Halter-Generation"]), not each.body, "Halter-Merged" in each.headers)
                for each in page
            ]
            sequence = page[-1].sequence + 1
        return commits

    return events, store._run(read)


async def one_round(
    number: int, options: argparse.Namespace, fleet: Fleet, servers: NATSCluster, store: NATSStore
) -> tuple[str, list[str], int]:
    """Talk, break something, come to rest, and judge."""
    seed, clients, keep = options.seed, options.clients, options.keep
    rng = random.Random(f"{seed}/{number}")
    fault = rng.choice(FAULTS if servers.can_be_full else [each for each in FAULTS if "disk" not in each])
    fault = options.fault or fault
    talkers = [Talker(fleet, f"r{seed}-{number}-{each}", rng.randrange(1 << 30)) for each in range(clients)]
    until = time.monotonic() + fleet.lease * 4
    talking = [asyncio.create_task(each.talk(until)) for each in talkers]
    following = [asyncio.create_task(each.follow()) for each in talkers]
    if rng.random() < 0.8:  # else it comes while sessions are being created
        begun = [asyncio.create_task(each.has_begun.wait()) for each in talkers[: (clients + 1) // 2]]
        await asyncio.wait(begun, timeout=_BEGUN)
        for task in begun:
            task.cancel()
    await asyncio.sleep(0.5 + rng.random())
    await inject(fault, rng, fleet.nodes, servers, fleet.lease)
    found = [repr(each) for each in await asyncio.gather(*talking, return_exceptions=True) if each is not None]
    logs = {}
    for talker in talkers:
        name = talker.report.session
        logs[name] = await run_blocking_async(lambda name=name: read_log(store, name), token=NEVER)
        talker.last = logs[name][0][-1]["seq"] if logs[name][0] else 0
    _, late = await asyncio.wait(following, timeout=60)
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    found += [f"{len(late)} streams did not come to the end"] if late else []
    for talker in talkers:
        wrong = check(talker.report, *logs[talker.report.session])
        found += wrong
        if wrong and keep is not None:
            write_down(keep, talker.report, wrong, *logs[talker.report.session])
    return fault, found, sum(len(each.report.accepted) for each in talkers)


def write_down(keep: Path, report: Report, wrong: list[str], events: list[Any], commits: list[Commit]) -> None:
    """Keep what is wrong with a session, with its log and with what its client saw."""
    found = {
        "wrong": wrong,
        "accepted": sorted(report.accepted),
        "stopped": sorted(report.stopped),
        "seen": report.seen,
        "events": events,
        "commits": commits,
    }
    keep.mkdir(parents=True, exist_ok=True)
    (keep / f"{report.session}.json").write_text(json.dumps(found, indent=1))


async def run(options: argparse.Namespace) -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder, nats_cluster(Path(folder)) as servers:
        fleet = Fleet(servers, options.lease)
        async with contextlib.AsyncExitStack() as stack:
            headers = {"Authorization": f"Bearer {OWN}"}
            fleet.http = await stack.enter_async_context(
                aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 24)
            )
            for node in fleet.nodes:
                await stack.enter_async_context(node)
            store = await run_blocking_async(lambda: NATSStore(servers.urls.split(","), patience=20), token=NEVER)
            stack.callback(store.close)
            for number in range(options.first, options.first + options.rounds):
                began = time.monotonic()
                try:
                    async with asyncio.timeout(_ROUND):
                        fault, found, count = await one_round(number, options, fleet, servers, store)
                except TimeoutError:
                    print(f"seed {options.seed} round {number}: it did not end in {_ROUND:g} s", flush=True)
                    return failed + 1
                failed += bool(found)
                verdict = "ok" if not found else f"{len(found)} VIOLATIONS"
                print(
                    f"seed {options.seed} round {number}: {fault}: {count} messages acknowledged, {verdict} "
                    f"({time.monotonic() - began:.0f} s)",
                    flush=True,
                )
                for each in found[:20]:
                    print(f"    {each}", flush=True)
                if found:
                    print(f"    again: {_arguments(number, options)}", flush=True)
    print(f"{options.rounds - failed} of {options.rounds} rounds without a violation")
    return failed


def _arguments(number: int, options: argparse.Namespace) -> str:
    """The arguments with which one round is repeated."""
    names = ("seed", "clients", "lease", *(["fault"] if options.fault else []))
    chosen = shlex.join(f"--{name}={getattr(options, name)}" for name in names)
    return f"{chosen} --first={number} --rounds=1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--lease", type=float, default=2.0, help="seconds")
    parser.add_argument("--fault", choices=FAULTS, default="", help="the same in every round; else one at random")
    parser.add_argument("--keep", type=Path, help="folder for what is wrong")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends servers and disks, too
    sys.exit(bool(asyncio.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
