"""Bots as processes of their own, to be killed: `python -m tests.support.telegram_program STORE SERVER`.

It has everything imported and no threads, and forks a bot for each line that it reads; it tells its number, and then
how it ended.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

from halter import Agent
from halter.gateway import Gateway, Keys
from halter.gateway.chat.telegram import Telegram
from halter.gateway.serve import serve
from halter.models.types import Finished, ModelEvent, ModelRequest, TextDelta
from halter.stores import SQLiteStore
from tests.support.gateway_client import OWN
from tests.support.telegram_server import TOKEN, USER


class Slow:
    """Repeats what it was told last; "wait" is never answered to its end."""

    name = "slow"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        text = request.messages[-1].text
        yield TextDelta(f"You said {text}")
        if text.endswith("wait"):
            await asyncio.Event().wait()
        yield Finished("stop")


def bot(path: str, server: str) -> None:
    with SQLiteStore(path) as store:
        platform = Telegram(TOKEN, [USER], busy="queue", server=server, edit_interval=0.05)
        serve(
            lambda: Gateway(Agent(Slow()), store, Keys(own=OWN), platforms=[platform]),
            drain_timeout=0.5,
            exit_timeout=3.0,
            on_start=lambda _: None,
        )


def main() -> None:
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            bot(*sys.argv[1:])
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
