"""The chats of one platform, and which sessions belong to them.

A chat has one session, "telegram-1234", and each `/new` starts another, "telegram-1234~567", named after the order of
the command. So the session of a message follows from its chat and its order alone, also if it is delivered again after
a restart.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from halter.gateway.chat.outgoing import OutgoingQueue
from halter.gateway.chat.send_rate import SendRate, shared_bucket

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halter.gateway.chat.adapter import Button, ChatAdapter
    from halter.gateway.chat.outgoing import OutgoingMessage

__all__ = ["Conversation", "Conversations"]

_MAX_CHATS: Final = 10_000  # known at the same time; anybody can write to a bot
_MAX_ONCE: Final = 1_000  # keys of `send_once()` that are remembered


class Conversation:
    """One chat."""

    def __init__(self, chat_id: str, prefix: str, outgoing: OutgoingQueue, new_orders: list[int]) -> None:
        self.chat_id = chat_id
        self.outgoing = outgoing
        self.accepting = asyncio.Lock()  # asyncio's locks are fair: messages are accepted in order
        self.last_stop = -1  # the order of the last stop
        self.new_orders = new_orders  # the order of each /new, sorted
        self._prefix = prefix
        self._held: tuple[str, OutgoingMessage] | None = None  # the last message about held messages

    def session(self, order: int) -> str:
        """The session that a message of this order belongs to."""
        at = bisect.bisect_right(self.new_orders, order)
        return self.session_of_new(self.new_orders[at - 1]) if at else f"{self._prefix}{self.chat_id}"

    def session_of_new(self, order: int) -> str:
        """The session that a /new of this order starts."""
        return f"{self._prefix}{self.chat_id}~{order}"

    def has_new(self, order: int) -> bool:
        """Whether the /new of this order was done."""
        return order in self.new_orders

    @property
    def is_idle(self) -> bool:
        """Whether it can be dropped now and recreated when it is needed."""
        return self._held is None and self.outgoing.is_idle and not self.accepting.locked()

    def show_held(self, text: str, button: Button) -> None:
        """Say that messages are held, with a button to release them."""
        self.end_held()
        self._held = (text, self.outgoing.add(lambda: text, [button]))

    def end_held(self, more: str = "") -> None:
        """Remove that button."""
        if self._held is not None:
            text, message = self._held
            message.finish(f"{text} {more}".strip())
            self._held = None


class Conversations:
    """All chats of a platform."""

    def __init__(self, platform: ChatAdapter) -> None:
        self._platform = platform
        self._prefix = f"{platform.name}-"
        self._shared = shared_bucket(platform)
        self._chats: dict[str, Conversation] = {}
        self._new_orders: dict[str, list[int]] = {}  # by chat
        self._sent_once: OrderedDict[str, None] = OrderedDict()  # keys of `send_once()`

    def __getitem__(self, chat_id: str) -> Conversation:
        chat = self._chats.get(chat_id)
        if chat is None:
            if len(self._chats) >= _MAX_CHATS:
                self._chats = {each.chat_id: each for each in self if not each.is_idle}
            outgoing = OutgoingQueue(self._platform, chat_id, SendRate(self._platform.edit_interval, self._shared))
            chat = Conversation(chat_id, self._prefix, outgoing, self._new_orders.get(chat_id, []))
            self._chats[chat_id] = chat
        return chat

    def __iter__(self) -> Iterator[Conversation]:
        return iter(list(self._chats.values()))

    def has(self, session_id: str) -> bool:
        """Whether a session belongs to a chat of this platform. Child sessions are shown with their parent."""
        return session_id.startswith(self._prefix) and "/" not in session_id

    def of(self, session_id: str) -> Conversation:
        """The chat of a session."""
        return self[session_id.removeprefix(self._prefix).partition("~")[0]]

    def register(self, session_id: str) -> None:
        """Register a session of this platform, which a /new may have started."""
        chat_id, _, order = session_id.removeprefix(self._prefix).partition("~")
        if order.isdecimal():
            orders = self._new_orders.setdefault(chat_id, [])
            if int(order) not in orders:
                bisect.insort(orders, int(order))
            if chat_id in self._chats:
                self._chats[chat_id].new_orders = orders

    def send_once(self, conversation: Conversation, key: str, text: str) -> None:
        """Send a message, unless one with this key was sent before."""
        if key not in self._sent_once:
            self._sent_once[key] = None
            while len(self._sent_once) > _MAX_ONCE:
                self._sent_once.popitem(last=False)
            conversation.outgoing.say(text)
