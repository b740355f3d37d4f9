"""Tool calls from pieces, as OpenAI sends them and as others do."""

from __future__ import annotations

from typing import Any

import pytest

from halter.models import ModelEvent, ToolCallDelta, ToolCallDone, ToolCallStarted
from halter.models.openai.tool_calls import CallAssembler

Piece = tuple[int | None, str, str, Any]

WAYS: dict[str, list[Piece]] = {
    "as OpenAI does": [
        (0, "a", "f", ""),
        (0, "", "", '{"x"'),
        (0, "", "", ": 1}"),
        (1, "b", "g", ""),
        (1, "", "", "{}"),
    ],
    "mixed": [(0, "a", "f", ""), (1, "b", "g", ""), (0, "", "", '{"x": '), (1, "", "", "{}"), (0, "", "", "1}")],
    "whole calls": [(0, "a", "f", '{"x": 1}'), (1, "b", "g", "{}")],
    "whole calls without numbers": [(None, "a", "f", '{"x": 1}'), (None, "b", "g", "{}")],
    "all numbered 0": [(0, "a", "f", '{"x": 1}'), (0, "b", "g", "{}")],
    "pieces without numbers": [
        (None, "a", "f", '{"x"'),
        (None, "", "", ": 1}"),
        (None, "b", "g", ""),
        (None, "", "", "{}"),
    ],
    "ids repeated": [(0, "a", "f", '{"x"'), (0, "a", "", ": 1}"), (1, "b", "g", "{"), (1, "b", "", "}")],
    "names repeated": [(0, "a", "f", '{"x"'), (0, "a", "f", ": 1}"), (1, "b", "g", "{}")],
    "by id alone": [(None, "a", "f", '{"x"'), (None, "b", "g", "{}"), (None, "a", "", ": 1}")],
    "name after arguments": [(0, "a", "", '{"x"'), (0, "", "f", ": 1}"), (1, "b", "g", "{}")],
    "numbers from 1": [(1, "a", "f", '{"x": 1}'), (2, "b", "g", "{}")],
    "objects": [(0, "a", "f", {"x": 1}), (1, "b", "g", {})],
    "null arguments": [(0, "a", "f", '{"x": 1}'), (1, "b", "g", None)],
}


def assemble(pieces: list[Piece]) -> list[ModelEvent]:
    calls = CallAssembler()
    return [event for piece in pieces for event in calls.piece(*piece)] + calls.done()


@pytest.mark.parametrize("way", WAYS)
def test_all_ways_give_the_same_calls(way: str) -> None:
    """However servers number, name and cut them, the calls are the same, and the pieces tell no other story."""
    events = assemble(WAYS[way])
    done = {event.index: event.call for event in events if isinstance(event, ToolCallDone)}
    assert [(call.id, call.name) for call in done.values()] == [("a", "f"), ("b", "g")]
    assert done[0].arguments.replace(" ", "") == '{"x":1}'
    assert done[1].arguments == "{}"
    started = [(event.index, event.id, event.name) for event in events if isinstance(event, ToolCallStarted)]
    assert started == [(0, "a", "f"), (1, "b", "g")]
    for index, call in done.items():
        pieces = [event.arguments for event in events if isinstance(event, ToolCallDelta) and event.index == index]
        assert "".join(pieces) == call.arguments or (not pieces and call.arguments == "{}")


@pytest.mark.parametrize(
    "pieces",
    [
        [(0, "", "f", "{}"), (1, "", "f", "{}")],
        [(None, "", "f", "{}"), (None, "", "f", "{}")],
        [(0, "same", "f", "{}"), (1, "same", "f", "{}")],
    ],
)
def test_ids_are_made_where_they_are_missing_or_not_unique(pieces: list[Piece]) -> None:
    """Two calls never have one id: each needs its own result."""
    done = [event.call for event in assemble(pieces) if isinstance(event, ToolCallDone)]
    assert len({call.id for call in done}) == 2
    assert all(call.id and call.name == "f" for call in done)


@pytest.mark.parametrize("call_id", ["", "a"])
def test_calls_that_are_all_number_0_without_ids(call_id: str) -> None:
    """Two calls that both had number 0, and of which one had no id, were glued together into one that is not JSON."""
    done = [
        event.call
        for event in assemble([(0, call_id, "f", '{"x": 1}'), (0, "", "f", '{"x": 2}')])
        if isinstance(event, ToolCallDone)
    ]
    assert [(call.name, call.arguments) for call in done] == [("f", '{"x": 1}'), ("f", '{"x": 2}')]
    assert len({call.id for call in done}) == 2


@pytest.mark.parametrize("rest", [': {"y": 1}}', ": 1}"])
def test_a_name_that_is_repeated_without_an_id_begins_no_call(rest: str) -> None:
    """Arguments that are not complete go on, also if the name comes again with them."""
    done = [
        event.call
        for event in assemble([(0, "a", "f", '{"x"'), (0, "", "f", rest), (0, "", "f", "\n")])
        if isinstance(event, ToolCallDone)
    ]
    assert [(call.id, call.arguments) for call in done] == [("a", '{"x"' + rest + "\n")]


def test_what_has_no_name_is_no_call() -> None:
    """Pieces that no name ever came for are dropped, not launched."""
    assert assemble([(0, "a", "", "{}")]) == []
