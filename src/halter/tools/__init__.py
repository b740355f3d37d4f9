"""Tools: functions that a model may call, their descriptions, and the outcomes of calls.

The names below are the public ones; each is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter._lazy import lazy_exports

# Not lazy: `halter.tools.tool` is also a module, and importing that later would replace the decorator.
from halter.tools.tool import Tool as Tool
from halter.tools.tool import tool as tool

if TYPE_CHECKING:
    from halter.tools.approval import Approval as Approval
    from halter.tools.approval import ApprovalNeed as ApprovalNeed
    from halter.tools.approval import ApprovalRequest as ApprovalRequest
    from halter.tools.approval import is_approved as is_approved
    from halter.tools.content import MAX_CHARACTERS as MAX_CHARACTERS
    from halter.tools.content import Pieces as Pieces
    from halter.tools.content import bound as bound
    from halter.tools.content import render as render
    from halter.tools.context import ToolContext as ToolContext
    from halter.tools.outcome import LateEnd as LateEnd
    from halter.tools.outcome import ToolOutcome as ToolOutcome
    from halter.tools.schema.arguments import BadArguments as BadArguments
    from halter.tools.schema.hints import IsPath as IsPath
    from halter.tools.toolset import collect_tools as collect_tools
    from halter.tools.toolset import no_such_tool as no_such_tool

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "approval": ["Approval", "ApprovalNeed", "ApprovalRequest", "is_approved"],
        "content": ["MAX_CHARACTERS", "Pieces", "bound", "render"],
        "context": ["ToolContext"],
        "outcome": ["LateEnd", "ToolOutcome"],
        "schema.arguments": ["BadArguments"],
        "schema.hints": ["IsPath"],
        "tool": ["Tool", "tool"],
        "toolset": ["collect_tools", "no_such_tool"],
    },
)
