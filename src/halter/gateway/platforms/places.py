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

_MOST: Final = 10_000  # places that are known at the same time; anybody can write to a bot
_MOST_TOLD: Final = 1_000


class Place:
    """One chat."""

    def __init__(self, name: str, prefix: str, board: Board, begun: list[int]) -> None:
        self.name = name
        self.board = board
        self.line = asyncio.Lock()  # of what was said and is not accepted yet: who comes first is served first
        self.stopped = -1  # the order of the last stop
        self._prefix = prefix
        self.begun = begun  # the orders of each /new, sorted
        self._held: tuple[str, Note] | None = None  # what was said last of messages that are held

    def session(self, order: int) -> str:
        """Which session something belongs to that was said there."""
        at = bisect.bisect_right(self.begun, order)
        return self.session_begun(self.begun[at - 1]) if at else f"{self._prefix}{self.name}"

    def session_begun(self, order: int) -> str:
        """The session that a /new has begun."""
        return f"{self._prefix}{self.name}~{order}"

    def has_begun(self, order: int) -> bool:
        """Whether this /new was done."""
        return order in self.begun

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be missed if it were forgotten, and made anew when it is needed."""
        return self._held is None and self.board.is_idle and not self.line.locked()

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
        # Together never more than that in one second: some at once, and what comes into the bucket meanwhile.
        self._shared = Bucket(platform.a_second / 3, platform.a_second * 2 / 3)
        self._places: dict[str, Place] = {}
        self._begun: dict[str, list[int]] = {}  # of those with a /new
        self._told: OrderedDict[str, None] = OrderedDict()  # who and what was told once, and need not be again

    def __getitem__(self, name: str) -> Place:
        place = self._places.get(name)
        if place is None:
            if len(self._places) >= _MOST:
                self._places = {each.name: each for each in self if not each.is_idle}
            board = Board(self._platform, name, Pace(self._platform.every, self._shared))
            place = self._places[name] = Place(name, self._prefix, board, self._begun.get(name, []))
        return place

    def __iter__(self) -> Iterator[Place]:
        return iter(list(self._places.values()))

    def has(self, session_id: str) -> bool:
        """Whether a session is one of theirs. What an agent has others do is part of its own."""
        return session_id.startswith(self._prefix) and "/" not in session_id

    def of(self, session_id: str) -> Place:
        """The place of a session."""
        return self[session_id.removeprefix(self._prefix).partition("~")[0]]

    def learn(self, session_id: str) -> None:
        """Know a session of theirs, which may have been begun by a /new."""
        name, _, order = session_id.removeprefix(self._prefix).partition("~")
        if order.isdecimal():
            begun = self._begun.setdefault(name, [])
            if int(order) not in begun:
                bisect.insort(begun, int(order))
            if name in self._places:
                self._places[name].begun = begun

    def tell_once(self, place: Place, key: str, text: str) -> None:
        """Say something, unless that was done."""
        if key not in self._told:
            self._told[key] = None
            while len(self._told) > _MOST_TOLD:
                self._told.popitem(last=False)
            place.board.say(text)
