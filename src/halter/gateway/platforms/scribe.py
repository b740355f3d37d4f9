"""What happens in one session, as a chat shows it.

A turn is one note that grows: what the model says, and a line for each tool call that tells how it goes. A question or
an approval is a note of its own, with its buttons, which are taken away as soon as it is settled: by whoever answered,
from wherever, or by a stop. What a person says into the turn ends the note, and the turn goes on below it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from halter.cli.output import plain
from halter.cli.timeline import seconds
from halter.events import (
    MessageApplied,
    MessageEdited,
    QuestionAnswered,
    QuestionAsked,
    TurnFinished,
    TurnStarted,
)
from halter.gateway.platforms.platform import Button
from halter.models.model import TextDelta
from halter.models.progress import RequestStarted
from halter.tools.events import (
    ApprovalAnswered,
    ApprovalAsked,
    ToolCancelling,
    ToolFinished,
    ToolFinishedLate,
    ToolProgress,
    ToolStarted,
)
from halter.voice.hearing import echo

if TYPE_CHECKING:
    from halter.events import Event
    from halter.gateway.platforms.board import Board, Note
    from halter.tools.outcome import ToolOutcome

__all__ = ["Scribe"]

_SHORT: Final = 80  # characters of a call's arguments or progress
_LONG: Final = 12_000  # characters of what an approval is asked for
_MOST_BUTTONS: Final = 20
_LABEL: Final = 60
_MARKS: Final = {"completed": "✅", "failed": "❌", "denied": "🚫", "not_started": "➖", "abandoned": "⚠️"}  # noqa: RUF001


class Scribe:
    """Writes down one session on the board of its place."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._asked: dict[str, _Asked] = {}
        self._sheet: _Sheet | None = None  # where the turn goes on
        self._sheets: list[_Sheet] = []  # all of the running turn: a call may still end on an earlier one
        self._calls: dict[str, tuple[_Sheet, _Line]] = {}
        self._is_in_turn = False

    def option(self, request: str, index: int) -> tuple[str, object] | None:
        """What one of the buttons below an open question means: its words, and the answer that it stands for."""
        asked = self._asked.get(request)
        return asked.options[index] if asked is not None and 0 <= index < len(asked.options) else None

    def take(self, event: Event) -> None:  # noqa: C901, PLR0912  (one for each kind)
        """Write down what has happened."""
        data = event.data
        if isinstance(data, TextDelta):
            self._page().add_text(data.text)
        elif isinstance(data, TurnStarted):
            self._is_in_turn = True
        elif isinstance(data, TurnFinished):
            self._finish(data)
        elif isinstance(data, MessageApplied):
            if self._is_in_turn and not data.question and self._sheet is not None:
                self._sheet = None  # it goes on below
        elif isinstance(data, MessageEdited):
            heard = echo(data)  # empty if it was no recording
            if heard:
                self._board.say(heard)
        elif isinstance(data, RequestStarted):
            if self._sheet is not None:
                self._sheet.begin_request(is_again=data.attempt > 1)
        elif isinstance(data, ToolStarted):
            line = _Line(f"🔧 {_call(data.name, data.arguments)}")
            self._calls[data.call_id] = (self._page(), line)
            self._page().add_line(line)
        elif isinstance(data, ToolProgress):
            self._tell(data.call_id, f"🔧 {data.name}: {_short(data.text)}")
        elif isinstance(data, ToolCancelling):
            self._tell(data.call_id, f"⏳ {data.name}: stopping ({data.reason})")
        elif isinstance(data, ToolFinished):
            self._end_call(data.outcome, data.after)
        elif isinstance(data, ToolFinishedLate):
            self._end_late(data.outcome)
        elif isinstance(data, (ApprovalAsked, QuestionAsked)):
            self._ask(data)
        elif isinstance(data, ApprovalAnswered):
            self._settle(data.request_id, f"{'✅' if data.granted else '🚫'} {data.note}")
        elif isinstance(data, QuestionAnswered):
            self._settle(data.id, "🚫 withdrawn" if data.withdrawn else f"✅ {_short(str(data.value))}")

    # -- the turn ----------------------------------------------------------------------------------------------------

    def _page(self) -> _Sheet:
        if self._sheet is None:
            self._sheet = _Sheet(self._board)
            self._sheets.append(self._sheet)
        return self._sheet

    def _finish(self, data: TurnFinished) -> None:
        self._is_in_turn = False
        if data.status == "interrupted":
            took = f" in {seconds(data.after)}" if data.after is not None else ""
            self._page().add_line(_Line(f"⏹ {_why(data)}{took}"))
        elif data.status == "failed":
            self._page().add_line(_Line(f"⚠️ {_why(data)}"))
        elif not self._sheets:
            self._page().add_line(_Line("(nothing to say)"))
        self._end_sheets()

    def _end_sheets(self) -> None:
        for sheet in self._sheets:
            sheet.note.settle()
        self._sheets.clear()
        self._calls.clear()
        self._sheet = None

    # -- calls -------------------------------------------------------------------------------------------------------

    def _tell(self, call_id: str, text: str) -> None:
        if call_id in self._calls:
            sheet, line = self._calls[call_id]
            line.text = text
            sheet.note.change()

    def _end_call(self, outcome: ToolOutcome, after: float | None) -> None:
        took = ""
        if after is not None:
            took = f", {seconds(after)} after the stop"
        elif outcome.started_at is not None and outcome.ended_at is not None:
            took = f", {seconds(outcome.ended_at - outcome.started_at)}"
        why = f": {_short(outcome.detail)}" if outcome.status in ("failed", "denied") and outcome.detail else ""
        mark = _MARKS.get(outcome.status, "⏹")
        text = f"{mark} {outcome.name}: {outcome.status.replace('_', ' ')}{took}{why}"
        if outcome.call_id in self._calls:
            self._tell(outcome.call_id, text)
        else:
            self._page().add_line(_Line(text))

    def _end_late(self, outcome: ToolOutcome) -> None:
        late = outcome.late
        took = f", {seconds(late.seconds)} after the stop" if late is not None else ""
        self._board.say(f"⚠️ {outcome.name}, which was left behind, has ended after all{took}.")

    # -- questions ---------------------------------------------------------------------------------------------------

    def _ask(self, data: ApprovalAsked | QuestionAsked) -> None:
        self._sheet = None  # the turn goes on below
        options: list[tuple[str, object]]
        if isinstance(data, ApprovalAsked):
            wanted = data.request
            text = f"🔐 May {wanted.tool} run? ({wanted.reason})\n{_arguments(wanted.arguments)}"
            options = [("Allow", True), ("Deny", False)]
            key = wanted.id
        else:
            choices = data.choices or []
            shown = choices if len(choices) <= _MOST_BUTTONS else []
            listed = "" if shown else "".join(f"\n• {choice}" for choice in choices)
            hint = "" if shown else "\n(Your next message is the answer.)"
            text = f"❓ {data.question}{listed}{hint}"
            options = [(choice, choice) for choice in shown]
            key = data.id
        buttons = [Button(_shorten(label, _LABEL), f"{key}/{at}") for at, (label, _) in enumerate(options)]
        self._asked[key] = _Asked(text, options, self._board.pin(lambda: text, buttons))

    def _settle(self, request: str, outcome: str) -> None:
        asked = self._asked.pop(request, None)
        if asked is not None:
            asked.note.settle(f"{asked.text}\n{outcome}")

    def close(self) -> None:
        """Leave nothing on the board that looks as if it went on."""
        for request in list(self._asked):
            self._settle(request, "🚫 withdrawn")
        self._end_sheets()


class _Asked:
    """A question that is open."""

    __slots__ = ("note", "options", "text")

    def __init__(self, text: str, options: list[tuple[str, object]], note: Note) -> None:
        self.text = text
        self.options = options
        self.note = note


class _Line:
    """One line about something."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class _Sheet:
    """The note of a turn: what was said, and lines, in their order."""

    def __init__(self, board: Board) -> None:
        self._blocks: list[list[str] | _Line] = []
        self._own: list[str] | None = None  # what the present request has said
        self._is_superseded = False
        self.note = board.pin(self._text)

    def _text(self) -> str:
        texts = [block.text if isinstance(block, _Line) else "".join(block).strip() for block in self._blocks]
        return "\n".join(text for text in texts if text)

    def begin_request(self, *, is_again: bool) -> None:
        """What is said from now on is another answer, or the same one once more."""
        if is_again:
            self._is_superseded = True  # what was said before is shown until there is something else
        else:
            self._own = None

    def add_text(self, text: str) -> None:
        if self._own is None or self._blocks[-1] is not self._own:
            self._own = []
            self._blocks.append(self._own)
        elif self._is_superseded:
            self._own.clear()
        self._is_superseded = False
        self._own.append(text)
        self.note.change()

    def add_line(self, line: _Line) -> None:
        self._blocks.append(line)
        self.note.change()


def _call(name: str, arguments: str) -> str:
    given = _short(arguments)
    return name if given in ("", "{}") else f"{name} {given}"


def _arguments(arguments: dict[str, object]) -> str:
    """What a call is to be given, for somebody who has to allow it: all of it, and nothing that hides in it."""
    lines = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        lines.append(f"{name}: " + "\n".join(plain(line) for line in text.split("\n")))
    whole = "\n".join(lines)
    over = len(whole) - _LONG
    return whole if over <= 0 else f"{whole[:_LONG]}\n… and {over} characters more, which are not shown"


def _why(data: TurnFinished) -> str:
    more = data.error or data.detail
    words = {"stop": "stopped", "interrupt": "interrupted", "crash": "broken off", "shutdown": "stopped"}
    what = words.get(data.reason, data.reason.replace("_", " ")) or data.status
    return f"{what}: {_short(more)}" if more and data.status == "failed" else what


def _short(text: str) -> str:
    return _shorten(" ".join(plain(text).split()), _SHORT)


def _shorten(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
