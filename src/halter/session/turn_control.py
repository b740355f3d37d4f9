"""Control of a running turn: its stop, its step, its calls. From any thread; a stop also from a signal handler.

Whether a stop or the end of the turn came first is decided once, by `dict.setdefault`, which is atomic. The writer
claims the end when it seals the turn; a stop that finds the end claimed has stopped nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from halter.events import TurnStopping

if TYPE_CHECKING:
    import asyncio

    from halter.cancel.token import CancellationToken
    from halter.session.turn import Turn
    from halter.tools.run.batch import Batch

__all__ = ["StopRequest", "TurnControl"]

_END: Final = "end"
_STOP: Final = "stop"


class StopRequest:
    """Who asked a turn to stop, why, and when."""

    __slots__ = ("asked_at", "by", "detail", "moment", "reason")

    def __init__(self, reason: str, detail: str, by: str) -> None:
        self.reason = reason
        self.detail = detail
        self.by = by
        self.asked_at = time.time()
        self.moment = time.monotonic()


class TurnControl:
    """Controls one running turn."""

    __slots__ = ("_first", "_stops", "batch", "loop", "pause_requested", "rollback_requested", "step", "turn")

    def __init__(self, turn: Turn, loop: asyncio.AbstractEventLoop) -> None:
        self.turn = turn
        self.loop = loop
        self.step: CancellationToken = turn.token.child("step")  # a steer cancels it; the writer sets the next one
        self.batch: Batch | None = None  # the running calls
        self.pause_requested = False  # stop after the running step
        self.rollback_requested = False  # set by the writer: after the seal, take the turn out of the history
        self._stops: list[StopRequest] = []
        self._first: dict[str, str] = {}

    def cancel(self, reason: str, *, detail: str = "", by: str = "") -> bool:
        """Stop the turn; True if this call cancelled it. Does nothing if the turn is over."""
        if self.is_over:
            return False
        self._stops.append(StopRequest(reason, detail, by))  # before the cancel: callbacks look up who asked
        cancelled = self.turn.token.cancel(reason, detail=detail)
        return self._first.setdefault("came", _STOP) == _STOP and cancelled

    def claim_end(self) -> bool:
        """Mark the turn as over; False if a stop came first."""
        if self.turn.token.is_cancelled:
            self._first.setdefault("came", _STOP)
        return self._first.setdefault("came", _END) == _END

    @property
    def is_over(self) -> bool:
        """Whether the end is decided. It may not be durable yet."""
        return self._first.get("came") == _END or self.turn.ended.is_set

    @property
    def stop(self) -> StopRequest | None:
        """The first stop, if it came by `cancel()`."""
        token = self.turn.token
        for stop in self._stops:
            if (stop.reason, stop.detail) == (token.reason, token.detail):
                return stop
        return None

    def stopping(self) -> TurnStopping:
        """The event that records the stop."""
        token, stop = self.turn.token, self.stop
        by, asked_at = (stop.by, stop.asked_at) if stop is not None else ("", time.time())
        return TurnStopping(token.reason or "", token.detail, by, asked_at)
