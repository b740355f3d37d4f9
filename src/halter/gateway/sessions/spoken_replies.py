"""Spoken replies: the last answer of a session as audio. Off by default."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from halter.cancel.token import NEVER, CancellationToken, Cancelled
from halter.gateway.http.errors import Problem
from halter.voice.speech import speak_reply

if TYPE_CHECKING:
    from halter.models.types import Audio
    from halter.session.session import Session

__all__ = ["SpokenReplies"]

_MAX_PARALLEL: Final = 2  # processes that synthesize speech
_TIMEOUT: Final = 30.0  # seconds


class SpokenReplies:
    """Makes spoken replies, a few at the same time."""

    def __init__(self, *, is_on: bool) -> None:
        self.is_on = is_on
        self._free = asyncio.Semaphore(_MAX_PARALLEL)

    async def speak(self, session: Session, until: CancellationToken = NEVER) -> Audio:
        """The last answer as audio. Raises `Problem` if there is none. Ends with the session, and in bounded time.

        Raises `Cancelled` if *until* is cancelled.
        """
        if not self.is_on:
            raise Problem(404, "spoken replies are off: see the setting spoken_replies", kind="off")
        turn = session.turn
        if turn is None or session.is_running:
            raise Problem(409, "there is no answer yet", kind="no-answer")
        token = CancellationToken.any_of(session.token, until, CancellationToken(timeout=_TIMEOUT))
        try:
            async with token.scope(), self._free:
                sound = await speak_reply(turn.text, token)
        except Cancelled as stop:
            until.raise_if_cancelled()
            raise Problem(503, f"speech was not ready in time ({stop.reason})", kind="busy", retry_after=5.0) from None
        except ImportError as error:
            raise Problem(404, str(error), kind="off") from error
        if sound is None:
            raise Problem(409, "the answer has no text to speak", kind="no-answer")
        return sound
