"""The base class of what turns one answer of a provider into events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from halter.models.types import Usage

if TYPE_CHECKING:
    from halter.models.types import ModelEvent

__all__ = ["Reader", "tokens"]

_MAX_TOKENS: Final = 2**53


def tokens(usage: object, *keys: str) -> int:
    """The number below these keys of a usage report; 0 if it is none: a wrong count must not cost the answer."""
    for key in keys:
        usage = usage.get(key) if isinstance(usage, dict) else None
    return int(usage) if isinstance(usage, int | float) and 0 < usage < _MAX_TOKENS else 0


class Reader(ABC):
    """Reads one answer.

    Raises one of `UNREADABLE` for what it cannot read, and `error_in_answer()` for an error inside the answer;
    `HTTPModel` makes the full error from it.
    """

    def __init__(self, model: str) -> None:
        self.finished = False
        """Whether the provider has said that the answer is complete."""
        self._model = model  # as the provider names it, once it has
        self._raw = ""  # why the answer ended, in the provider's words
        self._detail = ""  # the provider's explanation of that
        self._usage = Usage()

    @property
    def has_ended(self) -> bool:
        """Whether the answer is complete although its connection was lost, so that it is not asked for again."""
        return self.finished

    @abstractmethod
    def take(self, name: str, data: bytes) -> list[ModelEvent]:
        """Read one event of a stream."""

    @abstractmethod
    def read_complete(self, body: bytes) -> list[ModelEvent]:
        """Read an answer that was not streamed."""

    @abstractmethod
    def end(self) -> list[ModelEvent]:
        """The last events, at the end of the answer. Raises `StreamBroken` if the answer is not complete."""

    def _update_usage(self, usage: Usage) -> list[ModelEvent]:
        """The usage as an event, if it has changed."""
        if usage == self._usage:
            return []
        self._usage = usage
        return [usage]
