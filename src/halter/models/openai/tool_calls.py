"""Assembles tool calls from the pieces in which they are streamed.

OpenAI's own servers number each call and name it once. Others omit the number or the id, repeat either in every piece,
number all calls 0, or send arguments as an object. For all of them: calls are numbered from 0 without gaps, each has
an id that is unique in the answer, and no piece is lost or duplicated.
"""

from __future__ import annotations

import os

import msgspec

from halter.models.errors import UNREADABLE
from halter.models.types import ModelEvent, ToolCall, ToolCallDelta, ToolCallDone, ToolCallStarted

__all__ = ["CallAssembler"]


class _OpenCall:
    """A call that has not ended yet."""

    __slots__ = ("arguments", "id", "index", "key", "name", "started")

    def __init__(self, index: int, key: int | None, call_id: str) -> None:
        self.index = index
        self.key = key
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []
        self.started = False

    @property
    def is_complete(self) -> bool:
        """Whether its arguments are a whole JSON object."""
        try:
            return isinstance(msgspec.json.decode("".join(self.arguments)), dict)
        except UNREADABLE:
            return False


class CallAssembler:
    """The calls of one answer."""

    def __init__(self) -> None:
        self._calls: list[_OpenCall] = []

    def piece(self, key: int | None, call_id: str, name: str, arguments: object) -> list[ModelEvent]:
        """Take one piece. `key` is the provider's number of the call, if it gave one."""
        text = _text(arguments)
        call = self._find(key, call_id, name, text)
        if text:
            call.arguments.append(text)
        if not call.name:
            call.name = name
        if not call.name:
            # Its name has not come yet: it is reported once it has.
            return []
        if not call.started:
            call.started = True
            call.id = self._unique(call)
            events: list[ModelEvent] = [ToolCallStarted(call.index, call.id, call.name)]
            return events + [ToolCallDelta(call.index, held) for held in call.arguments]
        return [ToolCallDelta(call.index, text)] if text else []

    def done(self) -> list[ModelEvent]:
        """End all calls. One that never got a name is dropped."""
        events: list[ModelEvent] = [
            ToolCallDone(call.index, ToolCall(call.id, call.name, "".join(call.arguments) or "{}"))
            for call in self._calls
            if call.started
        ]
        self._calls.clear()
        return events

    @property
    def are_complete(self) -> bool:
        """Whether the arguments of each call are a whole JSON object."""
        return all(call.is_complete for call in self._calls)

    def _find(self, key: int | None, call_id: str, name: str, arguments: str) -> _OpenCall:
        """Find the call that a piece belongs to, or begin a new one.

        The number decides if there is one, the newest call first. But a piece with a name and another id is a new call,
        even if its number was used: some servers number all calls 0.
        """
        call = None
        for candidate in reversed(self._calls):
            if key is not None and candidate.key != key:
                continue
            # Without a number the id decides; a piece without either continues the newest call.
            if key is not None or (candidate.id == call_id if call_id else not name):
                call = candidate
                break
        if call is not None and not (name and call.name and self._is_next(call, call_id, arguments)):
            if call_id and not call.started:
                call.id = call_id
            return call
        call = _OpenCall(len(self._calls), key, call_id)
        self._calls.append(call)
        return call

    def _is_next(self, call: _OpenCall, call_id: str, arguments: str) -> bool:
        """Whether a piece with a name begins a call after this one, which has a name too.

        Without ids, one with arguments does after a call whose arguments are complete: nothing can continue them.
        """
        if call_id and call.id:
            return call_id != call.id
        return bool(arguments.strip()) and call.is_complete

    def _unique(self, call: _OpenCall) -> str:
        taken = {other.id for other in self._calls if other is not call and other.started}
        if call.id and call.id not in taken:
            return call.id
        return f"call_{os.urandom(12).hex()}"


def _text(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()
