"""Halter: the agent runtime that stops when you say stop: now, completely, and with nothing lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter._lazy import lazy_exports
from halter._version import __version__ as __version__

if TYPE_CHECKING:
    from halter.agent import Agent as Agent
    from halter.agent import Compaction as Compaction
    from halter.agent import Limits as Limits
    from halter.cancel import NEVER as NEVER
    from halter.cancel import CancellationToken as CancellationToken
    from halter.cancel import Cancelled as Cancelled
    from halter.cancel import ExitGuard as ExitGuard
    from halter.cancel import ProcessResult as ProcessResult
    from halter.cancel import checkpoint as checkpoint
    from halter.cancel import current_token as current_token
    from halter.cancel import run_blocking as run_blocking
    from halter.cancel import run_blocking_async as run_blocking_async
    from halter.cancel import run_isolated as run_isolated
    from halter.cancel import run_isolated_async as run_isolated_async
    from halter.cancel import run_process as run_process
    from halter.cancel import run_process_blocking as run_process_blocking
    from halter.errors import HalterError as HalterError
    from halter.errors import NothingToDo as NothingToDo
    from halter.errors import SessionBusy as SessionBusy
    from halter.errors import SessionClosed as SessionClosed
    from halter.models.types import ModelSettings as ModelSettings
    from halter.session.inbox import Receipt as Receipt
    from halter.session.session import Session as Session
    from halter.session.turn import Turn as Turn
    from halter.session.turn import TurnFailed as TurnFailed
    from halter.session.turn import TurnInterrupted as TurnInterrupted
    from halter.tools import BadArguments as BadArguments
    from halter.tools import ToolContext as ToolContext
    from halter.tools import ToolOutcome as ToolOutcome
    from halter.tools import tool as tool

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "agent": ["Agent", "Compaction", "Limits"],
        "cancel": [
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
            "run_process_blocking",
        ],
        "errors": ["HalterError", "NothingToDo", "SessionBusy", "SessionClosed"],
        "models.types": ["ModelSettings"],
        "session.inbox": ["Receipt"],
        "session.session": ["Session"],
        "session.turn": ["Turn", "TurnFailed", "TurnInterrupted"],
        "tools": ["BadArguments", "ToolContext", "ToolOutcome", "tool"],
    },
)
