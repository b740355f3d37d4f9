"""What is to be seen in one place: notes, each of which says at any time how it should look.

One task makes it so, as long as there is something to do, within the pace of the place. It always shows the newest: a
note that has changed ten times meanwhile is shown once. New notes appear in their order, and before changes of older
ones. What can not be shown now is tried again; what can not be shown at all is given up, and logged.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.gateway.platforms.pieces import split
from halter.gateway.platforms.platform import Refused, TooFast, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halter.gateway.platforms.pace import Pace
    from halter.gateway.platforms.platform import Button, Platform

__all__ = ["Board", "Note"]

_log = logging.getLogger(__name__)
_FIRST_PAUSE: Final = 0.5  # seconds until the platform is tried again; longer each time
_LONGEST_PAUSE: Final = 30.0
_MOST_TRIES: Final = 60  # about half an hour
_NOTHING: Final = "…"  # in a message that is not needed any more, as its text has become shorter


class _Seen(NamedTuple):
    """A message as it was shown last."""

    message: str
    text: str
    buttons: tuple[Button, ...]


class Note:
    """One thing to be seen: a message, or as many as its text needs."""

    __slots__ = ("_board", "_seen", "buttons", "fixed", "is_changed", "is_settled", "render", "tries")

    def __init__(self, board: Board, render: Callable[[], str], buttons: Sequence[Button], *, fixed: bool) -> None:
        self._board = board
        self._seen: list[_Seen] = []
        self.render = render
        self.buttons = tuple(buttons)
        self.fixed = fixed
        self.is_changed = True
        self.is_settled = False
        self.tries = 0

    @property
    def is_new(self) -> bool:
        """Whether nothing of it was shown yet."""
        return not self._seen

    def change(self) -> None:
        """It looks different now."""
        if not self.is_changed:
            self.is_changed = True
            self._board.ring()

    def settle(self, text: str | None = None) -> None:
        """It will not change any more; this is its last text, and it has no buttons."""
        if text is not None:
            self.render = lambda: text
        self.buttons = ()
        self.is_settled = True
        self.change()

    async def show(self, platform: Platform, place: str) -> None:
        """Do one step of what is to be done: one message is made, or changed."""
        self.is_changed = False
        pieces = split(self.render(), platform.longest)
        wanted = [(piece, () if at + 1 < len(pieces) else self.buttons) for at, piece in enumerate(pieces)]
        wanted += [(_NOTHING, ())] * (len(self._seen) - len(wanted))
        steps = [at for at, want in enumerate(wanted) if at >= len(self._seen) or self._seen[at][1:] != want]
        if not steps:
            return
        at = steps[0]
        text, buttons = wanted[at]
        try:
            if at < len(self._seen):
                message = self._seen[at].message
                await platform.edit(place, message, text, buttons)
                self._seen[at] = _Seen(message, text, buttons)
            else:
                message = await platform.send(place, text, buttons, fixed=self.fixed)
                self._seen.append(_Seen(message, text, buttons))
        except (TooFast, Unreachable):
            self.is_changed = True
            raise
        self.tries = 0
        self.is_changed |= len(steps) > 1


class Board:
    """All notes of one place."""

    def __init__(self, platform: Platform, place: str, pace: Pace) -> None:
        self._platform = platform
        self._place = place
        self._pace = pace
        self._notes: list[Note] = []
        self._rung = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def pin(self, render: Callable[[], str], buttons: Sequence[Button] = ()) -> Note:
        """A note that may change, until it is settled."""
        note = Note(self, render, buttons, fixed=False)
        self._notes.append(note)
        self.ring()
        return note

    def say(self, text: str, buttons: Sequence[Button] = (), *, fixed: bool = False) -> None:
        """A note that does not change."""
        note = Note(self, lambda: text, buttons, fixed=fixed)
        note.is_settled = True
        self._notes.append(note)
        self.ring()

    def ring(self) -> None:
        """There is something to do."""
        self._rung.set()
        if self._task is None:
            self._task = asyncio.create_task(self._work())

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing on it that could change."""
        return self._task is None and not self._notes

    async def flush(self) -> None:
        """Wait until everything is shown as it should be. Whoever calls sets the limit."""
        while self._task is not None:
            await asyncio.wait({self._task})

    def close(self) -> None:
        """Show nothing more."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        """Show all that is to be shown. A boundary: a defect here must not leave a task that nobody looks at."""
        try:
            while (note := self._next()) is not None:
                self._rung.clear()
                delay = self._pace.delay(is_change=not note.is_new)
                if delay > 0:  # but something new may come meanwhile that need not wait so long
                    await _either(self._rung, delay)
                else:
                    await self._show(note)
        except Exception:  # noqa: BLE001
            _log.exception("a chat can not be shown what happens", extra={"place": self._place})
            self._notes.clear()
        finally:
            self._task = None

    def _next(self) -> Note | None:
        self._notes = [note for note in self._notes if note.is_changed or not note.is_settled]
        changed = [note for note in self._notes if note.is_changed]
        return next((note for note in changed if note.is_new), changed[0] if changed else None)

    async def _show(self, note: Note) -> None:
        self._pace.take()
        try:
            await note.show(self._platform, self._place)
        except TooFast as error:
            self._pace.hold(error.seconds)
        except Unreachable as error:
            note.tries += 1
            self._pace.hold(min(_FIRST_PAUSE * 2**note.tries, _LONGEST_PAUSE))
            if note.tries >= _MOST_TRIES:
                self._give_up(note, error)
        except Refused as error:
            self._give_up(note, error)
        finally:
            self._pace.end()

    def _give_up(self, note: Note, error: Exception) -> None:
        _log.warning("something could not be shown: %s", error, extra={"place": self._place})
        self._notes.remove(note)


async def _either(event: asyncio.Event, seconds: float) -> None:
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=seconds)
    finally:
        waiting.cancel()
