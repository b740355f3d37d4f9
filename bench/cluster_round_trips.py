"""What a message and the end of a turn cost in round trips to NATS, counted by the NATS server.

Two gateways share a server that counts what each connection sends. Nothing else happens meanwhile: the lease lasts so
long that it is not renewed. A request that waits for its answer is a round trip; each is one message that the server
gets, as every commit here is of one session and fits into one message.
"""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import TYPE_CHECKING

from tests.support.nats_server import NATSServer
from tests.support.node_processes import NodeProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.support.gateway_client import Client

__all__ = ["round_trips"]

_LEASE = 3_600.0
_SETS = ("busy", "ending", "idle")


class _Counted:
    """A server, and what the connections of the stores and of the gateways have sent to it."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._monitor = free.getsockname()[1]
        self.server = NATSServer(folder, "-m", str(self._monitor))

    def sent(self) -> dict[str, int]:
        """Messages so far, by the names of the connections."""
        found: dict[str, int] = {}
        with urllib.request.urlopen(f"http://127.0.0.1:{self._monitor}/connz", timeout=5) as answer:
            for each in json.load(answer)["connections"]:
                found[each["name"]] = found.get(each["name"], 0) + each["in_msgs"]
        return found


async def round_trips(folder: Path, count: int) -> dict[str, dict[str, float]]:
    """Messages to NATS through the owner of a session, and through another gateway.

    "message": a message is accepted. "end": a turn is stopped and sealed. "turn": a message is accepted, its turn
    begins, says three words, and ends.
    """
    counted = _Counted(folder)
    with counted.server as server:
        async with (
            NodeProcess(server.url, "trips", lease_seconds=_LEASE) as one,
            NodeProcess(server.url, "trips", lease_seconds=_LEASE) as two,
            one.client() as owner,
            two.client() as other,
        ):
            found = {}
            for name, client in (("owner", owner), ("another gateway", other)):
                place = name.partition(" ")[0]
                busy, ending, idle = ([f"{place}-{what}-{each}" for each in range(count)] for what in _SETS)
                for session in (*busy, *ending):
                    await _begin_turn(owner, session)
                for session in idle:
                    await owner.create(session)
                for session in (*busy, *ending, *idle):
                    await client.ask("GET", f"/v1/sessions/{session}")  # from here on it is known who has the session
                found[name] = {
                    "message": await _each(counted, busy, lambda each, to=client: to.post("More.", each)),
                    "end": await _each(counted, ending, lambda each, to=client: to.stop(each, wait=True)),
                    "turn": await _each(counted, idle, lambda each, to=client: _whole_turn(to, owner, each)),
                }
    return found


async def _begin_turn(client: Client, session: str) -> None:
    await client.create(session)
    await client.post("wait 600", session)
    async with client.events(session) as stream:
        await stream.until("text.delta", 3)


async def _whole_turn(client: Client, owner: Client, session: str) -> None:
    await client.post("hi", session)
    await owner.finished(session)


async def _each(counted: _Counted, sessions: list[str], do: Callable[[str], Awaitable[object]]) -> float:
    """Do something to each session; gives the messages to NATS for one of them."""
    before = sum(counted.sent().values())
    for session in sessions:
        await do(session)
    return (sum(counted.sent().values()) - before) / len(sessions)
