"""Tool calls as the protocol shows them: `tool_call` for a new one, `tool_call_update` for what has changed since."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halter.models.types import Image
from halter.protocols.acp.content import fenced, part_block, text_block
from halter.views.call_details import call_details, result_text
from halter.views.call_text import call_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from halter.views.items import CallItem, Question, TurnDisplay

__all__ = ["ToolCallUpdates", "plan_of"]

_KINDS: Final = {
    "read_file": "read",
    "read_skill": "read",
    "write_file": "edit",
    "patch": "edit",
    "search_files": "search",
    "session_search": "search",
    "web_search": "fetch",
    "web_extract": "fetch",
    "terminal": "execute",
    "process": "execute",
    "execute_code": "execute",
    "todo": "think",
}
_STATUSES: Final = {
    "planned": "pending",
    "needs approval": "pending",
    "running": "in_progress",
    "stopping": "in_progress",
    "completed": "completed",
    "partial": "completed",
}  # others have failed, in one way or another; the title says in which
_MAX_ARGUMENTS: Final = 16_000  # characters
_MAX_RESULT: Final = 16_000
_MAX_PROGRESS: Final = 2_000
_MARKS: Final = {"☐": "pending", "▸": "in_progress", "☑": "completed"}
_FILE: Final = re.compile(r"^--- (?:a/)?(.*?)(?:\t.*)?\n\+\+\+ (?:b/)?(.*?)(?:\t.*)?\n(?=@@ )", re.MULTILINE)
_HUNK: Final = re.compile(r"^@@ .*\n", re.MULTILINE)
_NOWHERE: Final = "/dev/null"


class _Sent:
    """A call, its id for the client, and what the client knows of it."""

    def __init__(self, call: CallItem, call_id: str) -> None:
        self.call = call
        self.id = call_id
        self.fields: dict[str, Any] = {}
        self.is_over = False


class ToolCallUpdates:
    """What has changed in the calls of a session since it was asked last."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._turn = ""
        self._sent: dict[str, _Sent] = {}  # of one turn
        self._ids: dict[str, int] = {}  # how often an id was used: models use one again

    def of(self, turn: TurnDisplay) -> Iterator[dict[str, Any]]:
        """The updates for the calls of a turn."""
        for call in turn.calls.values():
            yield from self.of_call(turn, call)

    def of_call(self, turn: TurnDisplay, call: CallItem) -> Iterator[dict[str, Any]]:
        """The updates for one call of a turn."""
        if turn.id != self._turn:
            self._turn, self._sent, self._ids = turn.id, {}, {}
        sent = self._sent.get(call.id)
        if sent is None or sent.call is not call:
            sent = self._sent[call.id] = _Sent(call, self._new_id(turn.id, call.id))
        if not sent.is_over:
            yield from self._changes(sent)

    def id_for(self, question: Question) -> str:
        """The id of the call that needs an approval; that of the question if the call is not known."""
        return next((each.id for each in self._sent.values() if each.call.approval is question), question.id)

    def _new_id(self, turn: str, call: str) -> str:
        self._ids[call] = number = self._ids.get(call, 0) + 1
        return f"{turn}/{call}" if number == 1 else f"{turn}/{call}/{number}"

    def _changes(self, sent: _Sent) -> Iterator[dict[str, Any]]:
        fields = self._fields(sent.call)
        changed = {name: value for name, value in fields.items() if sent.fields.get(name) != value}
        is_new = not sent.fields
        sent.fields, sent.is_over = fields, sent.call.is_finished
        if is_new:
            kind = _KINDS.get(sent.call.name, "other")
            yield {"sessionUpdate": "tool_call", "toolCallId": sent.id, "kind": kind, **changed}
        elif changed:
            yield {"sessionUpdate": "tool_call_update", "toolCallId": sent.id, **changed}

    def _fields(self, call: CallItem) -> dict[str, Any]:
        fields: dict[str, Any] = {"title": call_text(call), "status": _STATUSES.get(call.state, "failed")}
        arguments = _arguments(call)
        if arguments is not None:
            fields["rawInput"] = arguments
            path = arguments.get("path")
            if isinstance(path, str):
                fields["locations"] = [{"path": str(self._workspace / path)}]
        content = list(self._content(call))
        return {**fields, "content": content} if content else fields

    def _content(self, call: CallItem) -> Iterator[dict[str, Any]]:
        for path, old, new in _changed_files(call.diff):
            yield {"type": "diff", "path": str(self._workspace / path), "oldText": old, "newText": new}
        if not call.is_finished:
            text = call.progress[-_MAX_PROGRESS:]
        else:
            text = "" if call.diff else result_text(call) or call.detail
        if text.strip():
            yield {"type": "content", "content": text_block(fenced(_shortened(text)))}
        outcome = call.outcome.content if call.outcome is not None else ""
        for part in outcome if isinstance(outcome, list) else ():
            if isinstance(part, Image):
                yield {"type": "content", "content": part_block(part)}


def plan_of(call: CallItem) -> dict[str, Any] | None:
    """The to-do list that a call has returned, as a plan."""
    if call.name != "todo" or call.state != "completed":
        return None
    lines = [line.text.partition(" ") for line in call_details(call)]
    entries = [
        {"content": text, "priority": "medium", "status": _MARKS[mark]} for mark, _, text in lines if mark in _MARKS
    ]
    return {"sessionUpdate": "plan", "entries": entries}


def _arguments(call: CallItem) -> dict[str, Any] | None:
    if not call.arguments or len(call.arguments) > _MAX_ARGUMENTS:
        return None
    try:
        return msgspec.json.decode(call.arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def _shortened(text: str) -> str:
    """A long text without its middle."""
    left_out = len(text) - _MAX_RESULT
    if left_out <= 0:
        return text
    half = _MAX_RESULT // 2
    return f"{text[:half]}\n[... {left_out:,} characters are not shown ...]\n{text[-half:]}"


def _changed_files(diff: str) -> Iterator[tuple[str, str | None, str]]:
    """The hunks of a unified diff: the path, the text before and the text after. A new file has no text before."""
    _, *found = _FILE.split(diff)
    for old, new, body in zip(found[::3], found[1::3], found[2::3], strict=True):
        for hunk in _HUNK.split(body)[1:]:
            lines = hunk.removesuffix("\n").split("\n")
            before = "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("-", " ", ""))
            after = "".join(f"{line[1:]}\n" for line in lines if line[:1] in ("+", " ", ""))
            yield (old if new == _NOWHERE else new), (None if old == _NOWHERE else before), after
