"""The systems that are measured: packages, what is imported, and how each is stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["SYSTEMS", "System"]

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class System:
    """One system. `requirements` are given to pip as they are; `stop` is told to readers."""

    name: str
    requirements: tuple[str, ...]
    imports: str
    stop: str
    message: str = ""  # how a message is delivered during a turn; "" if there is no way
    store: str = ""  # what is durable by itself; "" if nothing is
    python: str = ""  # a version that is needed instead of the runner's own
    shares: str = ""  # the system whose environment it uses; "" if it has one of its own

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
        "import halter; halter.Agent",
        "`session.stop()`",
        "`session.steer()`",
        "`SQLiteStore`",
    ),
    System(
        "halter-async",
        (str(ROOT),),
        "import halter; halter.Agent",
        "`session.stop()`, with the turn in the program's own event loop",
        "`session.steer()`",
        "`SQLiteStore`",
        shares="halter",
    ),
    System(
        "pydantic-ai",
        ("pydantic-ai-slim[openai]",),
        "from pydantic_ai import Agent",
        "`AgentRun.cancel()`",
        "`AgentRun.enqueue()`",
    ),
    System(
        "openai-agents",
        ("openai-agents",),
        "from agents import Agent, Runner",
        "`RunResultStreaming.cancel()`",
        store="`SQLiteSession`",
    ),
    System(
        "langgraph",
        ("langgraph", "langchain", "langchain-openai", "langgraph-checkpoint-sqlite"),
        "from langchain.agents import create_agent",
        "cancelling the task that reads `astream()`",
        store="`AsyncSqliteSaver`",
    ),
    System(
        "autogen-agentchat",
        ("autogen-agentchat", "autogen-ext[openai]"),
        "from autogen_agentchat.agents import AssistantAgent",
        "`CancellationToken.cancel()`",
    ),
    System(
        "strands-agents",
        ("strands-agents[openai]",),
        "from strands import Agent",
        "`agent.cancel()`",
        store="`FileSessionManager`",
    ),
    System(
        "smolagents",
        ("smolagents[openai]",),
        "from smolagents import ToolCallingAgent",
        "`agent.interrupt()`",
    ),
    System(
        "openhands-sdk",
        ("openhands-sdk",),
        "from openhands.sdk import Conversation",
        "`conversation.interrupt()`",
        "`conversation.send_message()`",
        "`persistence_dir`",
        "3.12",
    ),
    System(
        "hermes-agent",
        ("hermes-agent",),
        "from run_agent import AIAgent",
        "`agent.interrupt()`",
        "`agent.steer()`",
        "`SessionDB`",
    ),
]
