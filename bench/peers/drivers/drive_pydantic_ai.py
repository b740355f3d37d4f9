"""Pydantic AI: `AgentRun.cancel()`; messages during a turn by `AgentRun.enqueue()`.

The docstring of `cancel()` says that it may be called from any thread, that the run then ends with `RunCancelled`, and
that `RunCancelled.all_messages()` is what the next run is to be given as `message_history`. That is done here.
`enqueue()` refuses a message after the end of the run. What it accepted and did not deliver before a cancellation is
only in `pending_messages`, whose docstring calls it internal; so that is not used. An application can notice that no
`EnqueuedMessagesEvent` came for a message, and send it again; the documentation does not ask for that, so this driver
does not do it, and the result of the scenario `message` is not judged. Where the history is kept between processes is
the application's to decide, so there is no store.
"""

from __future__ import annotations

from protocol import (
    BASE_URL,
    INSTRUCTIONS,
    MODEL,
    Driver,
    blocking_tool,
    cooperative_tool,
    deaf_tool,
    process_tool,
    saw,
)
from pydantic_ai import Agent, RunCancelled
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class PydanticDriver(Driver):
    stops_from_any_thread = True

    def __init__(self) -> None:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key="none"))
        tools = [deaf_tool, cooperative_tool, process_tool, blocking_tool]
        self.agent = Agent(model, instructions=INSTRUCTIONS, tools=tools)
        self.history = []
        self.run = None

    async def turn(self, text: str) -> str:
        try:
            async with self.agent.iter(text, message_history=self.history) as run:
                self.run = run
                async for node in run:
                    if Agent.is_model_request_node(node):
                        async with node.stream(run.ctx) as events:
                            async for event in events:
                                _show(event)
        except RunCancelled as stopped:
            self.history = stopped.all_messages()
            return "stopped"
        finally:
            self.run = None
        self.history = run.all_messages()
        return run.result.output

    def stop(self) -> None:
        if (run := self.run) is not None:
            run.cancel()

    def send(self, text: str) -> None:
        self.run.enqueue(text)


def _show(event: object) -> None:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        saw(event.part.content)
    elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        saw(event.delta.content_delta)


PydanticDriver().main()
