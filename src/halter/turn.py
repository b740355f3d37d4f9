"""One turn: what a user's messages set off, until an answer or a stop; and how it stands at any time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from halter.cancel.token import CancellationToken
from halter.models.model import Usage

if TYPE_CHECKING:
    import asyncio

    from halter.events import TurnStatus
    from halter.history import PastTurn
    from halter.tools.batch import Batch
    from halter.tools.outcome import ToolOutcome

__all__ = ["Turn"]

_OVER: Final = "over"
_NO_STEP: Final = CancellationToken(name="no step")  # of all turns that have ended
_NO_STEP.cancel("ended")


class Turn:
    """What `run()` gives back, and what `session.turn` shows while it runs.

    `status` is "running", and in the end "done", "interrupted" or "failed". `text` is the answer, or as much of it as
    there was. `reason` and `detail` tell why it ended if it was not done. `token` is this turn's alone, for ever.
    """

    __slots__ = (
        "_fate",
        "batch",
        "detail",
        "ended",
        "error",
        "id",
        "loop",
        "outcomes",
        "reason",
        "status",
        "step",
        "stop",
        "text",
        "token",
        "usage",
        "wants_pause",
        "wants_rollback",
    )

    def __init__(self, turn_id: str, token: CancellationToken) -> None:
        self.id = turn_id
        self.token = token
        self.status: TurnStatus = "running"
        self.text = ""
        self.reason: str | None = None
        self.detail = ""
        self.error: BaseException | None = None
        self.usage = Usage()
        self.outcomes: list[ToolOutcome] = []
        self.ended = CancellationToken(name="turn ended")  # as a bell that rings once, for whoever waits for the end
        self.step = token.child("step")
        self.batch: Batch | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.wants_pause = False
        self.wants_rollback = False
        self.stop: Stop | None = None
        self._fate: dict[str, str] = {}

    def __repr__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"<Turn {self.id} {self.status}{why}: {self.text[:40]!r}>"

    def cancel(self, reason: str, *, detail: str = "", by: str = "") -> bool:
        """Stop it; True if this did it. Nothing happens to a turn that is over.

        Lock-free, for it may be a signal handler that calls. Whether the stop or the end came first is decided by the
        one entry of a dictionary, which is set by an indivisible operation.
        """
        if self.is_over:
            return False
        stop = Stop(reason, detail, by)
        if self.stop is None:
            self.stop = stop
        did = self.token.cancel(reason, detail=detail)
        if did:
            self.stop = stop
        return self._fate.setdefault("end", "stop") != _OVER and did

    def claim_end(self) -> bool:
        """Say that the turn is over; False if a stop came first."""
        if self.token.is_cancelled:
            self._fate.setdefault("end", "stop")
        return self._fate.setdefault("end", _OVER) == _OVER

    def end(self) -> None:
        """Let everybody know that it is over and written, and let go of what only a running turn needs."""
        self.ended.cancel("ended")
        self.step = _NO_STEP
        self.loop = None

    @property
    def is_over(self) -> bool:
        """Whether its end is decided, and only has to be written."""
        return self._fate.get("end") == _OVER

    @property
    def is_stopping(self) -> bool:
        """Whether it runs, and has been told to stop."""
        return self.token.is_cancelled and self.status == "running"

    @classmethod
    def of_past(cls, past: PastTurn) -> Turn:
        """A turn as the log tells of it."""
        turn = cls(past.id, CancellationToken(name="past turn"))
        turn.status, turn.reason, turn.detail = past.status, past.reason or None, past.detail
        turn.text, turn.usage = past.text, past.usage
        turn.error = RuntimeError(past.error) if past.error else None
        turn.claim_end()
        if past.status == "interrupted":
            turn.token.cancel(past.reason, detail=past.detail)
        turn.end()
        return turn


class Stop:
    """Who asked a turn to stop, why, and when."""

    __slots__ = ("asked_at", "by", "detail", "moment", "reason")

    def __init__(self, reason: str, detail: str, by: str) -> None:
        self.reason = reason
        self.detail = detail
        self.by = by
        self.asked_at = time.time()
        self.moment = time.monotonic()
