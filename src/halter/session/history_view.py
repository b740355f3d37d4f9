"""The conversation for readers: an immutable snapshot of a `History`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.models.types import Part, Text, UserMessage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halter.models.types import Message
    from halter.session.history import History

__all__ = ["CONTINUE", "HistoryView", "with_notes"]

CONTINUE: Final = "Continue from where you stopped."


class HistoryView:
    """An immutable snapshot of a history. Any thread may read it, at any time."""

    __slots__ = (
        "_calls",
        "_is_cut",
        "_notes",
        "_pieces",
        "_spoken",
        "count",
        "entries",
        "last",
        "measured",
        "prefix",
        "turn",
    )

    def __init__(self, history: History) -> None:
        self.turn = history.turn
        """The open turn."""
        self.last = history.last
        """The newest finished turn that is part of the conversation."""
        self.entries = history._entries
        """All messages with their turns, compacted or not. Only the first `count` belong to this view."""
        self.count = len(self.entries)
        self.prefix = history.prefix
        """The newest compaction, if any."""
        self.measured = history._measured
        """How many messages the last request and its answer were, and the tokens that the provider counted; or 0, 0."""
        self._calls = history._calls
        request = history._request
        self._pieces = request.answer.pieces if request is not None else ()
        self._spoken = len(self._pieces)
        self._is_cut = history._is_cut
        self._notes = history._opening if history._is_cut else ()

    @property
    def messages(self) -> list[Message]:
        """The conversation as it is sent, valid for every provider."""
        if self.prefix is not None:
            return self.prefix.project(self.entries, self.count) + self._calls.messages()
        return self.all_messages

    @property
    def all_messages(self) -> list[Message]:
        """The whole conversation, compacted or not."""
        return [message for _, message in self.entries[: self.count]] + self._calls.messages()

    @property
    def request_messages(self) -> list[Message]:
        """The conversation as it is sent. If it ends in an answer that was cut off, the model is asked to continue."""
        messages = self.messages
        if self._is_cut:
            messages.append(with_notes(self._notes, UserMessage.of(CONTINUE)))
        return messages

    @property
    def text(self) -> str:
        """The text of the open request so far; else the last answer of the open or the last turn."""
        spoken = "".join(self._pieces[: self._spoken])
        turn = self.turn or self.last
        return spoken or (turn.text if turn is not None else "")


def with_notes(notes: Iterable[str], message: UserMessage) -> UserMessage:
    """A message with notes for the model before it."""
    parts: list[Part] = [Text(f"[{note}]") for note in notes]
    return UserMessage([*parts, *message.parts]) if parts else message
