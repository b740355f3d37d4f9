"""Tools: functions that a model may call, what it is told of them, and how their calls end.

The names below are the public ones; each is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter.lazy import lazy_names

# Imported at once: `halter.tools.tool` is the module of that name too, and importing the module later would put it in
# the place of the decorator.
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    from halter.tools.approval import Approval, ApprovalRequest, is_approved
    from halter.tools.arguments import BadArguments
    from halter.tools.content import MAX_CHARACTERS, Pieces, bound, render
    from halter.tools.context import ToolContext
    from halter.tools.hint import IsPath
    from halter.tools.outcome import LateEnd, ToolOutcome
    from halter.tools.toolset import collect_tools, no_such_tool

_HOMES = {
    "Approval": "approval",
    "ApprovalRequest": "approval",
    "BadArguments": "arguments",
    "IsPath": "hint",
    "LateEnd": "outcome",
    "MAX_CHARACTERS": "content",
    "Pieces": "content",
    "ToolContext": "context",
    "ToolOutcome": "outcome",
    "bound": "content",
    "collect_tools": "toolset",
    "is_approved": "approval",
    "no_such_tool": "toolset",
    "render": "content",
}

__all__ = [
    "MAX_CHARACTERS",
    "Approval",
    "ApprovalRequest",
    "BadArguments",
    "IsPath",
    "LateEnd",
    "Pieces",
    "Tool",
    "ToolContext",
    "ToolOutcome",
    "bound",
    "collect_tools",
    "is_approved",
    "no_such_tool",
    "render",
    "tool",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
