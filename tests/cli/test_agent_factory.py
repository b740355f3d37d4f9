"""The agent that the settings describe."""

from __future__ import annotations

import pytest

from halter.cli.agent_factory import load_tools
from halter.cli.settings import SettingsError, load


def names(*tools: str) -> list[str]:
    return [tool.name for tool in load_tools(load({"tools": list(tools)}, {}))]


def test_the_useful_set() -> None:
    """The name "default" stands for the useful set of the toolbox."""
    assert {"terminal", "read_file", "web_search", "execute_code", "clarify"} <= set(names("default"))


def test_families_and_single_tools() -> None:
    """A family brings all of its tools, a tool's name that one, and what is named twice is there once."""
    assert names("Todo", "read_file", "Files") == ["todo", "read_file", "write_file", "patch", "search_files"]


def test_ones_own() -> None:
    """MODULE:NAME is anything that can be imported."""
    assert names("tests.support.batches:add") == ["add"]


def test_an_unknown_name_is_told_with_what_there_is() -> None:
    """A name that the toolbox does not have is an error that lists those that it has."""
    with pytest.raises(SettingsError, match="unknown tool 'teleport'; known: default, Terminal"):
        names("teleport")
