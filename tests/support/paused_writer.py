"""A store's writer that runs no commands for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from halter import Session
from halter.stores.writer import _Claim
from tests.support.background import Background
from tests.support.waiting import wait_until


class WriterPaused:
    """In this block no command of a session's store runs: they wait, in the order in which they were given."""

    def __init__(self, session: Session) -> None:
        self._writer = session._log.writer

    def __enter__(self) -> Self:
        claim = _Claim()
        wait_until(lambda: self._writer._claim.setdefault("", claim) is claim)
        return self

    def __exit__(self, *_: object) -> None:
        self._writer._claim.clear()
        self._writer.wake()

    def start(self, work: Callable[[], Any]) -> Background:
        """Start something in a thread, and wait until its command is in line."""
        before = len(self._writer._commands)
        background = Background(work)
        wait_until(lambda: len(self._writer._commands) > before)
        return background
