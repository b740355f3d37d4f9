"""Halter: the agent runtime that stops when you say stop: now, completely, and with nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.lazy import lazy_names

if TYPE_CHECKING:
    from halter.agent import Agent
    from halter.cancel import (
        NEVER,
        CancellationToken,
        Cancelled,
        ExitGuard,
        ProcessResult,
        checkpoint,
        current_token,
        run_blocking,
        run_blocking_async,
        run_isolated,
        run_isolated_async,
        run_process,
    )
    from halter.errors import HalterError, NothingToDo, SessionBusy, SessionClosed
    from halter.inbox import Receipt
    from halter.session import Session
    from halter.tools import BadArguments, ToolContext, ToolOutcome, tool
    from halter.turn import Turn

# Where each public name lives. Importing halter imports none of it: the first use of a name does.
_HOMES = {
    "Agent": "agent",
    "HalterError": "errors",
    "NothingToDo": "errors",
    "Receipt": "inbox",
    "Session": "session",
    "SessionBusy": "errors",
    "SessionClosed": "errors",
    "Turn": "turn",
    "BadArguments": "tools",
    "NEVER": "cancel",
    "CancellationToken": "cancel",
    "Cancelled": "cancel",
    "ExitGuard": "cancel",
    "ProcessResult": "cancel",
    "ToolContext": "tools",
    "ToolOutcome": "tools",
    "checkpoint": "cancel",
    "current_token": "cancel",
    "run_blocking": "cancel",
    "run_blocking_async": "cancel",
    "run_isolated": "cancel",
    "run_isolated_async": "cancel",
    "run_process": "cancel",
    "tool": "tools",
}

__all__ = [
    "NEVER",
    "Agent",
    "BadArguments",
    "CancellationToken",
    "Cancelled",
    "ExitGuard",
    "HalterError",
    "NothingToDo",
    "ProcessResult",
    "Receipt",
    "Session",
    "SessionBusy",
    "SessionClosed",
    "ToolContext",
    "ToolOutcome",
    "Turn",
    "checkpoint",
    "current_token",
    "run_blocking",
    "run_blocking_async",
    "run_isolated",
    "run_isolated_async",
    "run_process",
    "tool",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
