"""OpenAI's own client, for tests of gateways that speak its protocol."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from openai import AsyncOpenAI

from halter.gateway import Gateway
from tests.support.gateway_client import OWN, Client, gateway_of

HELLO: list[Any] = [{"role": "user", "content": "Hello."}]


def openai_client(gateway: Gateway, key: str = OWN, retries: int = 0) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=retries, timeout=30)


@contextlib.asynccontextmanager
async def openai_gateway(*script: Any, **options: Any) -> AsyncIterator[tuple[Gateway, AsyncOpenAI, Client]]:
    """A gateway with one agent, OpenAI's client of it, and our own."""
    async with gateway_of(*script, **options) as (gateway, own), openai_client(gateway) as client:
        yield gateway, client, own
