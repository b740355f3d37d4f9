"""Gateways that share their sessions through a NATS server, in one event loop, each with a store of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp

from halter import Agent
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import NEVER
from halter.gateway import Gateway, GatewayLimits, Keys
from halter.models.types import Model
from halter.stores import NATSStore
from halter.testing import ScriptedModel
from tests.support.gateway_client import OWN, Client
from tests.support.nats_server import NATSServer


class GatewayNode:
    """One gateway of a cluster, and a client of it."""

    def __init__(self, gateway: Gateway, store: NATSStore, http: aiohttp.ClientSession) -> None:
        self.gateway = gateway
        self.store = store
        self.client = Client(http)

    @property
    def has(self) -> set[str]:
        """The sessions that are loaded here."""
        return set(self.gateway.registry.live_sessions)


@contextlib.asynccontextmanager
async def node_of(
    server: NATSServer,
    prefix: str,
    model: Model | None = None,
    *,
    tools: Sequence[Any] = (),
    approve: Any = None,
    lease_seconds: float = 10.0,
    keys: Keys | None = None,
    key: str = OWN,
    limits: GatewayLimits | None = None,
    **options: Any,
) -> AsyncIterator[GatewayNode]:
    """A gateway of the cluster with this prefix."""
    store = await run_blocking_async(
        lambda: NATSStore(server.url, prefix=prefix, lease_seconds=lease_seconds), token=NEVER
    )
    try:
        agent = Agent(model or ScriptedModel(), tools, approve=approve)
        async with Gateway(agent, store, keys or Keys(own=OWN), limits=limits, **options) as gateway:
            headers = {"Authorization": f"Bearer {key}"}
            async with aiohttp.ClientSession(gateway.url, headers=headers, read_bufsize=1 << 24) as http:
                yield GatewayNode(gateway, store, http)
    finally:
        await run_blocking_async(store.close, token=NEVER)
