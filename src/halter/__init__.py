"""Halter: the agent runtime that stops when you say stop: now, completely, and with nothing lost."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from halter.tools import BadArguments, ToolContext, ToolOutcome, tool

# Where each public name lives. Importing halter imports none of it: the first use of a name does.
_HOMES = {
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
    "BadArguments",
    "CancellationToken",
    "Cancelled",
    "ExitGuard",
    "ProcessResult",
    "ToolContext",
    "ToolOutcome",
    "checkpoint",
    "current_token",
    "run_blocking",
    "run_blocking_async",
    "run_isolated",
    "run_isolated_async",
    "run_process",
    "tool",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
