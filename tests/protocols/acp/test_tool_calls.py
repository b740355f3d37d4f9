"""Tool calls as updates: what is sent, and what is not sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from halter.models import Image
from halter.protocols.acp.tool_calls import ToolCallUpdates
from halter.toolbox.files.diff import diff_text
from halter.tools.outcome import ToolOutcome
from halter.views.items import CallItem, TurnDisplay

WORKSPACE = Path("/work")


def turn_with(*calls: CallItem) -> TurnDisplay:
    return TurnDisplay("t", 0.0, calls={each.id: each for each in calls})


def finished(call: CallItem, content: Any, status: Any = "completed") -> CallItem:
    call.state, call.outcome = status, ToolOutcome(call_id=call.id, name=call.name, status=status, content=content)
    return call


def test_only_changes_are_sent() -> None:
    """A call is announced once; then only the fields that have changed are sent, and nothing after its end."""
    updates, call = ToolCallUpdates(WORKSPACE), CallItem("1", "read_file", '{"path": "a.txt"}')
    turn = turn_with(call)
    [first] = updates.of(turn)
    assert first == {
        "sessionUpdate": "tool_call",
        "toolCallId": "t/1",
        "kind": "read",
        "title": "read_file a.txt",
        "status": "pending",
        "rawInput": {"path": "a.txt"},
        "locations": [{"path": "/work/a.txt"}],
    }
    assert list(updates.of(turn)) == []
    call.state = "running"
    assert list(updates.of(turn)) == [
        {"sessionUpdate": "tool_call_update", "toolCallId": "t/1", "status": "in_progress"}
    ]
    finished(call, "text")
    [last] = updates.of(turn)
    assert (last["status"], last["content"][0]["content"]["text"]) == ("completed", "```\ntext\n```")
    call.late = None
    call.detail = "later"
    assert list(updates.of(turn)) == []


def test_an_id_that_a_model_uses_again_is_another_call() -> None:
    """Clients get an id of its own for each call, also if a provider gives the same one to two."""
    updates = ToolCallUpdates(WORKSPACE)
    found = [next(iter(updates.of(turn_with(finished(CallItem("call", "todo"), "")))))["toolCallId"] for _ in range(3)]
    assert found == ["t/call", "t/call/2", "t/call/3"]


def test_how_a_call_ended_is_a_status_and_a_title() -> None:
    """The protocol has two ends; the title says which of ours it was."""
    ends = {"completed": "completed", "partial": "completed", "cancelled": "failed", "not_started": "failed"}
    ends |= {"abandoned": "failed", "denied": "failed", "timed_out": "failed", "failed": "failed"}
    for state, status in ends.items():
        [update] = ToolCallUpdates(WORKSPACE).of(turn_with(finished(CallItem("1", "x"), "", state)))
        assert update["status"] == status
        if state != "completed":
            assert state.replace("_", " ") in update["title"].replace("partial result", "partial")


def test_each_hunk_is_a_diff() -> None:
    """Changed, new and deleted files are shown as what was there before and after; files are named by full paths."""
    before = "".join(f"{number}\n" for number in range(40))
    after = before.replace("3\n", "three\n", 1).replace("38\n", "")
    call = CallItem("1", "patch")
    call.diff = (
        diff_text("a.txt", before.encode(), after.encode())
        + diff_text("new.txt", None, b"--- one\n+++ two\n")
        + diff_text("old.txt", b"gone\n", None)
    )
    [update] = ToolCallUpdates(WORKSPACE).of(turn_with(finished(call, "patched")))
    shown = [(each["path"], each["oldText"], each["newText"]) for each in update["content"]]
    assert shown == [
        ("/work/a.txt", "0\n1\n2\n3\n4\n5\n6\n", "0\n1\n2\nthree\n4\n5\n6\n"),
        ("/work/a.txt", "35\n36\n37\n38\n39\n", "35\n36\n37\n39\n"),
        ("/work/new.txt", None, "--- one\n+++ two\n"),
        ("/work/old.txt", "gone\n", ""),
    ]


def test_results_are_bounded_and_shown_as_they_are() -> None:
    """A long result loses its middle, Markdown in it is not rendered, and images are images."""
    text = "```\n" + "x" * 100_000 + "end"
    call = finished(CallItem("1", "terminal", "{" + " " * 100_000 + "}"), [Image(b"png")])
    [update] = ToolCallUpdates(WORKSPACE).of(turn_with(call))
    assert [each["content"]["type"] for each in update["content"]] == ["image"]
    assert "rawInput" not in update
    [update] = ToolCallUpdates(WORKSPACE).of(turn_with(finished(CallItem("2", "x"), text)))
    shown = update["content"][0]["content"]["text"]
    assert shown.startswith("````\n```\n")
    assert shown.endswith("end\n````")
    assert len(shown) < 17_000
