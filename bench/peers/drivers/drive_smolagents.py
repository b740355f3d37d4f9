"""smolagents: `agent.interrupt()`, which is asked before each step; `run(reset=False)` goes on with the conversation.

Tools are plain functions that run in threads and are told nothing of an interrupt, and none can be async. So the
cooperative tool waits in short sleeps, and there is no scenario with a blocking async tool. Memory is not stored. Eight
threads for tools are asked for, because the default depends on the number of cores.
"""

from __future__ import annotations

import time

from protocol import BASE_URL, INSTRUCTIONS, MODEL, TOOL_SECONDS, Driver, deaf_tool, emit, process_tool, saw
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents.agents import ActionStep
from smolagents.memory import FinalAnswerStep
from smolagents.models import ChatMessageStreamDelta


@tool
def cooperative_tool(n: int) -> str:
    """Wait for a while.

    Args:
        n: its number
    """
    emit("tool", n=n)
    end = time.monotonic() + TOOL_SECONDS
    while time.monotonic() < end:
        time.sleep(0.05)
    return f"done {n}"


def described(function):
    function.__doc__ += "\n\n    Args:\n        n: its number\n    "
    return tool(function)


class SmolagentsDriver(Driver):
    async_tools = False

    def __init__(self) -> None:
        self.agent = ToolCallingAgent(
            tools=[described(deaf_tool), cooperative_tool, described(process_tool)],
            model=OpenAIModel(MODEL, api_base=BASE_URL, api_key="none"),
            instructions=INSTRUCTIONS,
            stream_outputs=True,
            max_tool_threads=8,
            verbosity_level=LogLevel.OFF,
        )
        self.has_run = False

    def turn(self, text: str) -> str:
        answer = ""
        steps = self.agent.run(text, stream=True, reset=not self.has_run)
        self.has_run = True
        for step in steps:
            if isinstance(step, ChatMessageStreamDelta):
                saw(step.content or "")
            elif isinstance(step, FinalAnswerStep):
                answer = step.output
            elif isinstance(step, ActionStep) and step.error is not None:
                answer = str(step.error)
        return answer

    def stop(self) -> None:
        self.agent.interrupt()


SmolagentsDriver().main()
