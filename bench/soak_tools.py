"""The tools of the soak: deaf, cooperative, processes, isolated, async, blocking, asking, failing."""

from __future__ import annotations

import asyncio
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from halter import Agent, ToolContext, current_token, run_process, tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from halter.models import Model

_BLOCKING = 0.05  # seconds at most that a coroutine keeps its event loop from going on


@tool
def deaf(seconds: float = 0.0) -> str:
    """Never look at the token."""
    threading.Event().wait(seconds)
    return "deaf"


@tool
def cooperates(seconds: float = 0.0) -> str:
    """Stop when told."""
    current_token().sleep(seconds)
    return "cooperated"


@tool
def yields(seconds: float = 0.0) -> Iterator[str]:
    """Give the result in pieces."""
    for number in range(5):
        threading.Event().wait(seconds / 5)
        yield f"piece {number}"


@tool
async def sleeps(seconds: float = 0.0) -> str:
    """Wait in the event loop."""
    await asyncio.sleep(seconds)
    return "slept"


@tool
async def streams(seconds: float = 0.0) -> AsyncIterator[str]:
    """Give the result in pieces, in the event loop."""
    for number in range(5):
        await asyncio.sleep(seconds / 5)
        yield f"piece {number}"


@tool
async def blocks(seconds: float = 0.0) -> str:
    """Block the event loop."""
    time.sleep(min(seconds, _BLOCKING))  # noqa: ASYNC251  (what users do)
    return "blocked"


@tool
async def runs_process(seconds: float = 0.0) -> str:
    """Run a process of ours."""
    result = await run_process(f"echo begin; sleep {seconds}; echo end")
    return result.stdout.decode()


@tool
def starts_child(seconds: float = 0.0) -> int:
    """Wait for a plain child process."""
    return subprocess.run(["sleep", str(seconds)], check=False).returncode


@tool(isolate=True)
def isolated(seconds: float = 0.0) -> str:
    """Run in a process of its own."""
    time.sleep(seconds)
    return "isolated"


@tool(timeout=0.1)
async def has_timeout(seconds: float = 0.0) -> str:
    """Have a tenth of a second."""
    await asyncio.sleep(seconds)
    return "in time"


@tool(on_steer="finish")
async def finishes(seconds: float = 0.0) -> str:
    """Must not be broken by a steer."""
    await asyncio.sleep(min(seconds, 0.2))
    return "finished"


@tool(approval=True)
def needs_approval(seconds: float = 0.0) -> str:
    """Run if allowed."""
    current_token().sleep(seconds)
    return "allowed"


@tool
async def asks(ctx: ToolContext) -> str:
    """Ask the user."""
    return f"the answer is {await ctx.ask('Which one?')}"


@tool
def asks_blocking(ctx: ToolContext) -> str:
    """Ask the user, in a thread."""
    return f"the answer is {ctx.ask('Which one?', ['a', 'b'])}"


@tool
def fails() -> None:
    """Fail."""
    msg = "on purpose"
    raise ValueError(msg)


WITH_SECONDS = (
    deaf,
    cooperates,
    yields,
    sleeps,
    streams,
    blocks,
    runs_process,
    starts_child,
    isolated,
    has_timeout,
    finishes,
    needs_approval,
)
OTHERS = (asks, asks_blocking, fails)
NAMES = [each.name for each in (*WITH_SECONDS, *OTHERS)] + ["delegates"]


def make_agent(model: Model, child_model: Model) -> Agent:
    """The agent of all sessions; it delegates to one of its kind that cannot delegate."""
    child = Agent(child_model, [*WITH_SECONDS, *OTHERS], name="child", approve="ask", max_steps=3)

    @tool
    async def delegates(ctx: ToolContext) -> str:
        """Have a part done by another agent."""
        return (await ctx.delegate(child, "a part of it")).text or "nothing"

    return Agent(model, [*WITH_SECONDS, *OTHERS, delegates], approve="ask", max_steps=6)
