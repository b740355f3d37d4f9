"""The tools of an agent, by name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def collect_tools(tools: Iterable[Tool[..., Any] | Callable[..., Any]]) -> dict[str, Tool[..., Any]]:
    """Return the tools by name, in order; plain functions become tools. Two of one name are an error."""
    found: dict[str, Tool[..., Any]] = {}
    for each in tools:
        one = each if isinstance(each, Tool) else tool()(each)  # tool(None) would be a decorator
        if one.needs_self:
            raise TypeError(f"tool {one.name!r} is an unbound method; pass the method of an instance: thing.{one.name}")
        other = found.setdefault(one.name, one)
        if other.fn != one.fn:
            raise ValueError(
                f"two tools are named {one.name!r}: {_place(other)} and {_place(one)}; rename one with name="
            )
    return found


def no_such_tool(name: str, tools: Mapping[str, Tool[..., Any]]) -> str:
    """The error text for a model that called an unknown tool."""
    if not tools:
        return f"There is no tool {name!r}, and there are no other tools. Answer without one."
    close = difflib.get_close_matches(name, tools, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"There is no tool {name!r}; nothing was run.{hint} The tools are: {', '.join(tools)}."


def _place(one: Tool[..., Any]) -> str:
    return f"{getattr(one, '__module__', '?')}.{getattr(one, '__qualname__', one.name)}"
