"""The interface between the gateway and a chat platform: a new platform is one class in one file.

An adapter passes what people do in its chats to an `Inbound`: an `Incoming` for each text, picture, voice message or
command, a `ButtonPress` for each button. When `inbound.take()` returns, the message is stored; only then may the
adapter acknowledge it to the platform's servers. Several may be taken at once: messages of one chat are kept in order.

An adapter shows texts and nothing else: `send()` makes a message and `edit()` changes one. What to show of a turn,
when, in how many pieces and how often is decided by the gateway. The platform's limits are three numbers, and
`RateLimited`. See docs/guides/platforms.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from msgspec import Struct

from halter.models.types import Audio, Part

if TYPE_CHECKING:
    from halter.events import Mode

__all__ = [
    "AttachmentUnavailable",
    "Button",
    "ButtonPress",
    "ButtonReply",
    "ChatAdapter",
    "Fetch",
    "Inbound",
    "Incoming",
    "PlatformUnreachable",
    "RateLimited",
    "SendRejected",
]

Fetch: TypeAlias = Callable[[], Awaitable[list[Part]]]
"""Downloads the pictures and recordings attached to a message. Raises `AttachmentUnavailable` if it cannot."""


class RateLimited(Exception):
    """The platform's servers accept nothing more for so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"rate limited for {seconds:g} s")
        self.seconds = seconds


class PlatformUnreachable(Exception):
    """The platform's servers cannot be reached now. The gateway tries again."""


class SendRejected(Exception):
    """The platform's servers will never accept this: the chat or the message is gone."""


class AttachmentUnavailable(Exception):
    """An attachment cannot be downloaded. The text says why, to the person who sent it."""


class Incoming(Struct, frozen=True, kw_only=True):
    """A message or command that a person sent in a chat."""

    id: str
    """The same each time the same message is delivered. Letters, digits and any of `._~:@-`."""
    chat_id: str
    """The chat, channel or thread. Each is one session. Letters, digits and any of `._:@-`."""
    order: int
    """Increases from one message of the chat to the next."""
    sender: str
    """The sender, as in the platform's `users`."""
    command: str = ""
    """The word after the slash: "stop", "steer", "queue", "new", "deny", "why"; empty for a message."""
    text: str = ""
    """The text of the message, or what follows the command."""
    fetch: Fetch | None = None
    """Downloads the attachments. Called only if the sender may use the bot."""
    unsupported: str = ""
    """What kind of content this is, if it is none that can be passed on: "a video"."""
    redelivered: bool = False
    """Whether an earlier gateway process may have received it already."""


class ButtonPress(Struct, frozen=True, kw_only=True):
    """A press of a button."""

    chat_id: str
    sender: str
    data: str


class ButtonReply(Struct, frozen=True):
    """The reply to a button press: a text, if any, and whether the buttons are to be removed."""

    text: str = ""
    is_expired: bool = False


class Button(Struct, frozen=True):
    """A button below a message: its label, and the `data` of its `ButtonPress`, at most 64 bytes."""

    label: str
    data: str


class Inbound(Protocol):
    """Where an adapter delivers messages. The gateway makes one for each adapter."""

    async def take(self, incoming: Incoming) -> None:
        """Accept a message. It is stored when this returns; if the store fails, this waits and tries again.

        If it is cancelled meanwhile, the message may not have been accepted: deliver it again to the next gateway.
        """
        ...

    async def press(self, pressed: ButtonPress) -> ButtonReply:
        """Handle a button press."""
        ...


class ChatAdapter(Protocol):
    """A chat platform. Its methods are called in the gateway's event loop."""

    name: str
    """Lower-case letters. The sessions of its chats are named after it: "telegram-1234"."""
    users: Collection[str]
    """Who may talk to the agent. Nobody else may."""
    busy: Mode
    """The delivery mode of a message that comes while a turn runs."""
    stop_phrases: Collection[str]
    """Texts that mean the same as the command "stop"."""
    max_length: int
    """The maximum length of a message, in UTF-16 units."""
    edit_interval: float
    """The minimum number of seconds between two edits in one chat."""
    max_rate: int
    """The maximum number of messages and edits per second, in all chats together."""

    async def run(self, inbound: Inbound) -> None:
        """Receive until cancelled, then acknowledge what was received if that is quick. Reconnects by itself."""
        ...

    async def send(self, chat_id: str, text: str, buttons: Sequence[Button], *, monospace: bool) -> str:
        """Send a message; return its id.

        Raises `RateLimited`, `PlatformUnreachable` or `SendRejected`, as do the other methods.
        """
        ...

    async def edit(self, chat_id: str, message: str, text: str, buttons: Sequence[Button]) -> None:
        """Change the text and the buttons of a message."""
        ...

    async def say(self, chat_id: str, sound: Audio) -> None:
        """Send a voice message (ogg/opus), if the platform has them. Used if spoken replies are on."""
        ...

    async def show_busy(self, chat_id: str) -> None:
        """Show "typing" for a moment, if the platform can."""
        ...

    async def close(self) -> None:
        """Close all connections. Bounded."""
        ...
