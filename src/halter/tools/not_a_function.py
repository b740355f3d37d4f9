"""The error for an object that is no function but was given as a tool: it says what to give instead."""

from __future__ import annotations

from typing import Any, Final

# By the class of a tool, or one that it inherits from.
_BRIDGES: Final = {
    "langchain_core.tools.base.BaseTool": "from_langchain",
    "langchain_core.tools.base.BaseToolkit": "from_langchain",
    "pydantic_ai.tools.Tool": "from_pydantic_ai",
    "pydantic_ai.toolsets.abstract.AbstractToolset": "from_pydantic_ai",
    "agents.tool.FunctionTool": "from_openai_agents",
}


def check_function(given: Any) -> None:
    """Raise TypeError if *given* cannot be made a tool."""
    bridge = _bridge_for(given)
    if bridge:
        name = type(given).__name__
        raise TypeError(
            f"this is a {name} of another library; halter.bridges.{bridge}() makes tools from it: "
            f"tools=[*{bridge}(...)]"
        )
    if isinstance(given, type):
        raise TypeError(
            f"a tool is made from a function, not from the class {given.__name__}; give an instance's methods"
        )
    if callable(given):
        return
    if isinstance(given, (list, tuple, set, frozenset)):
        raise TypeError(f"a tool is made from a function, not from a {type(given).__name__}; unpack it: tools=[*...]")
    own = getattr(given, "tools", None)
    if own is not None:
        name = type(given).__name__
        call = "()" if callable(own) else ""
        raise TypeError(f"{name} has several tools: give them with tools=[*the_{name.lower()}.tools{call}]")
    raise TypeError(f"a tool is made from a function, not from {given!r}")


def _bridge_for(given: Any) -> str:
    """The function of `halter.bridges` for an object, by its class. Imports nothing."""
    names = (f"{each.__module__}.{each.__qualname__}" for each in type(given).__mro__)
    return next((_BRIDGES[name] for name in names if name in _BRIDGES), "")
