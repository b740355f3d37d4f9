"""Pieces of an answer that wait for the store's writer.

While the writer is busy, further pieces are added to those that wait; many of them are written as one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from halter.models.types import ReasoningDelta, TextDelta
    from halter.session.log import Transaction

__all__ = ["TextPieces"]

_MAX_SINGLE: Final = 64  # more pieces than this are joined
_MAX_JOINED: Final = 4_096  # characters of a joined piece


class TextPieces:
    """Pieces of one kind, in their order. The turn's task appends to `texts`; the writer writes what is new."""

    __slots__ = ("_begin", "_end", "_turn", "_tx", "is_waiting", "kind", "texts")

    def __init__(self, kind: type[TextDelta | ReasoningDelta], turn: str) -> None:
        self.kind = kind
        self.texts: list[str] = []
        self.is_waiting = False
        self._turn = turn
        self._tx: Transaction | None = None  # the last one that wrote some of them: texts[_begin:_end]
        self._begin = 0
        self._end = 0

    def write(self, tx: Transaction) -> None:
        """Write the pieces that have come since the last write. The command of these pieces."""
        self.is_waiting = False
        if tx is not self._tx:
            if self._tx is not None and not self._tx.is_durable:
                self._end = self._begin  # what that one wrote was refused, and is written again
            self._begin = self._end
            self._tx = tx
        texts = self.texts[self._end :]
        self._end += len(texts)
        if len(texts) > _MAX_SINGLE:
            texts = _joined(texts)
        if texts and tx.history.is_open(self._turn):
            tx.write(self._turn, *[self.kind(text) for text in texts])


def _joined(texts: list[str]) -> list[str]:
    """The same text in fewer pieces, each at most `_MAX_JOINED` long, or as long as it came."""
    joined: list[str] = []
    size = 0
    for text in texts:
        if not joined or size + len(text) > _MAX_JOINED:
            joined.append(text)
            size = len(text)
        else:
            joined[-1] += text
            size += len(text)
    return joined
