"""Strands Agents: `agent.cancel()`, from any thread; conversations in `FileSessionManager`.

The docstring of `cancel()` lists its safe points: while the model streams, before tools run, and after them. Tools are
to poll `tool_context.cancel_signal`; the cooperative tool here waits on it, which is the quickest way to obey.
"""

from __future__ import annotations

from pathlib import Path

from protocol import (
    BASE_URL,
    INSTRUCTIONS,
    MODEL,
    STORE,
    TOOL_SECONDS,
    Driver,
    blocking_tool,
    deaf_tool,
    emit,
    process_tool,
    saw,
)
from strands import Agent, ToolContext, tool
from strands.models.openai import OpenAIModel
from strands.session.file_session_manager import FileSessionManager


@tool(context=True)
def cooperative_tool(n: int, tool_context: ToolContext) -> str:
    """Wait for a while, and stop waiting at a cancellation."""
    emit("tool", n=n)
    tool_context.cancel_signal.wait(TOOL_SECONDS)
    return f"done {n}"


class StrandsDriver(Driver):
    stops_from_any_thread = True

    def __init__(self) -> None:
        self.agent = Agent(
            model=OpenAIModel(client_args={"base_url": BASE_URL, "api_key": "none"}, model_id=MODEL),
            tools=[tool(deaf_tool), cooperative_tool, tool(process_tool), tool(blocking_tool)],
            system_prompt=INSTRUCTIONS,
            callback_handler=None,
            agent_id="peer",
            session_manager=FileSessionManager("peers", str(Path(STORE) / "strands")),
        )

    async def turn(self, text: str) -> str:
        answer = ""
        async for event in self.agent.stream_async(text):
            if "data" in event:
                saw(event["data"])
            elif "result" in event:
                answer = str(event["result"])
        return answer

    def stop(self) -> None:
        self.agent.cancel()


StrandsDriver().main()
