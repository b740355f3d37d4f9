"""Spoken replies: the last answer of a session, as sound. Off unless the settings want it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from halter.cancel.token import NEVER, CancellationToken, Cancelled
from halter.gateway.problems import Problem
from halter.voice.speaking import speak_reply

if TYPE_CHECKING:
    from halter.models.model import Audio
    from halter.session import Session

__all__ = ["Speech"]

_AT_ONCE: Final = 2  # processes that speak
_LONGEST: Final = 30.0


class Speech:
    """Says answers, a few at the same time."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def say(self, session: Session, until: CancellationToken = NEVER) -> Audio:
        """Say the last answer. Raises `Problem` if there is none. It ends with the session, and in bounded time.

        If *until* is cancelled, nobody wants it any more: raises `Cancelled`.
        """
        if not self.is_on:
            raise Problem(404, "answers are not said here: the setting spoken_replies is off", kind="off")
        turn = session.turn
        if turn is None or session.is_running:
            raise Problem(409, "there is no answer yet that could be said", kind="no-answer")
        token = CancellationToken.any_of(session.token, until, CancellationToken(timeout=_LONGEST))
        try:
            async with token.scope(), self._free:
                sound = await speak_reply(turn.text, token)
        except Cancelled as stop:
            until.raise_if_cancelled()
            raise Problem(503, f"it could not be said in time ({stop.reason})", kind="busy", retry_after=5.0) from None
        except ImportError as error:
            raise Problem(404, str(error), kind="off") from error
        if sound is None:
            raise Problem(409, "there is nothing in the answer that could be said", kind="no-answer")
        return sound
