"""The seam between the gateway and a chat platform: all that a new one has to write is one class, in one file.

A platform gives what people do in its chats, to a `Door`: things that are `Incoming` (texts, pictures, voice messages,
commands) and buttons that were `Pressed`. When `door.take()` returns, the thing is safe, and only then may the platform
tell its servers that it was received. One may be taken while others are: what belongs in an order is kept in it.

A platform gets texts to be shown, and no more than that: `send()` makes a message and `edit()` changes one. What to
show of a turn, when, in which pieces, and how often is the gateway's to know; what the platform's servers allow, it
says in three numbers, and by raising `TooFast`. See docs/platforms.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from halter.models.model import Audio, Part

if TYPE_CHECKING:
    from halter.events import Mode

__all__ = [
    "Answer",
    "Button",
    "Door",
    "Fetch",
    "Incoming",
    "Platform",
    "Pressed",
    "Refused",
    "TooFast",
    "Unfetched",
    "Unreachable",
]

Fetch: TypeAlias = Callable[[], Awaitable[list[Part]]]
"""Gets what is attached to a message: pictures and recordings. Raises `Unfetched` if there is no hope of it."""


class TooFast(Exception):
    """The platform's servers want nothing more for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too fast by {seconds:g} s")
        self.seconds = seconds


class Unreachable(Exception):
    """The platform's servers can not be reached just now: it is tried again."""


class Refused(Exception):
    """The platform's servers will never take this: the chat is gone, or the message is."""


class Unfetched(Exception):
    """What was attached can not be had. The text says why, to the person who has sent it."""


class Incoming(Struct, frozen=True, kw_only=True):
    """Something that a person has said in a chat."""

    id: str
    """The same whenever the same thing is delivered. Letters, digits and any of `._~:@-`."""
    place: str
    """Where: a chat, a channel, a thread. One place is one session. Letters, digits and any of `._:@-`."""
    order: int
    """Grows from one to the next in this place."""
    sender: str
    """Who: by the number or name that is in the platform's `users`."""
    command: str = ""
    """The word behind the slash: "stop", "steer", "queue", "new", "why", ...; empty for a message."""
    text: str = ""
    """What was written, or what stands behind the command."""
    fetch: Fetch | None = None
    """How to get what is attached. It is asked only if the sender may speak here."""
    unknown: str = ""
    """What kind of thing was sent, in words, if it is none that can be passed on: "a video"."""
    again: bool = False
    """Whether it may have been delivered before, to a gateway that has ended since."""


class Pressed(Struct, frozen=True, kw_only=True):
    """A button that a person has pressed."""

    place: str
    sender: str
    data: str


class Answer(Struct, frozen=True):
    """What there is to say to who has pressed a button, if anything; and whether that button has no use any more."""

    words: str = ""
    is_over: bool = False


class Button(Struct, frozen=True):
    """What can be pressed below a message: what it says, and the `data` of its `Pressed`: at most 64 bytes."""

    label: str
    data: str


class Door(Protocol):
    """What a platform gives things to. Made by the gateway, one for each platform."""

    async def take(self, incoming: Incoming) -> None:
        """Take what was said. It is safe when this returns; as long as a store can not take it, this waits.

        If it is cancelled meanwhile, it may not have been accepted: give it again, to the next gateway.
        """
        ...

    async def press(self, pressed: Pressed) -> Answer:
        """Take what was pressed."""
        ...


class Platform(Protocol):
    """A chat platform. Its methods are called in the gateway's event loop."""

    name: str
    """Of lower-case letters: sessions are called by it, and by the place: "telegram-1234"."""
    users: Collection[str]
    """Who may speak to the agent. Nobody else may."""
    busy: Mode
    """What becomes of a message that comes while a turn runs."""
    stop_phrases: Collection[str]
    """Texts that mean the same as the command "stop"."""
    longest: int
    """The longest text of one message, in UTF-16 units."""
    every: float
    """Seconds between two changes in one place."""
    a_second: int
    """The most messages and changes in all places together, in one second."""

    async def run(self, door: Door) -> None:
        """Receive, until cancelled; then tell the servers what was received, if that is quick. Reconnects by itself."""
        ...

    async def send(self, place: str, text: str, buttons: Sequence[Button], *, fixed: bool) -> str:
        """Make a message, and give its name. *fixed*: in letters of one width.

        Raises `TooFast`, `Unreachable` or `Refused`; and so do the others.
        """
        ...

    async def edit(self, place: str, message: str, text: str, buttons: Sequence[Button]) -> None:
        """Change a message to this text and these buttons."""
        ...

    async def say(self, place: str, sound: Audio) -> None:
        """Send a voice message (ogg/opus), if the platform has a way to: where spoken replies are wanted."""
        ...

    async def show_busy(self, place: str) -> None:
        """Show for a moment that somebody is at work, if the platform has a way to."""
        ...

    async def close(self) -> None:
        """Let go of all connections. Bounded."""
        ...
