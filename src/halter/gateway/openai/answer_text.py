"""The answer of a turn as one text.

A turn may have several answers: "Let me look.", the calls of tools, and then what was found. For OpenAI's clients they
are one text, with an empty line between them. If the answer has a type, only the last one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.events import RequestCancelled, RequestFinished, RequestRetry, RequestStarted, TurnFinished
from halter.models.types import TextDelta

if TYPE_CHECKING:
    from halter.events import EventData

__all__ = ["AnswerText"]

_BETWEEN: Final = "\n\n"
_AGAIN: Final = (
    "\n\n[The connection to the model was lost. The answer starts again.]\n\n"  # what was sent cannot be taken back
)


class AnswerText:
    """Collects the answer from the events of one turn."""

    def __init__(self, *, last_only: bool = False) -> None:
        self.end: TurnFinished | None = None
        self._last_only = last_only
        self._answers: list[str] = []
        self._before = ""  # what is sent before the next piece
        self._has_sent = False

    @property
    def text(self) -> str:
        """The whole answer so far."""
        return _BETWEEN.join(self._answers[-1:] if self._last_only else self._answers)

    def take(self, data: EventData) -> str:
        """Take an event; returns the next piece of the answer, if it has one."""
        if isinstance(data, TextDelta):
            return "" if self._last_only else self._piece(data.text)
        if isinstance(data, RequestStarted):
            if data.attempt == 1 and self._has_sent:
                self._before = _BETWEEN
        elif isinstance(data, RequestRetry):
            if data.superseded and self._has_sent:
                self._before = _AGAIN
        elif isinstance(data, (RequestFinished, RequestCancelled)):
            if data.answer is not None and data.answer.text:
                self._answers.append(data.answer.text)
        elif isinstance(data, TurnFinished):
            self.end = data
            if self._last_only and data.status == "done":
                return self._piece(self.text)
        return ""

    def _piece(self, text: str) -> str:
        before, self._before = self._before, ""
        self._has_sent = True
        return before + text
