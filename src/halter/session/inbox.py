"""The messages that wait for a turn, and the receipts of all messages that were ever posted.

A message is in the inbox from the moment it is durable until it is applied or removed. The caller that posted it has a
receipt, which always shows the current state.

`WaitingMessages` is the writer's side: a projection of the log, changed only by `apply()`. `Inbox` and `Receipt` are
the readers' side: they read the session's view, which contains only what is durable.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from halter.events import (
    MessageAccepted,
    MessageApplied,
    MessageEdited,
    MessageHeld,
    MessageReleased,
    MessageRemoved,
    Mode,
)
from halter.models.sanitize import clean_message
from halter.models.types import Part, Text, UserMessage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halter.cancel.one_shot_event import OneShotEvent
    from halter.errors import SessionClosed, StoreError
    from halter.events import Event
    from halter.session.log import EventLog
    from halter.session.turn import Turn
    from halter.tools.file_history import RestoredFiles

__all__ = ["Content", "Inbox", "InboxMessage", "Receipt", "WaitingMessages", "to_message"]

Content: TypeAlias = str | Part | UserMessage | list[str | Part]
"""What can be posted as a message."""
State: TypeAlias = Literal["accepted", "applied", "held", "removed"]


def to_message(content: Content) -> UserMessage:
    """Convert posted content to a message."""
    if isinstance(content, UserMessage):
        message = content
    elif isinstance(content, list):
        message = UserMessage.of(*content)
    else:
        message = UserMessage.of(content)
    # Providers refuse empty texts. Beside a picture, an empty text is left out.
    parts = [part for part in message.parts if not isinstance(part, Text) or part.text.strip()]
    if not parts or not all(isinstance(part, Part) for part in parts):
        raise ValueError(
            f"a message must be a text, an image, audio, or a list of these, and not empty; this is {content!r:.80}"
        )
    return clean_message(UserMessage(parts))


class InboxMessage(Struct, frozen=True, gc=False):
    """One message and its state, at one moment."""

    id: str
    mode: Mode
    message: UserMessage | None  # None once it is in the history or was removed
    note: str = ""
    accepted_at: float = 0.0
    number: int = 0  # the number of its event: the order of arrival
    preparing: str = ""  # what must be done before it can be applied, such as "transcribing"
    state: State = "accepted"
    turn_id: str = ""  # the turn in which it was applied
    # Of a rollback: the turn that it takes out. An interrupt stops whatever turn runs once it is complete.
    against: str = ""

    @property
    def text(self) -> str:
        """Its text parts, joined by line breaks."""
        return self.message.text if self.message is not None else ""

    @property
    def is_waiting(self) -> bool:
        """Whether it is still in the inbox."""
        return self.state in ("accepted", "held")

    def __repr__(self) -> str:
        return f"<{self.state} message {self.id} ({self.mode}): {self.text[:40]!r}>"


class WaitingMessages:
    """The inbox as the writer sees it: the waiting messages, in order, and the final state of all others."""

    __slots__ = ("_settling", "_snapshot", "_waiting", "settled")

    def __init__(self) -> None:
        self._waiting: dict[str, InboxMessage] = {}
        self.settled: dict[str, InboxMessage] = {}  # applied or removed, and durable: readers use this dict
        self._settling: dict[str, InboxMessage] = {}  # applied or removed, and not durable yet
        self._snapshot: tuple[InboxMessage, ...] | None = ()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[InboxMessage]:
        return iter(list(self._waiting.values()))

    def publish(self) -> tuple[InboxMessage, ...]:
        """Note that all changes are durable; returns the waiting messages."""
        if self._settling:
            self.settled.update(self._settling)
            self._settling = {}
        if self._snapshot is None:
            self._snapshot = tuple(self._waiting.values())
            if not self._waiting:
                self._waiting = {}  # an emptied dict keeps its memory
        return self._snapshot

    def find(self, message_id: str) -> InboxMessage | None:
        """The message with this id, in any state."""
        return self._waiting.get(message_id) or self._settling.get(message_id) or self.settled.get(message_id)

    def ready(self, *, steers_only: bool = False) -> list[InboxMessage]:
        """The messages that may be applied, in order, up to the first one that is still in preparation."""
        return ready(self._waiting.values(), steers_only=steers_only) if self._waiting else []

    def is_waiting(self, message_id: str) -> bool:
        """Whether a message with this id is waiting."""
        return message_id in self._waiting

    def take(self, message_id: str) -> UserMessage:
        """The content of a message that is being applied."""
        message = self._waiting[message_id].message
        assert message is not None  # a waiting message has its content
        return message

    def demote_steers(self, note: str) -> None:
        """Turn waiting steers into queued messages: their turn is over."""
        for message in self:
            if message.mode == "steer":
                self._put(replace(message, mode="queue", note=note))

    def apply(self, event: Event, turn: str) -> None:
        """Apply one event of a message; *turn* is the id of the open turn."""
        data: Any = event.data
        if isinstance(data, MessageAccepted):
            against = turn if data.mode == "rollback" else ""
            self._put(
                InboxMessage(
                    data.id, data.mode, data.message, data.note, event.time, event.seq, data.preparing, against=against
                )
            )
            return
        message = self._waiting.get(data.id)
        if message is None:
            return
        if isinstance(data, MessageApplied):
            self._settle(replace(message, mode=data.mode, note=data.note, turn_id=event.turn), "applied")
        elif isinstance(data, MessageRemoved):
            self._settle(message, "removed")
        elif isinstance(data, (MessageHeld, MessageReleased)):
            self._put(replace(message, state="held" if isinstance(data, MessageHeld) else "accepted"))
        elif isinstance(data, MessageEdited):
            self._put(replace(message, message=data.message, note=data.note or message.note, preparing=""))

    def _put(self, message: InboxMessage) -> None:
        self._waiting[message.id] = message
        self._snapshot = None

    def _settle(self, message: InboxMessage, state: State) -> None:
        """Move a message to its final state. Its content is dropped: it is in the history now, or was removed."""
        del self._waiting[message.id]
        self._settling[message.id] = replace(message, state=state, message=None, preparing="")
        self._snapshot = None


def ready(messages: Any, *, steers_only: bool = False) -> list[InboxMessage]:
    """Of messages in order, those that may be applied: up to the first one that is still in preparation."""
    found: list[InboxMessage] = []
    for message in messages:
        if message.state == "accepted" and (not steers_only or message.mode == "steer"):
            if message.preparing:
                break
            found.append(message)
    return found


class Inbox:
    """The waiting messages, in order. `remove(id)` and `edit(id, content)` change them, from any thread."""

    __slots__ = ("_log",)

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def __iter__(self) -> Iterator[InboxMessage]:
        return iter(self._log.view.inbox)

    def __len__(self) -> int:
        return len(self._log.view.inbox)

    def __getitem__(self, index: int) -> InboxMessage:
        return self._log.view.inbox[index]

    def __repr__(self) -> str:
        return f"<Inbox {list(self)}>"

    def find(self, message_id: str) -> InboxMessage | None:
        """The message with this id: waiting, applied or removed."""
        return self._log.view.find(message_id)

    def applied_in(self, turn_id: str) -> list[InboxMessage]:
        """The messages that a turn has applied. Searches all messages that were ever posted."""
        return self._log.view.applied_in(turn_id)

    def ready(self) -> list[InboxMessage]:
        """The messages that the next turn may begin with."""
        return ready(self._log.view.inbox)

    def held(self) -> list[InboxMessage]:
        """The messages that wait to be released."""
        return [message for message in self if message.state == "held"]

    def remove(self, message_id: str) -> bool:
        """Remove a message, if it is still waiting; True if this call did it."""

        def decide(tx: Any) -> bool:
            message = tx.inbox.find(message_id)
            if message is None or not message.is_waiting:
                return False
            tx.write("", MessageRemoved(message_id))
            return True

        return self._log.run(decide)

    def edit(self, message_id: str, content: Content) -> bool:
        """Change a message, if it is still waiting and not in preparation; True if this call did it."""
        new = to_message(content)

        def decide(tx: Any) -> bool:
            message = tx.inbox.find(message_id)
            if message is None or not message.is_waiting or message.preparing:
                return False
            tx.write("", MessageEdited(message_id, new))
            return True

        return self._log.run(decide)


class Receipt:
    """The current state of a message, or of a stop.

    `mode` is what the message became, and `note` says why if that differs from what was asked for.
    """

    __slots__ = ("_log", "_mode", "_note", "_stopped", "_turn", "error", "files", "id")

    def __init__(
        self,
        log: EventLog,
        message_id: str = "",
        mode: Mode | Literal["stop"] = "queue",
        note: str = "",
        *,
        stopped: bool = False,
        turn: Turn | None = None,
        files: RestoredFiles | None = None,
        error: StoreError | SessionClosed | None = None,
    ) -> None:
        self.id = message_id
        """The message's id; empty for a stop without a message."""
        self._log = log
        self._mode = mode
        self._note = note
        self._stopped = stopped
        self._turn = turn  # the turn to stop
        self.files = files
        """What `rollback(files=True)` has done to files; None for everything else."""
        self.error = error
        """Why a stop could not hold the queued messages, which may start a turn later; else None."""

    @property
    def message(self) -> InboxMessage | None:
        """The message in its current state; None for a stop without a message."""
        return self._log.view.find(self.id) if self.id else None

    @property
    def state(self) -> State:
        """One of "accepted", "applied", "held" and "removed"."""
        if not self.id:
            return "applied"
        message = self.message
        return message.state if message is not None else "accepted"

    @property
    def mode(self) -> Mode | Literal["stop"]:
        """What the message became."""
        message = self.message
        return message.mode if message is not None else self._mode

    @property
    def turn_id(self) -> str:
        """The turn in which the message was applied, or the turn to stop; empty if there is none.

        Empty as well if the stop came before that turn began, and so it never did: the log has no such turn.
        """
        message = self.message
        if message is not None:
            return message.turn_id
        return self._turn.id if self._turn is not None and not self._turn.never_began else ""

    @property
    def stopped(self) -> bool:
        """Whether this call or message stopped a running turn."""
        return self._stopped or self.id in self._log.stopped_by

    @property
    def note(self) -> str:
        """A remark for the user, or empty."""
        message = self.message
        return self._note if message is None else message.note

    def __repr__(self) -> str:
        stopped = ", stopped a turn" if self.stopped else ""
        return f"<Receipt {self.id or '(no message)'}: {self.state} as {self.mode}{stopped}>"

    def settled(self, timeout: float | None = None) -> bool:
        """Wait until the message is applied, held or removed, and the turn that this stopped has ended.

        Returns False if the timeout passed, or the session was closed, before that.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (event := self._next()) is not None:
            if not event.wait(None if end is None else max(0.0, end - time.monotonic())):
                return False
        return self._is_settled()

    async def settled_async(self) -> bool:
        """Wait as `settled()` does, without blocking the loop."""
        while (event := self._next()) is not None:
            await event.wait_async()
        return self._is_settled()

    def _is_settled(self) -> bool:
        return (self._turn is None or self._turn.ended.is_set) and self.state != "accepted"

    def _next(self) -> OneShotEvent | None:
        """What to wait for next; None if there is nothing left to wait for."""
        if self._turn is not None and not self._turn.ended.is_set:
            return self._turn.ended
        if self.state != "accepted" or self._log.is_closed:
            return None
        event = self._log.watch(self.id)
        return None if self.state != "accepted" or self._log.is_closed else event
