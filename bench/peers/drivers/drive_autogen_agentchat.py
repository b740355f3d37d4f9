"""AutoGen AgentChat: `CancellationToken.cancel()` of the token that was given to `run_stream()`.

The documentation stops a team or an agent at once by its cancellation token, and says that the run then raises
`CancelledError`. The agent keeps the conversation in its own context; it is saved only by hand, so there is no store.
The agent is told to loop until the tools are done, as the other systems do by default. A tool that takes a
`cancellation_token` is given that of the run; the cooperative tool links its wait to it, as the token's docstring says,
and returns when it is cancelled: if it let `CancelledError` pass, the agent would wait for ever, because 0.7.5 marks
the end of the calls only after all of them have returned.
"""

from __future__ import annotations

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_core import CancellationToken
from autogen_ext.models.openai import OpenAIChatCompletionClient
from protocol import (
    BASE_URL,
    INSTRUCTIONS,
    MODEL,
    TOOL_SECONDS,
    Driver,
    blocking_tool,
    deaf_tool,
    emit,
    process_tool,
    saw,
)


async def cooperative_tool(n: int, cancellation_token: CancellationToken) -> str:
    """Wait for a while, and stop waiting at a cancellation."""
    emit("tool", n=n)
    wait = asyncio.ensure_future(asyncio.sleep(TOOL_SECONDS))
    cancellation_token.link_future(wait)
    try:
        await wait
    except asyncio.CancelledError:
        return f"cancelled {n}"
    return f"done {n}"


class AutoGenDriver(Driver):
    def __init__(self) -> None:
        self.client = OpenAIChatCompletionClient(model=MODEL, base_url=BASE_URL, api_key="none")
        self.agent = AssistantAgent(
            "peer",
            self.client,
            tools=[deaf_tool, cooperative_tool, process_tool, blocking_tool],
            system_message=INSTRUCTIONS,
            model_client_stream=True,
            max_tool_iterations=10,
        )
        self.token = None

    async def turn(self, text: str) -> str:
        self.token = CancellationToken()
        answer = ""
        try:
            async for event in self.agent.run_stream(task=text, cancellation_token=self.token):
                if isinstance(event, ModelClientStreamingChunkEvent):
                    saw(event.content)
                elif isinstance(event, TaskResult):
                    answer = event.messages[-1].content
        except asyncio.CancelledError:
            return "stopped"
        return answer

    def stop(self) -> None:
        if self.token is not None:
            self.token.cancel()

    async def close(self) -> None:
        await self.client.close()


AutoGenDriver().main()
