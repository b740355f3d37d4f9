"""The systems that are measured: packages, what is imported, and how each is stopped."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["SYSTEMS", "System"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class System:
    """One system. `requirements` are given to pip as they are; the texts are for readers of the page."""

    name: str
    requirements: tuple[str, ...]
    imports: str  # all that its driver imports
    stop: str
    message: str = ""  # how a message is delivered during a turn; "" if there is no way
    store: str = ""  # what is durable by itself; "" if nothing is
    python: str = ""  # a version that is needed instead of the runner's own
    shares: str = ""  # the system whose environment it uses; "" if it has one of its own
    note: str = ""  # what is by design, or documented, and explains a result
    not_judged: dict[str, str] = field(default_factory=dict)  # by the tag of a scenario: why its result does not count

    @property
    def is_local(self) -> bool:
        return self.requirements == (str(ROOT),)

    @property
    def driver(self) -> Path:
        return Path(__file__).parent / "drivers" / f"drive_{self.name.replace('-', '_')}.py"


SYSTEMS = [
    System(
        "halter",
        (str(ROOT),),
        "from halter import Agent; from halter.models import OpenAIModel; from halter.stores import SQLiteStore",
        "`session.stop()`",
        "`session.steer()`",
        "`SQLiteStore`",
    ),
    System(
        "halter-async",
        (str(ROOT),),
        "from halter import Agent; from halter.models import OpenAIModel; from halter.stores import SQLiteStore",
        "`session.stop()`, with the turn in the program's own event loop",
        "`session.steer()`",
        "`SQLiteStore`",
        shares="halter",
        note="An async tool that blocks the program's event loop also blocks the turn, which runs in it. "
        "`session.use_tool_loop()` runs async tools on a separate event loop; such a tool then stops as it does with "
        "`halter`.",
    ),
    System(
        "pydantic-ai",
        ("pydantic-ai-slim[openai]",),
        "from pydantic_ai import Agent; from pydantic_ai.models.openai import OpenAIChatModel",
        "`AgentRun.cancel()`",
        "`AgentRun.enqueue()`",
        not_judged={
            "message": "`enqueue()` accepted the message, and no later request contained it. The documentation does "
            "not say what becomes of such a message when the run is cancelled; the application can tell by the "
            "missing `EnqueuedMessagesEvent` that it was not delivered, and send it again."
        },
    ),
    System(
        "openai-agents",
        ("openai-agents",),
        "from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession; from openai import AsyncOpenAI",
        "`RunResultStreaming.cancel()`",
        store="`SQLiteSession`",
        note='`cancel(mode="after_turn")` would keep the answer: it lets the answer and its tools finish first.',
    ),
    System(
        "langgraph",
        ("langgraph", "langchain", "langchain-openai", "langgraph-checkpoint-sqlite"),
        "from langchain.agents import create_agent; from langchain_openai import ChatOpenAI; "
        "from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver",
        "cancelling the task that reads `astream()`",
        store="`AsyncSqliteSaver`",
        note="LangGraph's documentation describes tool calls without a result under "
        "[INVALID_CHAT_HISTORY](https://docs.langchain.com/oss/python/langgraph/errors/INVALID_CHAT_HISTORY): the "
        "application adds the missing results to the state before the next message. The driver does not do that.",
    ),
    System(
        "autogen-agentchat",
        ("autogen-agentchat", "autogen-ext[openai]"),
        "from autogen_agentchat.agents import AssistantAgent; "
        "from autogen_ext.models.openai import OpenAIChatCompletionClient",
        "`CancellationToken.cancel()`",
        note="The conversation can be saved with `save_state()`, by the application.",
    ),
    System(
        "strands-agents",
        ("strands-agents[openai]",),
        "from strands import Agent; from strands.models.openai import OpenAIModel; "
        "from strands.session.file_session_manager import FileSessionManager",
        "`agent.cancel()`",
        store="`FileSessionManager`",
        note="`cancel()` is documented to be checked while the model streams, before tools and after them. While the "
        "provider is silent, only a timeout of the HTTP client ends the wait.",
    ),
    System(
        "smolagents",
        ("smolagents[openai]",),
        "from smolagents import OpenAIModel, ToolCallingAgent",
        "`agent.interrupt()`",
        note="`interrupt()` is checked before each step, by design: the step that runs is finished first.",
    ),
    System(
        "openhands-sdk",
        ("openhands-sdk",),
        "from openhands.sdk import LLM, Agent, Conversation",
        "`conversation.interrupt()`",
        "`conversation.send_message()`",
        "`persistence_dir`",
        "3.12",
        note="A run waits for its tools, by design. `ToolExecutor.interrupt()` is called for each of them, and the "
        "documentation asks tools that run for long to implement it. The cooperative tool does; the deaf one and the "
        "one with a process are plain functions and do not.",
    ),
    System(
        "hermes-agent",
        ("hermes-agent",),
        "from run_agent import AIAgent; from hermes_state import SessionDB",
        "`agent.interrupt()`",
        "`agent.steer()`",
        "`SessionDB`",
        note="Calls of a tool that was registered run one after the other, by design, so the first of the eight runs "
        "when the stop comes. Tools can ask `is_interrupted()`; the cooperative one does.",
    ),
]
