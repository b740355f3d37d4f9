"""Stop phrases: texts such as "stop" that stop the turn instead of being sent to the model.

One meaning for typed and spoken text: words are compared, without case and punctuation, and repeating a phrase is the
same as saying it once. A typed message that consists of stop phrases only (`are_all()`) is a stop. In a recording a
phrase counts where it is a sentence of its own (`said_in()`): "Stop. Take the other file." stops, "do not stop" does
not.
"""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["STOP_PHRASES", "StopPhrases"]

STOP_PHRASES: Final = ("stop", "halt", "cancel", "never mind")
_SENTENCES: Final = re.compile(r"[.!?…。！？;\n]+")  # noqa: RUF001  (sentence ends of other scripts)
_WORDS: Final = re.compile(r"\w+(?:'\w+)*")


class StopPhrases:
    """A set of stop phrases."""

    def __init__(self, phrases: Iterable[str]) -> None:
        known = {words for phrase in phrases if (words := _words(phrase))}
        longest_first = sorted(known, key=len, reverse=True)
        one = "|".join(re.escape(words) for words in longest_first)
        self._pattern = re.compile(rf"(?:(?:{one})(?: |$))+") if known else None

    def are_all(self, text: str) -> bool:
        """Whether a text consists of stop phrases only."""
        return self._matches(_words(text))

    def said_in(self, text: str) -> str:
        """The first sentence of a text that is a stop phrase, as written there; else empty."""
        return next((sentence.strip() for sentence in _SENTENCES.split(text) if self._matches(_words(sentence))), "")

    def _matches(self, words: str) -> bool:
        return self._pattern is not None and self._pattern.fullmatch(words) is not None


def _words(text: str) -> str:
    """The words of a text in the form in which they are compared."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")  # noqa: RUF001  (an apostrophe)
    return " ".join(_WORDS.findall(plain))
