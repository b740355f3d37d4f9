"""Shows one session in its chat.

A turn is one message that grows: the model's text, and a line for each tool call. A question or an approval is a
message of its own, with buttons, which are removed as soon as it is settled: by an answer from anywhere, or by a stop.
A message that the user sends into the turn ends the message of the turn, which goes on in a new one below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.gateway.chat.adapter import Button
from halter.views.approval_text import approval_answers, approval_pages
from halter.views.call_text import call_text, late_end_text
from halter.views.items import (
    CallItem,
    ChildItem,
    MessageItem,
    Question,
    QueuedMessage,
    RetryItem,
    TextItem,
    TurnDisplay,
)
from halter.views.session_view import SessionDisplay
from halter.views.text import shorten, single_line
from halter.views.turn_text import turn_end_text

if TYPE_CHECKING:
    from halter.events import Event
    from halter.gateway.chat.outgoing import OutgoingMessage, OutgoingQueue
    from halter.views.items import Item

__all__ = ["NEXT_PAGE", "ChatRenderer"]

_MAX_TURNS: Final = 2  # kept in memory
_MAX_LINE: Final = 80  # characters of a task, an error or an answer
_MAX_BUTTONS: Final = 20
_MAX_LABEL: Final = 60
_MARKS: Final = {"completed": "✅", "failed": "❌", "denied": "🚫", "not_started": "➖", "abandoned": "⚠️"}  # noqa: RUF001


NEXT_PAGE: Final = object()
"""The option that shows the next page of an approval; not an answer."""


class ChatRenderer:
    """Shows one session by the messages of its chat."""

    def __init__(self, outgoing: OutgoingQueue) -> None:
        self.display = SessionDisplay(_MAX_TURNS)
        self._outgoing = outgoing
        self._questions: dict[str, _OpenQuestion] = {}
        self._segment: _Segment | None = None  # the message in which the turn goes on
        self._segments: dict[int, _Segment] = {}  # of the running turn, by the identity of their items

    def option(self, request: str, index: int) -> tuple[str, object] | None:
        """What a button of an open question means: its label, and the answer; None if it is not shown now."""
        asked = self._questions.get(request)
        return asked.options[index] if asked is not None and index in asked.shown else None

    def show_next_page(self, request: str) -> None:
        """Show the next page of an approval, in a message of its own. The last one has the buttons that allow."""
        asked = self._questions.get(request)
        if asked is None or not asked.pages:
            return
        if asked.message is not None:
            asked.message.finish()
        asked.text = asked.pages.pop(0)
        self._send(request, asked)

    def apply(self, event: Event) -> None:
        """Show what has happened."""
        item = self.display.apply(event)
        if isinstance(item, (TextItem, CallItem, RetryItem, ChildItem)):
            if event.kind == "tool.finished_late":
                self._report_late(item)
            else:
                self._show(item)
        elif isinstance(item, QueuedMessage):
            if item.prepared_seq == event.seq:
                self._outgoing.say(f'🎙️ "{item.text}"')
        elif isinstance(item, MessageItem):
            if not item.question and self.display.running is not None:
                self._segment = None
        elif isinstance(item, Question):
            self._show_question(item)
        elif isinstance(item, TurnDisplay) and event.kind == "turn.finished":
            self._finish(item)
        elif isinstance(item, TurnDisplay) and event.kind == "turn.rolled_back":
            self._outgoing.say("↶ The turn was removed from the conversation.")

    def close(self) -> None:
        """Withdraw open questions and end the message of the turn: nothing looks as if it were still running."""
        for request in list(self._questions):
            self._settle(request, "🚫 withdrawn")
        self._end_segments()

    # -- the turn ----------------------------------------------------------------------------------------------------

    def _show(self, item: Item) -> None:
        segment = self._segments.get(id(item))
        if segment is None:
            segment = self._segments[id(item)] = self._open()
            segment.items.append(item)
        segment.message.change()

    def _open(self) -> _Segment:
        if self._segment is None:
            self._segment = _Segment(self._outgoing)
        return self._segment

    def _finish(self, turn: TurnDisplay) -> None:
        if turn.status != "done":
            self._open().end = f"{'⏹' if turn.status == 'interrupted' else '⚠️'} {turn_end_text(turn)}"
        elif not self._segments:
            self._open().end = "(no answer)"
        self._end_segments()

    def _end_segments(self) -> None:
        segments = [*self._segments.values(), *([self._segment] if self._segment is not None else [])]
        for segment in {id(each): each for each in segments}.values():
            segment.message.finish(segment.render(is_over=True))
        self._segments.clear()
        self._segment = None

    def _report_late(self, item: Item) -> None:
        if isinstance(item, CallItem):
            self._outgoing.say(f"⚠️ {late_end_text(item)}.")

    # -- questions ---------------------------------------------------------------------------------------------------

    def _show_question(self, question: Question) -> None:
        if question.state == "open":
            self._ask(question)
        elif question.kind == "approval":
            self._settle(question.id, f"{'✅' if question.state == 'granted' else '🚫'} {question.note}")
        else:
            is_withdrawn = question.state == "withdrawn"
            self._settle(question.id, "🚫 withdrawn" if is_withdrawn else f"✅ {_line(str(question.value))}")

    def _ask(self, question: Question) -> None:
        self._segment = None  # the turn goes on below
        options: list[tuple[str, object]]
        pages: list[str] = []
        if question.kind == "approval":
            text, *pages = approval_pages(question)
            text = f"🔐 {text}"
            options = [("Next page", NEXT_PAGE), *(each[1:] for each in approval_answers(question, may_keep=False))]
        else:
            choices = question.choices or []
            shown = choices if len(choices) <= _MAX_BUTTONS else []
            listed = "" if shown else "".join(f"\n• {choice}" for choice in choices)
            hint = "" if shown else "\n(Your next message is the answer.)"
            text = f"❓ {question.text}{listed}{hint}"
            options = [(choice, choice) for choice in shown]
        self._questions[question.id] = asked = _OpenQuestion(text, options, pages)
        self._send(question.id, asked)

    def _send(self, request: str, asked: _OpenQuestion) -> None:
        """Send what is asked, with the buttons that may be pressed now."""
        text = asked.text
        buttons = [Button(shorten(asked.options[at][0], _MAX_LABEL), f"{request}/{at}") for at in asked.shown]
        asked.message = self._outgoing.add(lambda: text, buttons)

    def _settle(self, request: str, outcome: str) -> None:
        asked = self._questions.pop(request, None)
        if asked is not None and asked.message is not None:
            asked.message.finish(f"{asked.text}\n{outcome}")


class _OpenQuestion:
    """An open question. The number of an option never changes, so a button means the same on each page."""

    __slots__ = ("message", "options", "pages", "text")

    def __init__(self, text: str, options: list[tuple[str, object]], pages: list[str]) -> None:
        self.text = text  # what is shown now
        self.options = options
        self.pages = pages  # of an approval: those that were not shown yet
        self.message: OutgoingMessage | None = None

    @property
    def shown(self) -> list[int]:
        """The options that may be chosen now: a call can be allowed only once its last page was shown."""
        if self.pages:
            return [at for at, (_, value) in enumerate(self.options) if value is NEXT_PAGE or value is False]
        return [at for at, (_, value) in enumerate(self.options) if value is not NEXT_PAGE]


class _Segment:
    """A part of a turn that is shown in one message: texts and lines, in order."""

    def __init__(self, outgoing: OutgoingQueue) -> None:
        self.items: list[Item] = []
        self.end = ""
        self.message = outgoing.add(self.render)

    def render(self, *, is_over: bool = False) -> str:
        """The text of the message. A retry is shown until its attempt produces something."""
        items: list[Item] = [each for each in self.items if not isinstance(each, RetryItem)]
        if self.items and isinstance(self.items[-1], RetryItem) and not is_over:
            items.append(self.items[-1])
        return "\n".join(text for text in [*map(_render, items), self.end] if text)


def _render(item: Item) -> str:
    if isinstance(item, TextItem):
        return "" if item.is_superseded else item.text.strip()
    if isinstance(item, CallItem):
        return _call_line(item)
    if isinstance(item, ChildItem):
        return (
            f"◇ {item.agent}: {item.state}" if not item.task else f"◇ {item.agent} ({_line(item.task)}): {item.state}"
        )
    return f"🔁 {_line(item.error)}; trying again" if isinstance(item, RetryItem) else ""


def _call_line(call: CallItem) -> str:
    mark = "⏳" if call.state == "stopping" else _MARKS.get(call.state, "⏹") if call.is_finished else "🔧"
    return f"{mark} {call_text(call)}"


def _line(text: str) -> str:
    return shorten(single_line(text), _MAX_LINE)
