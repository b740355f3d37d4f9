"""OpenAI Agents SDK: `RunResultStreaming.cancel()`, which is mode "immediate"; conversations in `SQLiteSession`.

The docstring of `cancel()` asks to go on reading `stream_events()` afterwards, so that the cancellation can complete;
that is done here. Mode "after_turn" lets the answer and its tools finish first, so it is not a stop.
"""

from __future__ import annotations

from pathlib import Path

from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
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


class AgentsDriver(Driver):
    def __init__(self) -> None:
        set_tracing_disabled(disabled=True)  # it would send traces to OpenAI
        model = OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(base_url=BASE_URL, api_key="none"))
        tools = [function_tool(each) for each in (deaf_tool, cooperative_tool, process_tool, blocking_tool)]
        self.agent = Agent(name="peer", instructions=INSTRUCTIONS, model=model, tools=tools)
        self.session = SQLiteSession("peers", Path(STORE) / "agents.db")
        self.result = None

    async def turn(self, text: str) -> str:
        self.result = Runner.run_streamed(self.agent, text, session=self.session)
        async for event in self.result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                saw(event.data.delta)
        return self.result.final_output or "stopped"

    def stop(self) -> None:
        if self.result is not None:
            self.result.cancel()


AgentsDriver().main()
