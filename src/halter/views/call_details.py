"""What is shown below the line of a tool call: the diff of a change, the end of a command's output, a to-do list."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.models.types import Text
from halter.views.diff_text import read_diff
from halter.views.text import count

if TYPE_CHECKING:
    from halter.views.items import CallItem

__all__ = ["DetailLine", "call_details", "full_output", "live_output"]

MAX_DIFF: Final = 40  # lines
_MAX_OUTPUT: Final = 3  # lines
_MAX_FAILED_OUTPUT: Final = 12  # lines
_MAX_TODOS: Final = 30
_WITH_OUTPUT: Final = frozenset({"terminal", "execute_code"})
_TODO: Final = re.compile(r"\[(.)\] \d+\. (.*)")
_TODO_MARKS: Final = {" ": ("☐", ""), ">": ("▸", "doing"), "x": ("☑", "dim"), "-": ("☒", "dim")}


class DetailLine(NamedTuple):
    """One line, and how it looks: "added", "removed", "dim", "doing" or plain."""

    text: str
    tone: str = "dim"


def call_details(call: CallItem) -> list[DetailLine]:
    """The lines below a finished call; none for most tools."""
    if call.diff:
        return _diff(call.diff)
    if call.name == "todo" and call.state == "completed":
        return _todos(result_text(call))
    if call.name in _WITH_OUTPUT and call.outcome is not None:
        lines = _output_lines(call)
        max_lines = _MAX_FAILED_OUTPUT if call.has_failed else _MAX_OUTPUT
        shown = lines[-max_lines:]
        hidden = len(lines) - len(shown)
        first = [DetailLine(f"… {count(hidden, 'more line')} above (Ctrl+O shows all)")] if hidden else []
        return [*first, *(DetailLine(line) for line in shown)]
    return []


def live_output(call: CallItem, max_lines: int) -> list[str]:
    """The last lines of what a running call has written so far."""
    lines = [line for line in call.progress.rstrip().split("\n")[-max_lines:] if line.strip()]
    return lines if call.name in _WITH_OUTPUT else []


def full_output(call: CallItem) -> list[DetailLine]:
    """The whole diff, or the whole result."""
    if call.diff:
        return _diff(call.diff, max_lines=None)
    return [DetailLine(line, "") for line in (result_text(call) or call.detail or "(no output)").split("\n")]


def result_text(call: CallItem) -> str:
    """The text of a call's result."""
    content = call.outcome.content if call.outcome is not None else ""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, Text))


def _output_lines(call: CallItem) -> list[str]:
    """The output of a command without the last line, which says how it ended, and without empty lines at its end."""
    text = result_text(call)
    if call.name == "terminal":
        text = text.rpartition("\n")[0]
    elif not text and call.has_failed:
        text = call.detail
    return text.rstrip().split("\n") if text.strip() else []


def _diff(diff: str, max_lines: int | None = MAX_DIFF) -> list[DetailLine]:
    files = read_diff(diff)
    lines: list[DetailLine] = []
    for each in files:
        if len(files) > 1:
            lines.append(DetailLine(each.title, "head"))
        lines += [DetailLine(line.text, line.tone) for line in each.lines]
    if max_lines is None or len(lines) <= max_lines + 1:
        return lines
    return [*lines[:max_lines], DetailLine(f"… {count(len(lines) - max_lines, 'more line')} (Ctrl+O shows all)")]


def _todos(text: str) -> list[DetailLine]:
    lines: list[DetailLine] = []
    for line in text.split("\n"):
        if found := _TODO.fullmatch(line):
            mark, tone = _TODO_MARKS.get(found[1], ("☐", ""))
            lines.append(DetailLine(f"{mark} {found[2]}", tone))
    hidden = len(lines) - _MAX_TODOS
    return lines if hidden <= 0 else [*lines[:_MAX_TODOS], DetailLine(f"… {hidden} more")]
