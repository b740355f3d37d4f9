"""Leaving the chat: the turn is stopped, the session is saved, and all of it is bounded by the guard's one deadline.

While it ends, messages can still be typed: they are kept in the session for the next time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.cancel.blocking import run_blocking_async
from halter.cancel.exit import FORCED
from halter.cancel.token import NEVER, CancellationToken
from halter.errors import HalterError

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.cancel import ExitGuard
    from halter.cli.chat.host import Host

__all__ = ["Leaving"]

# Seconds at the end of the time that are left for saving and saying so.
_LAST: Final = 0.8


class Leaving:
    """The end of the program, once."""

    def __init__(self, guard: ExitGuard, host: Host) -> None:
        self.code = 0
        self.is_begun = False
        self.lines: list[str] = []  # the last words
        self._guard = guard
        self._host = host

    def begin(self, code: int, why: str) -> None:
        """Start the clock."""
        self.is_begun = True
        self.code = code
        self._guard.intend(code, why)

    async def end_session(self, why: str, late: list[str]) -> None:
        """Stop what runs and let go of the session. *late* gathers messages that come when it is closed already."""
        session = self._host.session
        turn = session.turn if session.is_running else None
        if turn is not None:
            turn.cancel("shutdown", detail=why, by=why)
        # No further turn begins; but what is posted from now on is still kept.
        session.token.cancel("shutdown", detail=why)
        if turn is not None:
            with self._guard.stage("the turn to end"):
                end = CancellationToken(timeout=max(self._guard.remaining() - _LAST, 0.0))
                await CancellationToken.any_of(turn.ended, end).wait_async()
            if not turn.ended.is_cancelled:
                self.code = self.code or FORCED
                self.lines.append("The turn did not end in time and was left behind.")
        with self._guard.stage("what tools have left running"):
            await run_blocking_async(session.close, max(self._guard.remaining() - _LAST, 0.1), token=NEVER)
        with self._guard.stage("the store"):
            # Keys are heard while this waits, so there may be more when it is back; and none after the last look.
            farewell = await run_blocking_async(self._say_farewell, late, token=NEVER)
            while late:
                farewell = await run_blocking_async(self._say_farewell, late, token=NEVER)
        self.lines += farewell

    async def wait_for(self, what: str, do: Callable[[float], object]) -> None:
        """Do something that waits and is given the seconds that are left; *what* is what is waited for."""
        with self._guard.stage(what):
            await run_blocking_async(do, self._guard.remaining(), token=NEVER)

    def _say_farewell(self, late: list[str]) -> list[str]:
        """Keep what came late, and say where all of it is. A boundary: the store may be what is wrong."""
        texts, late[:] = late[:], []
        try:
            if texts:
                self._host.keep(texts)
            return self._host.farewell()
        except HalterError as error:
            self.code = self.code or 1
            self.lines += [f"Not kept: {text}" for text in texts]
            return [f"The session could not be closed well: {error}"]
