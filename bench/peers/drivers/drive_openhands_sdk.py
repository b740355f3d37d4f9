"""OpenHands SDK: `conversation.arun()` and `conversation.interrupt()`; messages by `send_message()`.

The docstring of `interrupt()` says that it cancels the run at once, in the middle of a request too, and tells the
executors of running tools by their own `interrupt()`; `pause()` waits for the end of the step. Tools are executors
without async code: the cooperative one ends its wait in `interrupt()`. Eight calls at once have to be allowed by
`tool_concurrency_limit`, and by tools that declare to share nothing. Conversations are stored in `persistence_dir`.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, ClassVar

from openhands.sdk import LLM, Agent, Conversation, Tool, register_tool
from openhands.sdk.event import MessageEvent
from openhands.sdk.tool import Action, DeclaredResources, Observation, ToolDefinition, ToolExecutor
from protocol import BASE_URL, MODEL, STORE, TOOL_SECONDS, Driver, deaf_tool, emit, process_tool, saw
from pydantic import SecretStr

if TYPE_CHECKING:
    from collections.abc import Sequence


class NumberAction(Action):
    n: int


class DoneObservation(Observation):
    pass


class FunctionExecutor(ToolExecutor):
    def __init__(self, function) -> None:
        self.function = function

    def __call__(self, action: NumberAction, conversation=None) -> DoneObservation:  # noqa: ARG002  (its interface)
        return DoneObservation.from_text(self.function(action.n))


class WaitingExecutor(ToolExecutor):
    def __init__(self) -> None:
        self.interrupted = threading.Event()

    def __call__(self, action: NumberAction, conversation=None) -> DoneObservation:  # noqa: ARG002  (its interface)
        emit("tool", n=action.n)
        self.interrupted.wait(TOOL_SECONDS)
        self.interrupted.clear()
        return DoneObservation.from_text(f"done {action.n}")

    def interrupt(self) -> None:
        self.interrupted.set()


class NumberTool(ToolDefinition[NumberAction, DoneObservation]):
    def declared_resources(self, action: Action) -> DeclaredResources:  # noqa: ARG002  (its interface)
        return DeclaredResources(keys=(), declared=True)


def described(executor: ToolExecutor, text: str) -> dict:
    return {"description": text, "action_type": NumberAction, "observation_type": DoneObservation, "executor": executor}


class DeafTool(NumberTool):
    name: ClassVar[str] = "deaf_tool"

    @classmethod
    def create(cls, conv_state=None, **_params) -> Sequence[DeafTool]:  # noqa: ARG003  (its interface)
        return [cls(**described(FunctionExecutor(deaf_tool), "Work for a while."))]


class CooperativeTool(NumberTool):
    name: ClassVar[str] = "cooperative_tool"

    @classmethod
    def create(cls, conv_state=None, **_params) -> Sequence[CooperativeTool]:  # noqa: ARG003  (its interface)
        return [cls(**described(WaitingExecutor(), "Wait for a while."))]


class ProcessTool(NumberTool):
    name: ClassVar[str] = "process_tool"

    @classmethod
    def create(cls, conv_state=None, **_params) -> Sequence[ProcessTool]:  # noqa: ARG003  (its interface)
        return [cls(**described(FunctionExecutor(process_tool), "Run a program."))]


class OpenHandsDriver(Driver):
    stops_from_any_thread = True
    async_tools = False

    def __init__(self) -> None:
        for kind in (DeafTool, CooperativeTool, ProcessTool):
            register_tool(kind.name, kind)
        llm = LLM(usage_id="peer", model=f"openai/{MODEL}", base_url=BASE_URL, api_key=SecretStr("none"), stream=True)
        agent = Agent(
            llm=llm,
            tools=[Tool(name=kind.name) for kind in (DeafTool, CooperativeTool, ProcessTool)],
            tool_concurrency_limit=8,
        )
        self.conversation = Conversation(
            agent,
            workspace=STORE,
            persistence_dir=STORE,
            conversation_id=uuid.UUID(int=20),
            visualizer=None,
            callbacks=[self._on_event],
            token_callbacks=[_on_token],
            delete_on_close=False,
        )
        self.answer = ""

    def _on_event(self, event: object) -> None:
        if isinstance(event, MessageEvent) and event.source == "agent":
            self.answer = "".join(part.text for part in event.llm_message.content)

    async def turn(self, text: str) -> str:
        self.answer = ""
        self.conversation.send_message(text)
        await self.conversation.arun()
        return self.answer or "stopped"

    def stop(self) -> None:
        self.conversation.interrupt()

    def send(self, text: str) -> None:
        self.conversation.send_message(text)

    def close(self) -> None:
        self.conversation.close()


def _on_token(chunk: object) -> None:
    for choice in chunk.choices:
        saw(getattr(choice.delta, "content", None) or "")


OpenHandsDriver().main()
