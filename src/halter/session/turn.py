"""One turn: the work on the user's messages, from its start to an answer or a stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halter.cancel.one_shot_event import OneShotEvent
from halter.cancel.token import CancellationToken
from halter.errors import HalterError
from halter.models.types import Usage

if TYPE_CHECKING:
    from typing import Self

    from halter.events import TurnStatus
    from halter.session.history import PastTurn
    from halter.tools.outcome import ToolOutcome
    from halter.tools.schema.output import OutputType

__all__ = ["Turn", "TurnFailed", "TurnInterrupted"]


class _TurnNotDone(HalterError):
    def __init__(self, message: str, turn: Turn) -> None:
        super().__init__(message)
        self.turn = turn


class TurnInterrupted(_TurnNotDone):
    """A turn was stopped. What it has done until then is in the history, and run() goes on from there."""


class TurnFailed(_TurnNotDone):
    """A turn failed. What it has done until then is in the history."""


class Turn:
    """What `run()` returns, and what `session.turn` shows while it runs.

    `status` is "running", and at the end "done", "interrupted" or "failed". `text` is the answer, or the part that
    came. `reason` and `detail` say why the turn ended if it is not "done". `token` belongs to this turn alone; `ended`
    is set once the end is durable.

    `usage` are the tokens and the cost of the requests and sub-agents that have ended, as far as it is durable.

    `output` is the answer as the agent's `output` type, and None unless the turn is "done". The log has only the text:
    in a session that was loaded again, `output` is read from it with the type that the agent has now, and None if it
    does not fit that.
    """

    __slots__ = ("detail", "ended", "error", "id", "outcomes", "output", "reason", "status", "text", "token", "usage")

    def __init__(self, turn_id: str, token: CancellationToken) -> None:
        self.id = turn_id
        self.token = token
        self.status: TurnStatus = "running"
        self.text = ""
        self.output: Any = None
        self.reason: str | None = None
        self.detail = ""
        self.error: BaseException | None = None
        self.usage = Usage(cost=0.0)
        self.outcomes: list[ToolOutcome] = []
        self.ended = OneShotEvent()

    def __repr__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return f"<Turn {self.id} {self.status}{why}: {self.text[:40]!r}>"

    @property
    def is_stopping(self) -> bool:
        """Whether it is still running, and its stop was requested."""
        return self.token.is_cancelled and self.status == "running"

    @property
    def never_began(self) -> bool:
        """Whether it is over without having begun: its messages were held or removed just before."""
        return self.ended.is_set and self.status == "running"

    def raise_for_error(self) -> Self:
        """Return this turn if it is done. Raises `TurnInterrupted` if it was stopped, `TurnFailed` if it failed."""
        if self.status == "running":
            raise RuntimeError("the turn is still running; wait for it with turn.ended.wait()")
        if self.status == "done":
            return self
        why = ": ".join(filter(None, (self.reason, self.detail)))
        if self.status == "interrupted":
            raise TurnInterrupted(f"the turn was stopped ({why})", self)
        raise TurnFailed(f"the turn failed ({why})", self) from self.error

    @classmethod
    def from_log(cls, past: PastTurn, output_type: OutputType | None = None) -> Turn:
        """Make a turn that has ended from its record in the log, with the output if that still fits the type."""
        turn = cls(past.id, CancellationToken(name="past turn"))
        turn.status, turn.reason, turn.detail = past.status, past.reason or None, past.detail
        turn.text, turn.usage = past.text, past.usage
        turn.error = RuntimeError(past.error) if past.error else None
        if past.status == "done":
            turn.output = _read_output(past.text, output_type)
        elif past.status == "interrupted":
            turn.token.cancel(past.reason, detail=past.detail)
        turn.ended.set()
        return turn


def _read_output(text: str, output_type: OutputType | None) -> Any:
    if output_type is None:
        return text
    try:
        return output_type.parse(text)
    except ValueError:  # the agent has another type by now
        return None
