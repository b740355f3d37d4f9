"""A session that is awake: its actor, those who need it, and what a list shows of it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from halter.cancel.token import CancellationToken
from halter.errors import LeaseLost, SessionClosed
from halter.events import Event, MessageAccepted, MessageEdited
from halter.gateway.limits import Allowance, Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from halter.events import EventData
    from halter.listener import Listener
    from halter.session import Session

__all__ = ["CLOSING", "Room", "title_of"]

_log = logging.getLogger(__name__)
_FIRST_PAUSE: Final = 0.5  # seconds after which a store that has failed is tried again; longer each time
_LONGEST_PAUSE: Final = 30.0
CLOSING: Final = 5.0  # seconds
_WORDS: Final = 60  # of the first message, in characters


class Room:
    """A session that is awake."""

    __slots__ = (
        "_acting",
        "_listener",
        "agent",
        "created_at",
        "key",
        "messages",
        "rested_at",
        "session",
        "timer",
        "title",
        "updated_at",
        "visitors",
    )

    def __init__(self, session: Session, agent: str, first: list[Event], limits: Limits) -> None:
        self.session = session
        self.agent = agent  # the name under which the gateway knows it
        self.visitors = 0
        self.key = ""  # whose message has set off the running turn
        self.messages = Allowance(limits.session_messages)
        self.created_at = first[0].time
        self.updated_at = self.created_at
        self.title = title_of(first)
        self.timer: asyncio.TimerHandle | None = None
        self.rested_at = 0.0
        self._listener: Listener | None = None
        self._acting: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs, or is about to: when a recording has been transcribed, at the latest."""
        inbox = self.session.inbox
        return self.session.is_running or bool(inbox.ready()) or any(letter.preparing for letter in inbox)

    def begin(
        self, kinds: Collection[type[EventData]], hear: Callable[[list[Event]], None], drop: Callable[[Room], None]
    ) -> None:
        """Let the actor begin; *hear* is told of those kinds of events, and *drop* if the session is not ours any more.

        What is heard is heard while it is written, perhaps in another thread.
        """
        self._listener = self.session.listen(only=kinds)
        self._listener.hear = hear
        self._acting = asyncio.create_task(self._act(drop))

    async def _act(self, drop: Callable[[Room], None]) -> None:
        """Serve the session to its end. A boundary: a store that fails is tried again, and what waits is not lost."""
        pause = _FIRST_PAUSE
        while not self.session.token.is_cancelled:
            began = time.monotonic()
            try:
                await self.session.serve()
            except SessionClosed:
                return
            except LeaseLost:
                drop(self)
                return
            except Exception:  # noqa: BLE001
                _log.exception("a turn could not begin; it is tried again", extra={"session": self.session.id})
            pause = _FIRST_PAUSE if time.monotonic() - began > _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)
            await CancellationToken.any_of(self.session.token, CancellationToken(timeout=pause)).wait_async()

    def see(self, event: Event) -> None:
        """Keep what is shown of the session in a list."""
        self.updated_at = event.time
        if not self.title and isinstance(event.data, (MessageAccepted, MessageEdited)):
            self.title = _shorten(event.data.message.text)

    async def close(self, timeout: float = CLOSING) -> None:  # noqa: ASYNC109  (as the session's own)
        """Stop what runs, and let go of the session. Bounded."""
        if self.timer is not None:
            self.timer.cancel()
        await self.session.aclose(timeout)
        if self._acting is not None:
            await asyncio.wait({self._acting}, timeout=1.0)
        if self._listener is not None:
            self._listener.close()


def title_of(first: list[Event]) -> str:
    """What a session is called, by its first events."""
    texts = [event.data.message.text for event in first if isinstance(event.data, MessageAccepted)]
    return _shorten(texts[0]) if texts else ""


def _shorten(text: str) -> str:
    words = " ".join(text[: 4 * _WORDS].split())
    return words if len(words) <= _WORDS else f"{words[: _WORDS - 1]}…"
