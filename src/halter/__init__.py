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

# Where each public name lives. Importing halter imports none of it: the first use of a name does.
_HOMES = {
    "NEVER": "cancel",
    "CancellationToken": "cancel",
    "Cancelled": "cancel",
    "ExitGuard": "cancel",
    "ProcessResult": "cancel",
    "checkpoint": "cancel",
    "current_token": "cancel",
    "run_blocking": "cancel",
    "run_blocking_async": "cancel",
    "run_isolated": "cancel",
    "run_isolated_async": "cancel",
    "run_process": "cancel",
}

__all__ = [
    "NEVER",
    "CancellationToken",
    "Cancelled",
    "ExitGuard",
    "ProcessResult",
    "checkpoint",
    "current_token",
    "run_blocking",
    "run_blocking_async",
    "run_isolated",
    "run_isolated_async",
    "run_process",
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
