"""A gateway as a program of its own, to be killed: `python -m tests.support.gateway_program STORE PORT`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from halter import Agent
from halter.gateway import Gateway, GatewayLimits, Keys
from halter.gateway.serve import serve
from halter.models.types import Finished, ModelEvent, ModelRequest, TextDelta
from halter.stores import SQLiteStore
from tests.support.gateway_client import OWN


class Talking:
    """Says a few words, with pauses in which a kill may come.

    "wait" is answered when it is stopped, "wait 2" after two seconds, and "until FILE" when that file is there.
    """

    name = "talking"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        text = getattr(request.messages[-1], "text", "")
        for word in ("Some ", "few ", "words."):
            yield TextDelta(word)
            await asyncio.sleep(0.005)
        if text.startswith("wait"):
            await asyncio.sleep(float(text.partition(" ")[2] or 60))
        if text.startswith("until "):
            wanted = Path(text.removeprefix("until "))
            while not wanted.exists():  # noqa: ASYNC110, ASYNC240  (the test has no other way in)
                await asyncio.sleep(0.01)
        yield Finished("stop")


def main() -> None:
    limits = GatewayLimits(session_messages=10_000, key_messages=1_000_000, key_sessions=1_000_000)
    with SQLiteStore(sys.argv[1]) as store:
        serve(
            lambda: Gateway(Agent(Talking()), store, Keys(own=OWN), port=int(sys.argv[2]), limits=limits),
            drain_timeout=float(sys.argv[3]) if len(sys.argv) > 3 else 1.0,
            exit_timeout=10.0,  # for a busy machine
            on_start=lambda gateway: print(gateway.url, flush=True),
        )


if __name__ == "__main__":
    main()
