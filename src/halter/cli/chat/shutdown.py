"""Quitting the chat: the turn is stopped and the session closed, within the deadline of the exit guard.

Messages that are typed meanwhile are stored for the next run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.cancel.exit import FORCED
from halter.cancel.loop_bridge import run_in_thread
from halter.errors import HalterError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halter.cancel import ExitGuard
    from halter.cli.chat.session_host import SessionHost

__all__ = ["Shutdown"]

# Seconds before the deadline that are reserved for saving and the closing lines.
_SAVE_TIME: Final = 0.8


class Shutdown:
    """The end of the chat."""

    def __init__(self, guard: ExitGuard, host: SessionHost) -> None:
        self.code = 0
        self.has_begun = False
        self.lines: list[str] = []  # to be printed at the end
        self._guard = guard
        self._host = host

    def begin(self, code: int, why: str) -> None:
        """Start the exit deadline."""
        self.has_begun = True
        self.code = code
        self._guard.intend(code, why)

    async def end_session(self, why: str, late: list[str], outputs: Sequence[str] = ()) -> None:
        """Stop the turn and close the session. *late* collects messages that are typed after it is closed.

        *outputs* would have been sent with the next message. If there is a conversation, they are held in it.
        """
        session = self._host.session
        turn = session.turn if session.is_running else None
        if turn is not None:
            session.interrupt(reason="shutdown", detail=why, by=why)
        # No further turn starts, but messages are still stored.
        session.token.cancel("shutdown", detail=why)
        if turn is not None:
            with self._guard.stage("the turn to end"):
                has_ended = await turn.ended.wait_async(max(self._guard.remaining() - _SAVE_TIME, 0.0))
            if not has_ended:
                self.code = FORCED
                self.lines.append("The turn did not end in time and was abandoned.")
        with self._guard.stage("processes that tools left running"):
            await run_in_thread(lambda: session.close(max(self._guard.remaining() - _SAVE_TIME, 0.1)))
            await run_in_thread(lambda: self._host.wait_for_previous(self._guard.remaining() - _SAVE_TIME))
        with self._guard.stage("the store"):
            await run_in_thread(self._host.wait_until_written)
            if outputs:
                await run_in_thread(lambda: self._store_outputs(outputs))
            # Keys are handled while this waits, so there may be more messages when it returns.
            closing_lines = await run_in_thread(lambda: self._store_late(late))
            while late:
                closing_lines = await run_in_thread(lambda: self._store_late(late))
        self.lines += closing_lines

    async def wait_for(self, what: str, do: Callable[[float], object]) -> None:
        """Call a function with the seconds that are left; *what* names it while it is waited for."""
        with self._guard.stage(what):
            await run_in_thread(lambda: do(self._guard.remaining()))

    def _store_outputs(self, outputs: Sequence[str]) -> None:
        """Store the output of the user's own commands. A boundary: the store may have failed."""
        try:
            if self._host.store.read(self._host.session.id, limit=1):
                self._host.store_messages([], outputs)
                self.lines.append("The output of your commands is saved as a held message.")
        except HalterError as error:
            self.code = self.code or 1
            self.lines.append(f"The output of your commands was not saved: {error}")

    def _store_late(self, late: list[str]) -> list[str]:
        """Store late messages, and return the closing lines. A boundary: the store may have failed."""
        texts, late[:] = late[:], []
        try:
            if texts:
                self._host.store_messages(texts)
            return self._host.closing_lines()
        except HalterError as error:
            self.code = self.code or 1
            self.lines += [f"Not saved: {text}" for text in texts]
            return [f"The session was not closed cleanly: {error}"]
