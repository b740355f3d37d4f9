"""What was heard of one voice message, piece by piece, and what becomes of it.

A stop that it says is done at once; its words are told when all of them are there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.token import CancellationToken
from halter.errors import LeaseLost, SessionClosed, StoreError
from halter.models.model import Text

if TYPE_CHECKING:
    from halter.inbox import Letter
    from halter.models.model import Part
    from halter.session import Session
    from halter.voice.phrases import StopPhrases

__all__ = ["Heard"]

_FIRST_PAUSE: Final = 0.5  # seconds after which a store that has failed is tried again; longer each time
_LONGEST_PAUSE: Final = 30.0
_log = logging.getLogger(__name__)


class Heard:
    """What is known of one message: its parts, with words for its recordings, and whether it says stop."""

    def __init__(self, session: Session, letter: Letter, expect_turn: str | None, phrases: StopPhrases) -> None:
        self._session = session
        self._letter = letter
        self._expect_turn = expect_turn
        self._phrases = phrases
        self._parts: list[Part] = []
        self._words: list[str] = []  # of the recording that is being heard
        self._missed = ""
        self._stop = ""  # what it said that means to stop

    def add(self, part: Part) -> None:
        """Add a part that is no recording."""
        self._parts.append(part)

    def take(self, words: str) -> None:
        """Add what was said next, and stop the turn at once if that is to stop it."""
        self._words.append(words.strip())
        if not self._stop:
            self._stop = self._phrases.said_in(words)
            if self._stop:
                self._stop_turn()

    def miss(self, why: str, *, is_rest: bool) -> None:
        """Say that a recording, or the rest of one, has no words."""
        self._missed = why = why.rstrip(".")
        what = "The rest of this voice message" if is_rest else "A voice message that"
        self._words.append(f"[{what} could not be transcribed: {why}.]")

    def end_recording(self) -> None:
        """Take what was heard for one part of the message."""
        text = " ".join(each for each in self._words if each)
        self._words = []
        if text:
            self._parts.append(Text(text))

    def _stop_turn(self) -> None:
        """Stop the turn that is meant, and hold what came before."""
        if self._letter.state != "accepted":
            return  # a stop has come since. What runs now began later, and is not meant
        turn = self._session.turn
        if self._expect_turn is not None and (turn is None or turn.id != self._expect_turn):
            return  # it was for one that is over
        detail = f"voice message {self._letter.id} said {self._stop!r}"
        self._session.stop(detail=detail, said_in=self._letter.id)

    @property
    def _note(self) -> str:
        if self._stop:
            done = "the turn was stopped" if self._letter.stopped else "nothing was running that it could stop"
            return f"it said {self._stop!r}: {done}"
        return f"it could not be transcribed: {self._missed}" if self._missed else ""

    async def tell(self, end: CancellationToken) -> None:
        """Give the message its words. A store that fails is tried again until it works or *end*."""
        texts = [part.text if isinstance(part, Text) else None for part in self._parts]
        is_order = bool(self._stop) and all(text is not None and self._phrases.are_all(text) for text in texts)
        pause = _FIRST_PAUSE
        while not end.is_cancelled:
            try:
                self._session.prepared(self._letter.id, list(self._parts), self._note, is_done=is_order)
            except (SessionClosed, LeaseLost):
                return
            except StoreError:
                _log.warning("a transcript could not be written down", extra={"session": self._session.id})
            else:
                return
            await CancellationToken.any_of(end, CancellationToken(timeout=pause)).wait_async()
            pause = min(2 * pause, _LONGEST_PAUSE)
