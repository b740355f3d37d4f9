"""Events of the inbox: what happens to a message until it is applied or removed."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from halter.models.types import UserMessage

Mode: TypeAlias = Literal["queue", "steer", "interrupt", "rollback"]


class MessageAccepted(Struct, frozen=True, gc=False, tag="message.accepted"):
    """A message is in the inbox, and durable."""

    id: str
    mode: Mode  # what it became, which need not be what was asked for
    message: UserMessage
    note: str = ""  # why it became that
    preparing: str = ""  # what must be done before it can be applied, such as "transcribing"; `message.edited` ends it


class MessageEdited(Struct, frozen=True, gc=False, tag="message.edited"):
    """A waiting message was changed, or its preparation has ended."""

    id: str
    message: UserMessage  # the whole new message
    note: str = ""  # what to tell the user about the change
    prepared: str = ""  # the preparation that ended, such as "transcribing"; once for each message that had one


class MessageApplied(Struct, frozen=True, gc=False, tag="message.applied"):
    """A message has left the inbox and is part of the conversation, in this turn."""

    id: str
    mode: Mode
    note: str = ""
    question: str = ""  # the question that it answered; then the tool that asked gets it, and it is no user message


class MessageHeld(Struct, frozen=True, gc=False, tag="message.held"):
    """A message waits until it is released, because a stop came after it was accepted."""

    id: str


class MessageReleased(Struct, frozen=True, gc=False, tag="message.released"):
    """A held message may be applied again."""

    id: str


class MessageRemoved(Struct, frozen=True, gc=False, tag="message.removed"):
    """A message was taken out of the inbox and is never applied."""

    id: str
