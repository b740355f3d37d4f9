"""Tools of other libraries from one function: what the tests of the bridges are run with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from agents import function_tool
from langchain_core.tools import tool as langchain_tool
from pydantic_ai import Tool as PydanticAITool

from halter.bridges import from_langchain, from_openai_agents, from_pydantic_ai
from halter.tools.external import SpecTool

Bridge = Callable[..., SpecTool]


def _langchain(fn: Callable[..., Any], **options: Any) -> SpecTool:
    return from_langchain(langchain_tool(fn), **options)[0]


def _pydantic_ai(fn: Callable[..., Any], **options: Any) -> SpecTool:
    return from_pydantic_ai(PydanticAITool(fn), **options)[0]


def _openai_agents(fn: Callable[..., Any], **options: Any) -> SpecTool:
    return from_openai_agents(function_tool(fn), **options)[0]


BRIDGES: Final[dict[str, Bridge]] = {
    "langchain": _langchain,
    "pydantic-ai": _pydantic_ai,
    "openai-agents": _openai_agents,
}
every_bridge = pytest.mark.parametrize("bridge", BRIDGES.values(), ids=BRIDGES)
