"""The messages that wait for a turn, and the receipts of all that ever came.

A message is here from the moment it is durable until it is applied or removed. Whoever posted it keeps a receipt, which
tells at any time what became of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from halter.cancel.token import NEVER, CancellationToken
from halter.events import (
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    MessageHeld,
    MessageReleased,
    MessageRemoved,
)
from halter.models.model import Part, Text, UserMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halter.events import Event, EventData, Mode
    from halter.turn import Turn

__all__ = ["Content", "Inbox", "Letter", "Receipt", "to_message"]

Content: TypeAlias = str | Part | UserMessage | list[str | Part]
"""What a user may give for a message."""
_OF_MESSAGES: Final = frozenset(
    {MessageAccepted, MessageApplied, MessageEdited, MessageHeld, MessageReleased, MessageRemoved}
)
State: TypeAlias = Literal["accepted", "applied", "held", "removed"]


def to_message(content: Content) -> UserMessage:
    """Make a message of what a user may give for one."""
    if isinstance(content, UserMessage):
        message = content
    elif isinstance(content, list):
        message = UserMessage.of(*content)
    else:
        message = UserMessage.of(content)
    # A text with nothing in it is what providers refuse; it may stand beside a picture, and is left out there.
    parts = [part for part in message.parts if not isinstance(part, Text) or part.text.strip()]
    if not parts or not all(isinstance(part, Part) for part in parts):
        msg = f"a message is a text, an image, some audio, or a list of these, and not empty; this is {content!r:.80}"
        raise ValueError(msg)
    return message if len(parts) == len(message.parts) else UserMessage(parts)


class Letter:
    """One message and what became of it."""

    __slots__ = (
        "_settled",
        "accepted_at",
        "against",
        "id",
        "message",
        "mode",
        "note",
        "number",
        "preparing",
        "state",
        "stopped",
        "turn_id",
        "whole",
    )

    def __init__(
        self,
        letter_id: str,
        mode: Mode | Literal["stop"],
        message: UserMessage | None,
        note: str = "",
        accepted_at: float = 0.0,
    ) -> None:
        self.id = letter_id
        self.mode = mode
        self.message = message  # None once it is in the history, or was removed
        self.note = note
        self.stopped = False
        self.against = ""  # the turn that it was to stop, and which it is therefore no part of
        self.state: State = "accepted"
        self.turn_id = ""
        self.accepted_at = accepted_at
        self.number = 0  # of its event: what came first
        self.preparing = ""  # what is being done to it before it can be applied
        self.whole: CancellationToken | None = None  # rings when that is over
        self._settled: CancellationToken | None = CancellationToken(name="settled")  # as a bell that rings once

    @property
    def text(self) -> str:
        """Its text parts, one below the other."""
        return self.message.text if self.message is not None else ""

    @property
    def became(self) -> Mode:
        """As what it is applied."""
        return "queue" if self.mode == "steer" or self.mode == "stop" else self.mode  # noqa: PLR1714  (mypy's way)

    def __repr__(self) -> str:
        return f"<{self.state} message {self.id} ({self.mode}): {self.text[:40]!r}>"

    def prepare(self, what: str) -> None:
        """Wait until that is done before it is applied; with nothing to be done, it is whole."""
        self.preparing = what
        bell, self.whole = self.whole, CancellationToken(name="whole") if what else None
        if bell is not None:
            bell.cancel("whole")

    def settle(self, state: State) -> None:
        """Go over into a state that lasts, and tell those who wait."""
        self.state = state
        bell = self._settled
        if bell is None:
            return
        if state == "held":
            self._settled = CancellationToken(name="settled")
        else:
            self._settled = None
        bell.cancel("settled")

    @property
    def bell(self) -> CancellationToken | None:
        """Rings when the state has changed for good; None if that was before."""
        return self._settled if self.state == "accepted" else None


class Receipt:
    """What became of a message, or of a stop; it knows at any time.

    `mode` is what the message became, and `note` says why if that is not what was asked for.
    """

    __slots__ = ("_turn", "letter")

    def __init__(self, letter: Letter, turn: Turn | None = None) -> None:
        self.letter = letter
        self._turn = turn

    @property
    def id(self) -> str:
        """The message's identifier; empty for a stop without a message."""
        return self.letter.id

    @property
    def state(self) -> State:
        """Where it is: accepted, applied, held or removed."""
        return self.letter.state

    @property
    def mode(self) -> Mode | Literal["stop"]:
        """What it became."""
        return self.letter.mode

    @property
    def turn_id(self) -> str:
        """The turn in which it was applied, or the one that was to stop; empty while there is none."""
        return self.letter.turn_id

    @property
    def stopped(self) -> bool:
        """Whether it was this that stopped a running turn."""
        return self.letter.stopped

    @property
    def note(self) -> str:
        """What is to be said about it."""
        return self.letter.note

    def __repr__(self) -> str:
        stopped = ", stopped a turn" if self.stopped else ""
        return f"<Receipt {self.id or '(no message)'}: {self.state} as {self.mode}{stopped}>"

    def settled(self, timeout: float | None = None) -> bool:
        """Wait until the message is applied, held or removed, and a turn that this has stopped is over."""
        end = None if timeout is None else time.monotonic() + timeout
        return all(bell.wait(None if end is None else max(0.0, end - time.monotonic())) for bell in self._bells())

    async def settled_async(self) -> None:
        """Wait as `settled` does, without blocking the loop."""
        for bell in self._bells():
            await bell.wait_async()

    def _bells(self) -> list[CancellationToken]:
        end = self._turn.ended if self._turn is not None else None
        return [bell for bell in (end, self.letter.bell) if bell is not None]


class Inbox:
    """The messages that wait, in order. Reads are safe from any thread; changes go through the session."""

    __slots__ = ("_letters", "_waiting", "_write")

    def __init__(self, write: Callable[[Callable[[], list[EventData]]], bool]) -> None:
        """*write* asks a function, with nobody in between, what to write, and says whether that was anything."""
        self._write = write
        self._letters: dict[str, Letter] = {}  # all that ever came, for their receipts
        self._waiting: dict[str, Letter] = {}

    # -- for everybody -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Letter]:
        return iter(sorted(self._waiting.copy().values(), key=_number) if self._waiting else ())

    def __len__(self) -> int:
        return len(self._waiting)

    def __getitem__(self, index: int) -> Letter:
        return list(self)[index]

    def __repr__(self) -> str:
        return f"<Inbox {list(self)}>"

    def remove(self, message_id: str) -> bool:
        """Take a message out, if it still waits; True if this did it."""
        return self._write(lambda: [MessageRemoved(message_id)] if message_id in self._waiting else [])

    def edit(self, message_id: str, content: Content) -> bool:
        """Change a message, if it still waits and is not just being prepared; True if this did it."""
        message = to_message(content)

        def change() -> list[EventData]:
            letter = self._waiting.get(message_id)
            return [] if letter is None or letter.preparing else [MessageEdited(message_id, message)]

        return self._write(change)

    # -- for the session ---------------------------------------------------------------------------------------------

    def find(self, message_id: str) -> Letter | None:
        """The message of this name, wherever it is now."""
        return self._letters.get(message_id)

    def ready(self, *, steers_only: bool = False) -> list[Letter]:
        """Those that may be applied, in order: up to the first that is being prepared, for it keeps its place."""
        return self._in_line(steers_only=steers_only)[0]

    def blocked(self) -> CancellationToken:
        """What those that may be applied later wait for: a bell, which never rings if there is nothing to wait for."""
        while True:
            ready, behind = self._in_line(steers_only=False)
            if ready or not behind:
                return NEVER
            whole = behind[0].whole
            if whole is not None:  # else it has become whole, or was removed, since we looked
                return whole

    def awaited(self) -> CancellationToken | None:
        """What steers wait for that could be applied, were it not for one before them: a bell. None if none does."""
        ready, behind = self._in_line(steers_only=True)
        waits = not ready and any(not letter.preparing for letter in behind)
        return behind[0].whole if waits else None

    def _in_line(self, *, steers_only: bool) -> tuple[list[Letter], list[Letter]]:
        """Those that may be applied now; and, from the first that is being prepared on, those that may be later."""
        if not self._waiting:  # as a rule; and every stop asks several times
            return [], []
        line = [letter for letter in self if letter.state == "accepted" and (not steers_only or letter.mode == "steer")]
        place = next((place for place, letter in enumerate(line) if letter.preparing), len(line))
        return line[:place], line[place:]

    def held(self) -> list[Letter]:
        """Those that wait to be released."""
        return [letter for letter in self if letter.state == "held"]

    def expect(self, letter: Letter) -> None:
        """Know a message that is just being written."""
        self._letters[letter.id] = letter

    def withdraw(self, letter: Letter) -> None:
        """Forget a message that could not be written."""
        self._letters.pop(letter.id, None)

    def hold(self, last: Letter | None = None) -> list[Letter]:
        """Let none of those that wait go on, or none up to the *last* one; gives them.

        Lock-free, for it may be a signal handler that calls.
        """
        waiting = [letter for letter in self if letter.state == "accepted"]
        if last is not None:
            waiting = [letter for letter in waiting if letter.number <= last.number]
        for letter in waiting:
            letter.state = "held"
        return waiting

    def demote_steers(self, note: str) -> None:
        """Make ordinary messages of the steers that wait, because the turn that they were for is over."""
        for letter in self._waiting.copy().values():
            if letter.mode == "steer":
                letter.mode, letter.note = "queue", note

    def take(self, event: Event) -> UserMessage | None:
        """Add one event of the log; gives the message that is applied by it."""
        data = event.data
        if type(data) not in _OF_MESSAGES:  # most are not; isinstance costs more
            return None
        if isinstance(data, MessageAccepted):
            letter = self._letters.get(data.id) or Letter(data.id, data.mode, data.message, data.note, event.time)
            letter.number = event.seq
            if data.preparing and not letter.preparing:
                letter.prepare(data.preparing)
            self._letters[data.id] = self._waiting[data.id] = letter
            return None
        if not isinstance(data, (MessageApplied, MessageRemoved, MessageHeld, MessageReleased, MessageEdited)):
            return None
        # One that waits no more is not changed by what a signal handler wrote a moment too late.
        found = self._waiting.get(data.id)
        return None if found is None else self._change(found, event)

    def _change(self, letter: Letter, event: Event) -> UserMessage | None:
        data = event.data
        if isinstance(data, MessageApplied):
            message = letter.message
            letter.mode, letter.note, letter.turn_id = data.mode, data.note, event.turn
            self._forget(letter)
            letter.settle("applied")
            return message
        if isinstance(data, MessageRemoved):
            self._forget(letter)
            letter.settle("removed")
        elif isinstance(data, MessageHeld):
            letter.settle("held")
        elif isinstance(data, MessageReleased):
            letter.state = "accepted"
        elif isinstance(data, MessageEdited):
            letter.message = data.message
            letter.note = data.note or letter.note
            letter.prepare("")
        return None

    def _forget(self, letter: Letter) -> None:
        """Let go of the content: it is in the history now, or was not wanted."""
        self._waiting.pop(letter.id, None)
        if not self._waiting:
            self._waiting = {}  # one that was used keeps its room
        letter.message = None
        letter.prepare("")


def _number(letter: Letter) -> int:
    return letter.number
