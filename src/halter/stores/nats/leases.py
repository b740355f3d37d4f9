"""The lease of each session, as keys of a bucket that are changed by compare-and-set, and the nodes that are alive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import nats.js.errors

from halter.stores.nats.names import session_of, token_of

if TYPE_CHECKING:
    from nats.js.kv import KeyValue

    from halter.stores.nats.node import Node

__all__ = ["LeaseOwner", "Leases", "all_of"]


class LeaseOwner(NamedTuple):
    """The owner of a session, as the bucket has it."""

    node: str  # empty if it is free
    generation: int
    revision: int


class Leases:
    """The two buckets. Everything here runs on the event loop of the connection."""

    def __init__(self, leases: KeyValue, nodes: KeyValue) -> None:
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
        for token, (body, revision) in (await all_of(self._leases)).items():
            owner = json.loads(body)
            if owner["node"]:
                found[session_of(token)] = LeaseOwner(owner["node"], owner["generation"], revision)
        return found

    async def nodes(self) -> dict[str, dict[str, object]]:
        """Every node that is alive, with the host, process and time in its key."""
        return {node: json.loads(body) for node, (body, _) in (await all_of(self._nodes)).items()}


async def all_of(bucket: KeyValue) -> dict[str, tuple[bytes, int]]:
    """The values of all keys of a bucket, with their revisions."""
    found: dict[str, tuple[bytes, int]] = {}
    watcher = await bucket.watchall(ignore_deletes=True)
    try:
        async for entry in watcher:
            if entry is None:  # these were all
                break
            found[entry.key] = entry.value or b"", entry.revision or 0
    finally:
        await watcher.stop()  # type: ignore[no-untyped-call]
    return found
