"""What a compaction leaves out, decided from the conversation and the size of the window. Nothing is written here.

What remains is valid for every provider. The beginning is cut off in front of a message of the user or the assistant,
never between a call and its result. The user's messages of the newest turn stay word for word. The results that the
model has not answered yet are only touched if they alone are too long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from halter.models.tokens import BYTES_PER_TOKEN, message_tokens, text_tokens
from halter.models.types import ToolMessage, UserMessage
from halter.session.compaction.prefix import note_text, shorten
from halter.session.history_view import CONTINUE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halter.session.history_view import HistoryView

__all__ = ["CompactionPlan", "Planner"]

_SHORTENED: Final = 600  # characters that are left of an old result
_MIN_SHORTENED: Final = 150  # characters that are left of a new result, at least
_MARKER: Final = 100  # characters, about, of the note that something was left out


class CompactionPlan(Struct, frozen=True):
    """What would be sent after a compaction."""

    upto: int  # messages before this one are replaced
    kept: list[int]  # which of them are sent nevertheless
    shortened: dict[str, int]
    replaced: int  # how many of them were sent until now, and are not from now on
    tokens: int  # of the next request, without the note that stands for them


class Planner:
    """Plans a compaction of one conversation for a window of *window* tokens, to half of *limit*."""

    def __init__(self, view: HistoryView, prompt: int, window: int, limit: int) -> None:
        """*prompt* is the size of the request besides its messages."""
        self._entries, self._count = view.entries, view.count
        self._prompt, self._window, self._target = prompt, window, limit // 2
        record = view.prefix.record if view.prefix is not None else None
        self._upto = record.upto if record is not None else 0
        self._kept = record.kept if record is not None else []
        self._shortened = dict(record.shortened) if record is not None else {}
        self._note = text_tokens(note_text(record.note, record.dropped)) if record is not None else 0
        self._sizes = {index: self._size(index) for index in range(self._upto, self._count)}
        self._has_shortened = False  # some of the last results

    def shorten_old_results(self) -> CompactionPlan | None:
        """Shorten old results, the oldest first; None if that would not free enough."""
        tokens = self._prompt + sum(map(self._size, self._kept)) + sum(self._sizes.values())
        shortened = dict(self._shortened)
        for index in range(self._upto, self._first_of_last_results()):
            message = self._entries[index][1]
            if isinstance(message, ToolMessage) and message.call_id not in shortened:
                freed = self._sizes[index] - message_tokens(shorten(message, _SHORTENED))
                if freed <= 0:
                    continue
                shortened[message.call_id] = _SHORTENED
                tokens -= freed
                if tokens + self._note <= self._target:
                    return CompactionPlan(self._upto, self._kept, shortened, 0, tokens)
        return None

    def replace_beginning(self) -> CompactionPlan | None:
        """Replace the beginning by a note; None if there is nothing to replace."""
        lasting = self._newest_user_messages()
        room = self._target - self._prompt - self._window // 8 - sum(map(self._size, lasting))
        room = max(room, self._window // 10)
        upto = self._cut(room)
        if upto == self._count and self._shorten_last_results(room):
            upto = self._cut(room)
        kept = [index for index in lasting if index < upto]
        replaced = len({*self._kept, *range(self._upto, upto)}.difference(kept))
        if not replaced and not self._has_shortened:
            return None
        if not replaced:
            upto, kept = self._upto, self._kept
        tokens = self._prompt + sum(map(self._size, (*kept, *range(upto, self._count))))
        left = {each.call_id for _, each in self._entries[upto : self._count] if isinstance(each, ToolMessage)}
        shortened = {call: size for call, size in self._shortened.items() if call in left}
        return CompactionPlan(upto, kept, shortened, replaced, tokens)

    def _size(self, index: int) -> int:
        message = self._entries[index][1]
        if isinstance(message, ToolMessage) and message.call_id in self._shortened:
            message = shorten(message, self._shortened[message.call_id])
        return message_tokens(message)

    def _cut(self, room: int) -> int:
        """The first message that stays, if those from there on may have *room* tokens."""
        upto = self._count
        for index in range(self._count - 1, self._upto - 1, -1):
            room -= self._sizes[index]
            if room < 0:
                break
            if not isinstance(self._entries[index][1], ToolMessage):
                upto = index
        return upto

    def _first_of_last_results(self) -> int:
        """The index of the first of the results at the end of the conversation; its length if there are none there."""
        first = self._count
        while first > self._upto and isinstance(self._entries[first - 1][1], ToolMessage):
            first -= 1
        return first

    def _shorten_last_results(self, room: int) -> bool:
        """Shorten the results at the end of the conversation so that they fit; False if there are none there."""
        first = self._first_of_last_results()
        if first in (self._count, self._upto):
            return False
        share = (room - self._sizes[first - 1]) // (self._count - first) * BYTES_PER_TOKEN
        for index in range(first, self._count):
            message = self._entries[index][1]
            assert isinstance(message, ToolMessage)
            characters = max(share - _MARKER, _MIN_SHORTENED)
            if not message.text.isascii():
                characters //= BYTES_PER_TOKEN
            if message_tokens(shorten(message, characters)) < self._sizes[index]:
                self._shortened[message.call_id] = characters
                self._sizes[index] = self._size(index)
                self._has_shortened = True
        return True

    def _newest_user_messages(self) -> list[int]:
        """The user's messages of the newest turn that has any, in order; of many long ones the newest."""
        found: list[int] = []
        turn = ""
        room = self._window // 4
        for index in self._user_messages():
            of_turn, message = self._entries[index]
            if turn and of_turn != turn:
                break
            if not _only_continues(message):  # type: ignore[arg-type]
                turn = of_turn
            room -= self._size(index)
            if found and room < 0:
                break
            found.append(index)
        return found[::-1]

    def _user_messages(self) -> Iterator[int]:
        """The user's messages that are sent now, the newest first."""
        for index in range(self._count - 1, self._upto - 1, -1):
            if isinstance(self._entries[index][1], UserMessage):
                yield index
        yield from reversed(self._kept)


def _only_continues(message: UserMessage) -> bool:
    """Whether it only asks to continue: then the task is in an earlier turn."""
    return message.text.endswith(CONTINUE)
