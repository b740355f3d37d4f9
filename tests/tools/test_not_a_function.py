"""What is given as a tool and is no function: the error says what to give instead."""

from __future__ import annotations

from typing import Any

import pytest
from agents import function_tool
from langchain_core.tools import tool as langchain_tool
from pydantic_ai import FunctionToolset
from pydantic_ai import Tool as PydanticAITool

from halter import Agent, tool
from halter.toolbox import MCP, Files


def work() -> str:
    """Work."""
    return "done"


class Machine:
    """One's own callable is a tool."""

    def __call__(self) -> str:
        return "done"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (langchain_tool(work), r"a StructuredTool of another library; halter.bridges.from_langchain\(\) makes tools"),
        (PydanticAITool(work), r"a Tool of another library; halter.bridges.from_pydantic_ai\(\) makes tools"),
        (FunctionToolset([work]), r"a FunctionToolset of another library; halter.bridges.from_pydantic_ai\(\)"),
        (function_tool(work), r"a FunctionTool of another library; halter.bridges.from_openai_agents\(\) makes tools"),
        ([work], r"not from a list; unpack it: tools=\[\*...\]"),
        (Files("."), r"Files has several tools: give them with tools=\[\*the_files.tools\]"),
        (MCP.stdio("x"), r"MCP has several tools: give them with tools=\[\*the_mcp.tools\(\)\]"),
        (Machine, "not from the class Machine; give an instance's methods"),
        ("work", "not from 'work'"),
        (None, "not from None"),
    ],
)
def test_the_error_names_the_way_in(given: Any, words: str) -> None:
    """Of @tool, and of an agent that is given it."""
    if given is not None:  # tool(None) is what @tool(...) calls
        with pytest.raises(TypeError, match=words):
            tool(given)
    with pytest.raises(TypeError, match=words):
        Agent("local", [given])


def test_an_object_that_can_be_called_is_a_tool() -> None:
    """Whatever the module of its class is called."""
    Machine.__module__ = "agents"
    assert tool(name="machine")(Machine()).name == "machine"
