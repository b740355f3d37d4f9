"""Cancellation for threads, tasks and processes. Standard library only; importable alone.

The names below are the public ones. Those that need more than a token are imported on first use,
so ``import halter.cancel`` costs a few milliseconds and starts nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.cancel.context import checkpoint, current_token
from halter.cancel.token import NEVER, CancellationToken, Cancelled, Registration
from halter.lazy import lazy_names

if TYPE_CHECKING:
    from halter.cancel.blocking import (
        Late,
        TooManyAbandoned,
        abandoned,
        run_blocking,
        run_blocking_async,
        set_late_hook,
    )
    from halter.cancel.cut import cut_sockets
    from halter.cancel.exit import ExitGuard
    from halter.cancel.isolate import run_isolated, run_isolated_async
    from halter.cancel.process import ProcessResult, run_process
    from halter.cancel.worker import WorkerCrashed

_HOMES = {
    "ExitGuard": "exit",
    "Late": "blocking",
    "ProcessResult": "process",
    "TooManyAbandoned": "blocking",
    "WorkerCrashed": "worker",
    "abandoned": "blocking",
    "cut_sockets": "cut",
    "run_blocking": "blocking",
    "run_blocking_async": "blocking",
    "run_isolated": "isolate",
    "run_isolated_async": "isolate",
    "run_process": "process",
    "set_late_hook": "blocking",
}

__all__ = [
    "NEVER",
    "CancellationToken",
    "Cancelled",
    "ExitGuard",
    "Late",
    "ProcessResult",
    "Registration",
    "TooManyAbandoned",
    "WorkerCrashed",
    "abandoned",
    "checkpoint",
    "current_token",
    "cut_sockets",
    "run_blocking",
    "run_blocking_async",
    "run_isolated",
    "run_isolated_async",
    "run_process",
    "set_late_hook",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
