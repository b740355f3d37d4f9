"""The transcript of one voice message, piece by piece.

A stop phrase in it acts at once; the message gets its text when all of it is there.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING

from halter.cancel.token import CancellationToken
from halter.errors import LeaseLost, SessionClosed, StoreError
from halter.models.backoff import UNTIL_IT_WORKS
from halter.models.types import Text

if TYPE_CHECKING:
    from halter.models.types import Part
    from halter.session.session import Session
    from halter.views.stop_phrases import StopPhrases

__all__ = ["MessageTranscript"]

_log = logging.getLogger(__name__)


class MessageTranscript:
    """The parts of one message, with text for its recordings, and the stop phrase in it, if any."""

    def __init__(self, session: Session, message_id: str, expect_turn: str | None, phrases: StopPhrases) -> None:
        self._session = session
        self._id = message_id
        self._expect_turn = expect_turn
        self._phrases = phrases
        self._parts: list[Part] = []
        self._words: list[str] = []  # of the recording that is being transcribed
        self._failure = ""
        self._stop = ""  # the stop phrase that it said
        self._has_stopped = False

    def add(self, part: Part) -> None:
        """Add a part that is not a recording."""
        self._parts.append(part)

    async def add_text(self, words: str) -> None:
        """Add the next piece of text; stop the turn at once if it has a stop phrase."""
        self._words.append(words.strip())
        if not self._stop:
            self._stop = self._phrases.said_in(words)
            if self._stop:
                await self._stop_turn()

    def add_failure(self, why: str, *, is_rest: bool) -> None:
        """Add a note that a recording, or the rest of one, could not be transcribed."""
        self._failure = why = why.rstrip(".")
        subject = "The rest of this voice message" if is_rest else "A voice message that"
        self._words.append(f"[{subject} could not be transcribed: {why}.]")

    def end_recording(self) -> None:
        """End a recording: its text is one part of the message."""
        text = " ".join(each for each in self._words if each)
        self._words = []
        if text:
            self._parts.append(Text(text))

    async def _stop_turn(self) -> None:
        """Stop the turn, and hold the messages before this one."""
        message = self._session.inbox.find(self._id)
        if message is None or message.state != "accepted":
            return  # another stop came since: the running turn is newer
        turn = self._session.turn
        if self._expect_turn is not None and (turn is None or turn.id != self._expect_turn):
            return  # it was meant for a turn that has ended
        detail = f"voice message {self._id} said {self._stop!r}"
        receipt = await self._session.astop(detail=detail, said_in=self._id)
        self._has_stopped = receipt.stopped

    @property
    def _note(self) -> str:
        if self._stop:
            done = "the turn was stopped" if self._has_stopped else "nothing was running"
            return f"it said {self._stop!r}: {done}"
        return f"not transcribed: {self._failure}" if self._failure else ""

    async def store(self, end: CancellationToken) -> None:
        """Store the text of the message. If the store fails, try again until it works or *end* is cancelled."""
        texts = [part.text if isinstance(part, Text) else None for part in self._parts]
        is_stop_only = bool(self._stop) and all(text is not None and self._phrases.are_all(text) for text in texts)
        for retry in itertools.count():
            if end.is_cancelled:
                return
            try:
                await self._session.aprepared(self._id, list(self._parts), self._note, is_done=is_stop_only)
            except (SessionClosed, LeaseLost):
                return
            except StoreError:
                _log.warning("storing a transcript failed; trying again", extra={"session": self._session.id})
            else:
                return
            await CancellationToken.any_of(end, CancellationToken(timeout=UNTIL_IT_WORKS.delay(retry))).wait_async()
