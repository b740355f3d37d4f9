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

__all__ = ["CLOSE_TIMEOUT", "LiveSession", "agent_of", "owner_of", "title_of"]

_log = logging.getLogger(__name__)
_STABLE_AFTER: Final = 30.0  # seconds of service after which the back-off starts anew
CLOSE_TIMEOUT: Final = 5.0  # seconds
_LEASE_LOST: Final = "lease_lost"  # the reason with which a store ends a session that others can take
_MAX_TITLE: Final = 60  # characters of the first message


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

    def start(
        self,
        kinds: Collection[type[EventData]],
        on_events: Callable[[list[Event]], None],
        on_lease_lost: Callable[[LiveSession], None],
    ) -> None:
        """Start serving. *on_events* is called with events of these kinds, in any thread."""
        self._listener = self.session.subscribe(only=kinds, on_events=on_events)
        self._serving = asyncio.create_task(self._serve(on_lease_lost))

    async def _serve(self, on_lease_lost: Callable[[LiveSession], None]) -> None:
        """Serve the session until it is closed. A boundary: if the store fails, that is logged and tried again."""
        failures = 0
        while not self.session.token.is_cancelled:
            began = time.monotonic()
            try:
                await self.session.serve()
            except SessionClosed:
                return
            except LeaseLost:
                on_lease_lost(self)
                return
            except Exception:  # noqa: BLE001
                _log.exception("starting a turn failed; trying again", extra={"session": self.session.id})
            failures = 0 if time.monotonic() - began > _STABLE_AFTER else failures + 1
            pause = CancellationToken(timeout=UNTIL_IT_WORKS.delay(failures))
            await CancellationToken.any_of(self.session.token, pause).wait_async()
        if self.session.token.reason == _LEASE_LOST:
            on_lease_lost(self)

    def update(self, event: Event) -> None:
        """Update what lists show of the session."""
        self.updated_at = event.time
        if not self.title and isinstance(event.data, (MessageAccepted, MessageEdited)):
            self.title = shorten(event.data.message.text, _MAX_TITLE)

    async def close(self, timeout: float = CLOSE_TIMEOUT) -> None:  # noqa: ASYNC109  (as the session's own)
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
    return shorten(texts[0], _MAX_TITLE) if texts else ""
