"""Whether a complete answer ends its turn, fails it, or has to be given again because it does not fit its type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.errors import InvalidOutput
from halter.events import OutputRejected
from halter.session.turn_writer import TurnEnd

if TYPE_CHECKING:
    from halter.agent import Agent
    from halter.models.answer import Answer

__all__ = ["OutputCheck"]

_NORMAL_REASONS: Final = frozenset({"stop", "tool_calls", "other"})
_REFUSALS: Final = {
    "refusal": "the model refused to answer",
    "content_filter": "the provider's content filter stopped the answer",
}


class OutputCheck:
    """Checks the last answers of one turn, and counts how often the model may try again."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._retries_left = agent.output_retries

    def reset(self) -> None:
        """Allow all retries again: a steer has asked for another answer."""
        self._retries_left = self._agent.output_retries

    def check(self, answer: Answer) -> TurnEnd | OutputRejected:
        """How the turn should end with this complete answer, or why the model has to answer again."""
        reason = "" if answer.reason in _NORMAL_REASONS else str(answer.reason)
        output_type = self._agent.output_type
        if output_type is None:
            return TurnEnd("done", reason, unless_steered=True, output=answer.text)
        if reason:
            why = _REFUSALS.get(reason, f"the model ended its answer with {reason!r}")
            return _failed(reason, f"{why}: {answer.detail}" if answer.detail else why)
        try:
            return TurnEnd("done", unless_steered=True, output=output_type.parse(answer.text))
        except ValueError as error:  # BadOutput
            if self._retries_left == 0:
                return _failed("invalid_output", f"no answer fits {output_type.schema.name}; the last one: {error}")
            self._retries_left -= 1
            return OutputRejected(str(error), self._retries_left)


def _failed(reason: str, detail: str) -> TurnEnd:
    return TurnEnd("failed", reason, detail, InvalidOutput(detail), unless_steered=True)
