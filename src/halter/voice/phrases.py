"""Words that mean to stop, however they are said or written.

Compared are words: neither case nor punctuation matters, and saying it twice is saying it. In a text that has more in
it, such a phrase counts where it is a sentence of its own: "Stop. Take the other file." says stop, "do not stop" does
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
_SENTENCES: Final = re.compile(r"[.!?…。！？;\n]+")  # noqa: RUF001  (sentences end so elsewhere)
_WORDS: Final = re.compile(r"\w+(?:'\w+)*")


class StopPhrases:
    """The phrases that are a stop."""

    def __init__(self, phrases: Iterable[str]) -> None:
        known = {words for phrase in phrases if (words := _words(phrase))}
        longest_first = sorted(known, key=len, reverse=True)
        one = "|".join(re.escape(words) for words in longest_first)
        self._pattern = re.compile(rf"(?:(?:{one})(?: |$))+") if known else None

    def are_all(self, text: str) -> bool:
        """Whether nothing else is said in it: such a text is no message."""
        return self._matches(_words(text))

    def said_in(self, text: str) -> str:
        """The first sentence that is such a phrase, as it is written there; empty if none is."""
        return next((sentence.strip() for sentence in _SENTENCES.split(text) if self._matches(_words(sentence))), "")

    def _matches(self, words: str) -> bool:
        return self._pattern is not None and self._pattern.fullmatch(words) is not None


def _words(text: str) -> str:
    """The words of a text, as they are compared."""
    plain = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")  # noqa: RUF001  (an apostrophe)
    return " ".join(_WORDS.findall(plain))
