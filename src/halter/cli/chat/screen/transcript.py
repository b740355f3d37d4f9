"""The chat as text for a terminal: what is finished is written once, in order; the rest is drawn below it.

The state of the session is `display`. What is finished is put into `finished`, once.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Final, TypeAlias

from halter.cli.chat import notices
from halter.cli.chat.notices import Notice
from halter.cli.chat.screen.markdown_blocks import Block, MarkdownBlocks
from halter.cli.chat.screen.terminal_images import images_of
from halter.models.types import Image
from halter.views.items import (
    CallItem,
    ChildItem,
    CompactionItem,
    MessageItem,
    Question,
    QueuedMessage,
    ReasoningItem,
    RetryItem,
    TextItem,
    TurnDisplay,
)
from halter.views.session_view import SessionDisplay
from halter.views.text import count

if TYPE_CHECKING:
    from halter.events import Event
    from halter.tools.file_history import FileDiff
    from halter.views.session_view import Shown

__all__ = ["ChatTranscript", "Finished"]

Finished: TypeAlias = Notice | Block | Image
_MAX_OUTPUTS: Final = 20  # calls whose output can be shown
_MAX_TURNS: Final = 3  # kept in memory; what was said before is in the terminal's scrollback


class ChatTranscript:
    """What is written and drawn for one session."""

    def __init__(self) -> None:
        self.display = SessionDisplay(_MAX_TURNS)
        self.finished: list[Finished] = []
        self.answer = MarkdownBlocks()
        self._outputs: collections.deque[CallItem] = collections.deque(maxlen=_MAX_OUTPUTS)
        self._shown_output: CallItem | None = None
        self._pages: dict[str, list[list[Notice]]] = {}  # of open approvals: those that were not shown yet

    def apply(self, event: Event) -> Shown:
        """Apply one event."""
        item = self.display.apply(event)
        if isinstance(item, TextItem):
            self.answer.add(item.chunks[-1])
        elif item is not None and not isinstance(item, (QueuedMessage, ReasoningItem)):
            self._end_answer()
            self._write(item, event.kind)
        return item

    def take_finished(self) -> list[Finished]:
        """What has been finished since the last call."""
        self.finished += self.answer.take_finished()
        finished, self.finished = self.finished, []
        return finished

    def say(self, text: str, tone: str = "dim", lead: str = "") -> None:
        """Add a notice behind what has been said so far."""
        self._end_answer()
        self.finished.append(Notice(text, tone, lead))

    def pages_left(self, question: Question | None) -> int:
        """How many pages of an approval were not shown yet."""
        return len(self._pages.get(question.id, ())) if question is not None else 0

    def show_page(self, question: Question) -> None:
        """Show the next page of an approval."""
        pages = self._pages.get(question.id, [])
        if pages:
            self._end_answer()
            self.finished += pages.pop(0)

    def show_output(self) -> bool:
        """Show the full output of the last call; the next time, of the call before it. False if there is none."""
        calls = list(self._outputs)
        if self._shown_output in calls and calls.index(self._shown_output) > 0:
            call = calls[calls.index(self._shown_output) - 1]
        elif self._shown_output in calls or not calls:
            return False
        else:
            call = calls[-1]
        self._shown_output = call
        self._end_answer()
        self.finished += notices.of_output(call)
        return True

    def show_diff(self, diff: FileDiff) -> None:
        """Show what a turn has changed in files."""
        self._end_answer()
        self.finished += notices.of_diff(diff)

    def texts_of(self, turn_id: str) -> list[str]:
        """The messages of a turn."""
        turns = [turn for turn in self.display.turns if turn.id == turn_id]
        return [item.text for turn in turns for item in turn.items if isinstance(item, MessageItem)]

    @property
    def status(self) -> str:
        """The state of the session, in a few words."""
        state, turn = self.display.state, self.display.running
        if state != "running" or turn is None:
            return state
        calls = turn.running_calls
        if calls:
            return f"running {count(len(calls), 'tool')}"
        return {"thinking": "thinking", "waiting": "waiting for the model"}.get(turn.phase, "answering")

    def _end_answer(self) -> None:
        self.finished += self.answer.end()

    def _write(self, item: Shown, kind: str) -> None:  # noqa: C901  (one branch for each kind of item)
        """Write what is finished by this event."""
        if isinstance(item, MessageItem):
            self._write_message(item)
        elif isinstance(item, CallItem):
            if kind == "tool.finished":
                self.finished += [*notices.of_call(item), *images_of(item)]
                self._outputs.append(item)
                self._shown_output = None
            elif kind == "tool.finished_late":
                self.finished.append(notices.of_late_end(item))
        elif isinstance(item, RetryItem):
            self.finished.append(notices.of_retry(item))
        elif isinstance(item, CompactionItem):
            self.finished.append(notices.of_compaction(item))
        elif isinstance(item, Question):
            self._write_question(item)
        elif isinstance(item, ChildItem):
            if kind != "child.progress":
                self.finished.append(notices.of_child(item))
        elif isinstance(item, TurnDisplay):
            if kind == "turn.finished":
                said = notices.of_turn(item)
                self.finished += [said] if said is not None else []
            elif kind == "turn.rolled_back":
                self.say("the turn was removed from the conversation", lead="↶ ")

    def _write_message(self, item: MessageItem) -> None:
        self.finished.append(notices.of_user(item.text))
        if item.question:
            self.say("answered the question", lead="↳ ")
        elif item.mode == "steer":
            self.finished.append(notices.of_steer(item))

    def _write_question(self, item: Question) -> None:
        """Write what is asked, page by page: the area below the conversation has room for a part of it only."""
        if item.state == "open":
            if item.kind == "approval":
                self._pages[item.id] = notices.of_approval(item)
                self.show_page(item)
        elif item.kind == "approval":
            self._pages.pop(item.id, None)
            how, tone = ("allowed", "good") if item.state == "granted" else ("denied", "warn")
            why = f" ({item.note})" if item.note != "approved" else ""  # this would say it twice
            self.say(f"{item.tool}: {how}{why}", tone, "? ")
        else:
            self.say(f"{item.text}{' · withdrawn' if item.state == 'withdrawn' else ''}", "dim", "? ")
