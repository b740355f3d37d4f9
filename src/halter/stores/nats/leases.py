"""The lease of each session, as keys of a bucket that are changed by compare-and-set, and the nodes that are alive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

import nats.js.errors

from halter.stores.nats.names import session_of, token_of
from halter.stores.nats.requests import ANSWER_SECONDS
from halter.stores.nats.streams import Stream

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.kv import KeyValue

    from halter.stores.nats.names import Names
    from halter.stores.nats.node import Node
    from halter.stores.nats.streams import Stored

__all__ = ["LeaseOwner", "Leases"]

_OPERATION: Final = "KV-Operation"  # the header of an entry that says that its key was deleted


class LeaseOwner(NamedTuple):
    """The owner of a session, as the bucket has it."""

    node: str  # empty if it is free
    generation: int
    revision: int


class Leases:
    """The two buckets. Everything here runs on the event loop of the connection."""

    def __init__(self, client: Client, names: Names, leases: KeyValue, nodes: KeyValue) -> None:
        self._client = client
        self._names = names
        self._leases = leases
        self._nodes = nodes

    async def owner(self, session: str) -> LeaseOwner:
        """Who has a session."""
        try:
            entry = await self._leases.get(token_of(session))
        except nats.js.errors.NotFoundError:
            return LeaseOwner("", 0, 0)
        found = json.loads(entry.value or b"{}")
        return LeaseOwner(found["node"], found["generation"], entry.revision or 0)

    async def is_alive(self, node: str) -> bool:
        """Whether a node has renewed its key in time."""
        try:
            await self._nodes.get(node)
        except nats.js.errors.NotFoundError:
            return False
        return True

    async def take(self, session: str, node: Node | None, generation: int, revision: int) -> int:
        """Change who has a session, if nobody else has meanwhile; gives the new revision, or 0."""
        body = json.dumps({"node": node.id if node is not None else "", "generation": generation}).encode()
        try:
            return await self._leases.update(token_of(session), body, last=revision)
        except nats.js.errors.KeyWrongLastSequenceError:
            return 0

    async def taken(self) -> dict[str, LeaseOwner]:
        """Every session that a node has, dead nodes included."""
        found = {}
        for token, entry in (await self._entries(self._names.leases)).items():
            owner = json.loads(entry.body)
            if owner["node"]:
                found[session_of(token)] = LeaseOwner(owner["node"], owner["generation"], entry.sequence)
        return found

    async def nodes(self) -> dict[str, dict[str, object]]:
        """Every node that is alive, with the host, process and time in its key."""
        return {node: json.loads(entry.body) for node, entry in (await self._entries(self._names.nodes)).items()}

    async def _entries(self, bucket: str) -> dict[str, Stored]:
        """The entries of a bucket by key.

        Not with `watchall()` of the client: its mark after the last entry can come before the first one.
        """
        prefix = f"$KV.{bucket}."
        entries = await Stream(self._client, f"KV_{bucket}", ANSWER_SECONDS).last_of_all(f"{prefix}>")
        return {each.subject.removeprefix(prefix): each for each in entries if _OPERATION not in each.headers}
