"""The chats of one platform: what is to be seen in each, and which sessions are theirs.

One place is one session, "telegram-1234"; each `/new` begins another, which is called by it: "telegram-1234~567". So
which session a message belongs to follows from its place and its order, also if it is delivered again, after a restart.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from halter.gateway.platforms.board import Board
from halter.gateway.platforms.pace import Bucket, Pace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from halter.gateway.platforms.board import Note
    from halter.gateway.platforms.platform import Button, Platform

__all__ = ["Place", "Places"]

_MOST_TOLD: Final = 1_000


class Place:
    """One chat."""

    def __init__(self, name: str, prefix: str, board: Board) -> None:
        self.name = name
        self.board = board
        self.line = asyncio.Lock()  # of what was said and is not accepted yet: who comes first is served first
        self._prefix = prefix
        self._begun: list[int] = []  # the orders of each /new, sorted
        self._held: tuple[str, Note] | None = None  # what was said last of messages that are held

    def session(self, order: int) -> str:
        """Which session something belongs to that was said there."""
        at = bisect.bisect_right(self._begun, order)
        return self.session_begun(self._begun[at - 1]) if at else f"{self._prefix}{self.name}"

    def session_begun(self, order: int) -> str:
        """The session that a /new has begun."""
        return f"{self._prefix}{self.name}~{order}"

    def begin(self, order: int) -> None:
        """From here on it is another session."""
        if not self.has_begun(order):
            bisect.insort(self._begun, order)

    def has_begun(self, order: int) -> bool:
        """Whether this /new was done."""
        at = bisect.bisect_left(self._begun, order)
        return self._begun[at : at + 1] == [order]

    def say_held(self, text: str, button: Button) -> None:
        """Say that messages are held, with a button."""
        self.end_held()
        self._held = (text, self.board.pin(lambda: text, [button]))

    def end_held(self, more: str = "") -> None:
        """Take that button away."""
        if self._held is not None:
            text, note = self._held
            note.settle(f"{text} {more}".strip())
            self._held = None


class Places:
    """All chats of a platform."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._prefix = f"{platform.name}-"
        self._shared = Bucket(platform.a_second, platform.a_second)
        self._places: dict[str, Place] = {}
        self._told: OrderedDict[str, None] = OrderedDict()  # who and what was told once, and need not be again

    def __getitem__(self, name: str) -> Place:
        place = self._places.get(name)
        if place is None:
            board = Board(self._platform, name, Pace(self._platform.every, self._shared))
            place = self._places[name] = Place(name, self._prefix, board)
        return place

    def __iter__(self) -> Iterator[Place]:
        return iter(list(self._places.values()))

    def has(self, session_id: str) -> bool:
        """Whether a session is one of theirs. What an agent has others do is part of its own."""
        return session_id.startswith(self._prefix) and "/" not in session_id

    def of(self, session_id: str) -> Place:
        """The place of a session."""
        name, _, order = session_id.removeprefix(self._prefix).partition("~")
        place = self[name]
        if order.isdecimal():
            place.begin(int(order))
        return place

    def tell_once(self, place: Place, key: str, text: str) -> None:
        """Say something, unless that was done."""
        if key not in self._told:
            self._told[key] = None
            while len(self._told) > _MOST_TOLD:
                self._told.popitem(last=False)
            place.board.say(text)
