"""Halter in the program's own event loop: `session.stream()`, and `session.stop()` from any thread.

Everything else is as in `drive_halter.py`, whose `stream_sync()` runs the turn on Halter's own loop. Here async tools
run in the loop of the program, so one that blocks it blocks the program too.
"""

from __future__ import annotations

from pathlib import Path

from protocol import (
    BASE_URL,
    INSTRUCTIONS,
    MODEL,
    STORE,
    Driver,
    blocking_tool,
    cooperative_tool,
    deaf_tool,
    process_tool,
    saw,
)

from halter import Agent
from halter.models import OpenAIModel
from halter.stores import SQLiteStore


class HalterAsyncDriver(Driver):
    stops_from_any_thread = True

    def __init__(self) -> None:
        model = OpenAIModel(MODEL, base_url=BASE_URL, api_key="none")
        tools = [deaf_tool, cooperative_tool, process_tool, blocking_tool]
        self.session = Agent(model, tools, INSTRUCTIONS).session("peers", SQLiteStore(Path(STORE) / "halter.db"))

    async def turn(self, text: str) -> str:
        async for event in self.session.stream(text):
            if event.kind == "text.delta":
                saw(event.data.text)
        return self.session.turn.text

    def stop(self) -> None:
        self.session.stop()

    def send(self, text: str) -> None:
        self.session.steer(text)

    def close(self) -> None:
        self.session.close()


HalterAsyncDriver().main()
