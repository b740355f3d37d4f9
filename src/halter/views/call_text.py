"""A tool call in one line, for the terminal and for chat platforms: what is called, how it stands or how it ended."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

import msgspec

from halter.views.diff_text import counts_text, read_diff
from halter.views.text import count, elapsed, seconds, shorten, strip_controls

if TYPE_CHECKING:
    from halter.views.items import CallItem

__all__ = ["brief_arguments", "call_text", "late_end_text"]

# Characters.
_MAX_ARGUMENTS: Final = 48
_MAX_COMMAND: Final = 160
_MAX_PROGRESS: Final = 120
_MAX_DETAIL: Final = 200


def call_text(call: CallItem, now: float | None = None, max_arguments: int = _MAX_ARGUMENTS) -> str:
    """The line, without a mark in front of it. *now* is given where the line is drawn again as time passes.

    A command is shown as one, and a change by the files that it was made in.
    """
    title = _title(call, max_arguments)
    return " · ".join([title, *(_end(call) if call.is_finished else _state(call, now))])


def _title(call: CallItem, max_arguments: int) -> str:
    if call.diff and (files := read_diff(call.diff)):
        if len(files) == 1:
            return f"{call.name} {_line(files[0].title, max(max_arguments, _MAX_COMMAND))}"
        return f"{call.name} {len(files)} files {counts_text(files)}"
    if call.name == "terminal" and (command := _argument(call.arguments, "command")):
        return f"$ {_line(command, max_arguments if max_arguments != _MAX_ARGUMENTS else _MAX_COMMAND)}"
    if call.name == "todo":
        return call.name
    if call.name in ("patch", "write_file") and (path := _argument(call.arguments, "path")):
        return f"{call.name} {_line(path, max_arguments)}"
    return f"{call.name} {brief_arguments(call.arguments, min(max_arguments, _MAX_ARGUMENTS))}".rstrip()


def late_end_text(call: CallItem) -> str:
    """An abandoned call has ended after all."""
    late = call.late
    when = f" {seconds(late.seconds)} after the stop" if late is not None else ""
    how = f", with an error: {_line(late.error, _MAX_DETAIL)}" if late is not None and late.error else ""
    return f"{call.name}, which was abandoned, ended{when}{how}"


def _state(call: CallItem, now: float | None) -> list[str]:
    parts = [elapsed(now - call.started)] if now is not None and call.started is not None else []
    if call.state == "stopping":
        parts.append("stopping")
    if call.progress and call.name != "terminal":
        parts.append(_line(call.progress.rstrip().rpartition("\n")[2], _MAX_PROGRESS))
    return parts


def _end(call: CallItem) -> list[str]:
    if call.state == "not_started":
        return ["not started"]
    parts = [] if call.state == "completed" else [_how(call)]
    if call.exit_code not in (None, 0):
        parts.append(f"exit code {call.exit_code}" if isinstance(call.exit_code, int) else f"ended by {call.exit_code}")
    if call.started is not None and call.ended is not None:
        parts.append(seconds(call.ended - call.started))
    if call.after is not None:
        parts.append(f"stopped in {seconds(call.after)}")
    return parts


def _how(call: CallItem) -> str:
    if call.state == "abandoned":
        return "abandoned: it did not end, and may still have effects"
    if call.state == "partial":
        return "partial result kept"
    how = call.state.replace("_", " ")
    detail = call.detail if call.state in ("failed", "denied", "timed_out") else ""
    return f"{how}: {_line(detail, _MAX_DETAIL)}" if detail else how


@functools.lru_cache(maxsize=64)  # called for every frame
def _argument(arguments: str, name: str) -> str:
    """One argument, if it is a text."""
    try:
        values = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return ""
    value = values.get(name) if isinstance(values, dict) else None
    return value if isinstance(value, str) else ""


@functools.lru_cache(maxsize=64)
def brief_arguments(arguments: str, max_length: int) -> str:
    """The values of a call's arguments, which are JSON, in one line."""
    try:
        values = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        values = arguments
    text = ", ".join(_brief(*each) for each in values.items()) if isinstance(values, dict) else arguments
    return _line(text, max_length)


def _brief(name: str, value: object) -> str:
    """One argument; of a list of objects, how many: "2 tasks"."""
    if isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        return count(len(value), name.removesuffix("s"), name)
    return str(value)


def _line(text: str, max_length: int) -> str:
    return shorten(strip_controls(text[: 4 * max_length]), max_length)
