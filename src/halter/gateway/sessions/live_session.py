"""A loaded session: the task that serves it, its leases, and what a list shows of it."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from halter.cancel.token import CancellationToken
from halter.errors import LeaseLost, SessionClosed
from halter.events import Event, MessageAccepted, MessageEdited, SessionCreated
from halter.gateway.sessions.limits import GatewayLimits, per_minute
from halter.models.backoff import UNTIL_IT_WORKS
from halter.views.text import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from halter.events import EventData
    from halter.session.session import Session
    from halter.session.subscription import Subscription

__all__ = ["CLOSING", "LiveSession", "agent_of", "owner_of", "title_of"]

_log = logging.getLogger(__name__)
_LONG: Final = 30.0  # seconds of service after which a failure is a new one
CLOSING: Final = 5.0  # seconds
_LEASE_LOST: Final = "lease_lost"  # the reason with which a store ends a session that others can take
_WORDS: Final = 60  # of the first message, in characters


class LiveSession:
    """A loaded session."""

    __slots__ = (
        "_listener",
        "_serving",
        "accepting",
        "agent",
        "created_at",
        "idle_since",
        "key",
        "leases",
        "messages",
        "owner",
        "session",
        "timer",
        "title",
        "updated_at",
    )

    def __init__(self, session: Session, agent: str, first: list[Event], limits: GatewayLimits) -> None:
        self.session = session
        self.agent = agent  # its name in the gateway
        self.owner = owner_of(first)
        self.leases = 0
        self.accepting = 0  # messages that are being written
        self.key = ""  # whose message started the running turn
        self.messages = per_minute(limits.session_messages)
        self.created_at = first[0].time
        self.updated_at = self.created_at
        self.title = session.chosen.title or title_of(first)
        self.timer: asyncio.TimerHandle | None = None
        self.idle_since = 0.0
        self._listener: Subscription | None = None
        self._serving: asyncio.Task[None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a turn is running or about to start, or a recording is being transcribed."""
        inbox = self.session.inbox
        if self.accepting or self.session.is_running or inbox.ready():
            return True
        return any(message.preparing for message in inbox)

    def begin(
        self,
        kinds: Collection[type[EventData]],
        hear: Callable[[list[Event]], None],
        drop: Callable[[LiveSession], None],
    ) -> None:
        """Start to serve. *hear* gets those kinds of events, in any thread; *drop* is called if the lease is lost."""
        self._listener = self.session.subscribe(only=kinds, on_events=hear)
        self._serving = asyncio.create_task(self._serve(drop))

    async def _serve(self, drop: Callable[[LiveSession], None]) -> None:
        """Serve the session until it is closed. A boundary: if the store fails, that is logged and tried again."""
        failures = 0
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
                _log.exception("starting a turn failed; trying again", extra={"session": self.session.id})
            failures = 0 if time.monotonic() - began > _LONG else failures + 1
            pause = CancellationToken(timeout=UNTIL_IT_WORKS.delay(failures))
            await CancellationToken.any_of(self.session.token, pause).wait_async()
        if self.session.token.reason == _LEASE_LOST:
            drop(self)

    def see(self, event: Event) -> None:
        """Update what a list shows of the session."""
        self.updated_at = event.time
        if not self.title and isinstance(event.data, (MessageAccepted, MessageEdited)):
            self.title = shorten(event.data.message.text, _WORDS)

    async def close(self, timeout: float = CLOSING) -> None:  # noqa: ASYNC109  (as the session's own)
        """Stop the turn and close the session. Bounded."""
        if self.timer is not None:
            self.timer.cancel()
        await self.session.aclose(timeout)
        if self._serving is not None:
            await asyncio.wait({self._serving}, timeout=1.0)
        if self._listener is not None:
            self._listener.close()


def agent_of(first: list[Event]) -> str:
    """The name of the agent of a session, from its first events; empty if it is not known."""
    data = first[0].data if first else None
    return data.agent if isinstance(data, SessionCreated) else ""


def owner_of(first: list[Event]) -> str:
    """The id of the key that created a session, from its first events; empty if it is not known."""
    data = first[0].data if first else None
    return data.owner if isinstance(data, SessionCreated) else ""


def title_of(first: list[Event]) -> str:
    """The title of a session, from its first events."""
    texts = [event.data.message.text for event in first if isinstance(event.data, MessageAccepted)]
    return shorten(texts[0], _WORDS) if texts else ""
