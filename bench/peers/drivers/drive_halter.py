"""Halter: `session.stop()` from any thread; messages during a turn by `session.steer()`; sessions in SQLite."""

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


class HalterDriver(Driver):
    def __init__(self) -> None:
        model = OpenAIModel(MODEL, base_url=BASE_URL, api_key="none")
        tools = [deaf_tool, cooperative_tool, process_tool, blocking_tool]
        self.session = Agent(model, tools, INSTRUCTIONS).session("peers", SQLiteStore(Path(STORE) / "halter.db"))

    def turn(self, text: str) -> str:
        for event in self.session.stream_sync(text):
            if event.kind == "text.delta":
                saw(event.data.text)
        return self.session.turn.text

    def stop(self) -> None:
        self.session.stop()

    def send(self, text: str) -> None:
        self.session.steer(text)

    def close(self) -> None:
        self.session.close()


HalterDriver().main()
