"""The events of all loaded sessions, on their way from the stores' writer threads to the gateway's loop."""

from __future__ import annotations

import collections
import logging
from typing import TYPE_CHECKING

from halter.cancel.registration import call_in_loop

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from halter.events import Event
    from halter.gateway.sessions.live_session import LiveSession

__all__ = ["EventQueue"]

_log = logging.getLogger(__name__)


class EventQueue:
    """Calls *process* with each event, in the loop."""

    def __init__(self, process: Callable[[LiveSession, Event], None]) -> None:
        self._process = process
        self._waiting: collections.deque[tuple[LiveSession, list[Event]]] = collections.deque()
        self._is_scheduled = False

    def add(self, live: LiveSession, events: list[Event], loop: asyncio.AbstractEventLoop) -> None:
        """Add events, in any thread; they are processed soon, those of all sessions together.

        Not in the next iteration of the loop, which sends them to clients, but in the one after: metrics can wait.
        """
        self._waiting.append((live, events))
        if not self._is_scheduled:  # read after the append: a scheduled run finds it
            self._is_scheduled = True
            call_in_loop(loop, lambda: loop.call_soon(self.process_all))

    def process_all(self) -> None:
        """Process what has been added. A boundary: an error with one event is logged, and the others are processed."""
        self._is_scheduled = False
        while self._waiting:
            live, events = self._waiting.popleft()
            for event in events:
                try:
                    self._process(live, event)
                except Exception:  # noqa: BLE001
                    _log.exception("handling an event failed", extra={"session": live.session.id})
