"""A bot as a program of its own, to be killed: `python -m tests.gateway.botprogram STORE SERVER`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from halter import Agent
from halter.gateway import Gateway, Keys
from halter.gateway.platforms.telegram import Telegram
from halter.gateway.serve import serve
from halter.models.model import Finished, ModelEvent, ModelRequest, TextDelta
from halter.stores import SQLiteStore
from tests.gateway.botserver import TOKEN, USER
from tests.gateway.kit import OWN


class Slow:
    """Repeats what it was told last; "wait" is never answered to its end."""

    name = "slow"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        text = request.messages[-1].text
        yield TextDelta(f"You said {text}")
        if text.endswith("wait"):
            await asyncio.Event().wait()
        yield Finished("stop")


def main() -> None:
    with SQLiteStore(sys.argv[1]) as store:
        bot = Telegram(TOKEN, [USER], busy="queue", server=sys.argv[2], every=0.05)
        serve(
            lambda: Gateway(Agent(Slow()), store, Keys(own=OWN), platforms=[bot]),
            patience=0.5,
            leaving=3.0,
            on_start=lambda gateway: print(gateway.url, flush=True),
        )


if __name__ == "__main__":
    main()
