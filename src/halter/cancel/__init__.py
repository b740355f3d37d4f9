"""Cancellation for threads, tasks and processes. Standard library only; importable alone.

Importing it costs a few milliseconds and starts nothing: what needs more than a token is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter._lazy import lazy_exports
from halter.cancel.context import checkpoint as checkpoint
from halter.cancel.context import current_token as current_token
from halter.cancel.registration import Registration as Registration
from halter.cancel.token import NEVER as NEVER
from halter.cancel.token import CancellationToken as CancellationToken
from halter.cancel.token import Cancelled as Cancelled

if TYPE_CHECKING:
    from halter.cancel.exit import ExitGuard as ExitGuard
    from halter.cancel.isolation.api import run_isolated as run_isolated
    from halter.cancel.isolation.api import run_isolated_async as run_isolated_async
    from halter.cancel.isolation.worker_process import WorkerCrashed as WorkerCrashed
    from halter.cancel.processes.run import ProcessResult as ProcessResult
    from halter.cancel.processes.run import run_process as run_process
    from halter.cancel.processes.run import run_process_blocking as run_process_blocking
    from halter.cancel.threads.blocking import TooManyAbandoned as TooManyAbandoned
    from halter.cancel.threads.blocking import abandoned as abandoned
    from halter.cancel.threads.blocking import run_blocking as run_blocking
    from halter.cancel.threads.blocking import run_blocking_async as run_blocking_async
    from halter.cancel.threads.unblock import cut_sockets as cut_sockets

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "context": ["checkpoint", "current_token"],
        "registration": ["Registration"],
        "token": ["NEVER", "CancellationToken", "Cancelled"],
        "exit": ["ExitGuard"],
        "isolation.api": ["run_isolated", "run_isolated_async"],
        "isolation.worker_process": ["WorkerCrashed"],
        "processes.run": ["ProcessResult", "run_process", "run_process_blocking"],
        "threads.blocking": ["TooManyAbandoned", "abandoned", "run_blocking", "run_blocking_async"],
        "threads.unblock": ["cut_sockets"],
    },
)
