"""The calls in the assistant's newest message, from that message on until all of them have results."""

from __future__ import annotations

from typing import Final

import msgspec

from halter.models.types import Message, ToolCall, ToolMessage

__all__ = ["NO_CALLS", "OpenCalls"]

_RUNNING: Final = "This call is still running."


class OpenCalls(msgspec.Struct, frozen=True):
    """The calls in the assistant's newest message, as long as some have no result."""

    turn: str = ""
    calls: dict[str, ToolCall] = {}
    results: dict[str, ToolMessage] = {}
    started: frozenset[str] = frozenset()
    answered: tuple[str, ...] = ()  # the user's answers to questions of these calls
    is_broken: bool = False  # one of them was not completed

    @property
    def missing(self) -> int:
        """How many have no result."""
        return len(self.calls) - len(self.results)

    def is_open(self, call: str) -> bool:
        """Whether a call has no result yet."""
        return call in self.calls and call not in self.results

    def without_result(self) -> list[ToolCall]:
        """The calls that have no result."""
        return [call for call in self.calls.values() if call.id not in self.results]

    def messages(self) -> list[Message]:
        """The results in the order of the calls, with a placeholder for each that is missing."""
        return [self.results.get(call.id) or ToolMessage.of(call, _RUNNING) for call in self.calls.values()]

    def unreported(self) -> list[str]:
        """The user's answers that are in no result, because the call that asked was stopped first."""
        if not self.is_broken:
            return []
        results = [message.text for message in self.results.values()]
        return [text for text in self.answered if not any(text in result for result in results)]


NO_CALLS: Final = OpenCalls()
