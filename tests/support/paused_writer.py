"""A store's writer that runs no commands for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from halter import Session
from halter.session.log import EventLog
from halter.stores.drain_claim import DrainClaim
from tests.support.background import Background
from tests.support.waiting import wait_until


class WriterPaused:
    """In this block no command of a session's store runs: they wait, in the order in which they were submitted."""

    def __init__(self, session: Session | EventLog) -> None:
        self._writer = (session._log if isinstance(session, Session) else session).writer

    def __enter__(self) -> Self:
        claim = DrainClaim()
        wait_until(lambda: self._writer.claim.set(claim))
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.claim.clear()
        self._writer.wake()

    def start(self, work: Callable[[], Any]) -> Background:
        """Start something in a thread, and wait until its command is in line."""
        before = self._writer.waiting
        background = Background(work)
        wait_until(lambda: self._writer.waiting > before)
        return background
