"""A tool with a given description: its name, description and schema come from elsewhere, its arguments are passed on.

    spec = ToolSpec("create_issue", "Create an issue.", {"type": "object", "properties": {...}})
    SpecTool(spec, call)          # async def call(arguments: dict[str, Any], ctx: ToolContext) -> object

For tools of servers, which check the arguments themselves. For your own functions use ``@tool``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from halter.tools.schema.arguments import read_object
from halter.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.models.types import ToolSpec
    from halter.tools.context import ToolContext


_NOT_IN_A_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_MAX_NAME: Final = 64


def fit_name(name: str) -> str:
    """A name that every provider accepts, from one that somebody else has chosen."""
    return _NOT_IN_A_NAME.sub("_", name)[:_MAX_NAME]


class SpecTool(Tool[..., Any]):
    """A tool from a `ToolSpec` and a function with two parameters, `arguments` and `ctx`."""

    def __init__(self, spec: ToolSpec, fn: Callable[[dict[str, Any], ToolContext], Any], **options: Any) -> None:
        """*options* are those of ``@tool`` except `name`, which is in the spec, and `isolate`."""
        super().__init__(fn, name=spec.name, **options)
        if self.context_name != "ctx" or self.isolate:
            raise TypeError(
                f"tool {self.name!r}: a SpecTool's function takes (arguments, ctx: ToolContext) and is not isolated"
            )
        self.description = spec.description
        self.spec = spec

    def bind_arguments(self, raw_json: str, context: ToolContext | None = None) -> dict[str, Any]:
        kwargs: dict[str, Any] = {"arguments": read_object(self.name, raw_json)}
        if context is not None:
            kwargs["ctx"] = context
        return kwargs
