"""The tools of one agent."""

from __future__ import annotations

import pytest

from halter.tools import Tool, collect_tools, no_such_tool, tool


def search(query: str) -> str:
    return query


@tool
def fetch(url: str) -> str:
    return url


class Box:
    @tool
    def open_box(self) -> None: ...


def test_tools_by_name() -> None:
    """Tools and plain functions are collected in order."""
    found = collect_tools([fetch, search, Box().open_box])
    assert list(found) == ["fetch", "search", "open_box"]
    assert all(isinstance(each, Tool) for each in found.values())
    box = Box()
    assert list(collect_tools([fetch, fetch, search, search, box.open_box, box.open_box])) == list(found)


def test_two_tools_of_one_name() -> None:
    """Two different tools of one name are an error that names both."""
    other = tool(name="fetch")(search)
    with pytest.raises(ValueError, match=r"test_toolset\.fetch and .*test_toolset\.search"):
        collect_tools([fetch, other])


def test_a_method_needs_its_object() -> None:
    """A tool taken from a class instead of an instance is an error."""
    with pytest.raises(TypeError, match="instance"):
        collect_tools([Box.open_box])


def test_what_is_no_tool() -> None:
    """What cannot be a tool is refused as `@tool` would."""
    with pytest.raises(TypeError, match="made from a function"):
        collect_tools(["search"])  # type: ignore[list-item]


def test_a_tool_that_is_not_there() -> None:
    """A model that calls an unknown tool gets the list of tools."""
    text = no_such_tool("fetsh", collect_tools([fetch, search]))
    assert "Did you mean 'fetch'?" in text
    assert "fetch, search" in text
    assert "no other tools" in no_such_tool("x", {})
