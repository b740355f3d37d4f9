"""How a call ended, for the log, the program and the model.

What the model reads about a stopped call never claims more than is known. "Not started" and "denied" mean that nothing
happened; "abandoned" means that the effects are unknown; what came before a stop comes first, and is marked as partial.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct, field

from halter.models.types import Part, Text, ToolMessage
from halter.tools.content import Content

Status: TypeAlias = Literal[
    "completed", "partial", "cancelled", "not_started", "failed", "timed_out", "abandoned", "denied"
]
# "cut": what the call waited for was ended, see halter.cancel.threads.unblock.
StopStep: TypeAlias = Literal["cooperated", "cut", "killed", "abandoned"]

# Why a call was stopped, to follow "was stopped".
_REASONS: Final = {
    "interrupt": "because the user interrupted",
    "steer": "because the user gave new guidance",
    "stop": "because the user said stop",
    "rollback": "because the user rolled this turn back",
    "timeout": "because it timed out",
    "stale": "because nothing more arrived",
    "disconnect": "because the user disconnected",
    "shutdown": "because the program is ending",
    "crash": "because the program crashed",
    "external": "because the surrounding program cancelled it",
}
_ERRORS: Final = frozenset({"cancelled", "not_started", "failed", "timed_out", "abandoned", "denied"})


def because(reason: str | None) -> str:
    """Why something was stopped, as words to follow "was stopped"."""
    return _REASONS.get(reason or "", f"for the reason {reason!r}" if reason else "")


class LateEnd(Struct, frozen=True):
    """The late end of an abandoned call."""

    ended_at: float
    seconds: float  # after the stop
    content: Content = ""
    error: str = ""  # what it raised; empty if it returned


class ToolOutcome(Struct, kw_only=True):
    """The outcome of one call. Each call has exactly one."""

    call_id: str
    name: str
    status: Status
    content: Content = ""  # the result, or as much of it as there was
    reason: str | None = None  # why it was stopped: the token's reason
    detail: str = ""  # the error of a failed call, the note of a denied one, else the token's detail
    started_at: float | None = None  # time.time(); None if it never started
    ended_at: float | None = None
    late: LateEnd | None = None
    stop_steps: list[StopStep] = field(default_factory=list, name="rungs")  # what it took to stop the call, in order

    @property
    def may_go_on(self) -> bool:
        """Whether the call was abandoned and has not ended since."""
        return (self.status == "abandoned" or "abandoned" in self.stop_steps) and self.late is None

    def to_message(self) -> ToolMessage:
        """The result of the call for the model. A late end does not change it, see late_note()."""
        parts: list[Part] = [Text(self.content)] if isinstance(self.content, str) else list(self.content)
        parts = [part for part in parts if not isinstance(part, Text) or part.text]
        note = self._note(has_content=bool(parts))
        if note:
            parts.append(Text(f"[{note}]" if parts else note))
        return ToolMessage(self.call_id, self.name, parts, is_error=self.status in _ERRORS)

    def late_note(self) -> str:
        """A note for the model, in a later turn, about an abandoned call that has ended; else empty."""
        if self.late is None:
            return ""
        late = self.late
        start = f"The earlier call of {self.name} ({self.call_id}), which was stopped, ended after all"
        if late.error:
            return f"{start}, {late.seconds:.1f} s after the stop, with an error: {late.error}"
        if isinstance(late.content, str):
            text = late.content
        else:
            text = "\n".join(part.text for part in late.content if isinstance(part, Text))
        gave = f"and gave:\n{text}" if text else "and returned nothing."
        return f"{start}, {late.seconds:.1f} s after the stop, {gave}"

    def _note(self, *, has_content: bool) -> str:  # noqa: PLR0911  (one for each status)
        why = because(self.reason)
        stopped = f"This call was stopped {why}".rstrip()
        so_far = " Its output until then is above." if has_content else ""
        doubt = " It did not end in time and may still have effects." if "abandoned" in self.stop_steps else ""
        match self.status:
            case "completed":
                return "" if has_content else "(no output)"
            case "partial":
                return f"{stopped} before it was done.{so_far or ' It had returned nothing by then.'}{doubt}"
            case "cancelled":
                return f"{stopped} before it returned. What it had done by then remains done.{so_far}{doubt}"
            case "timed_out":
                return f"This call took too long and was stopped: {self.detail or 'it timed out'}.{so_far}{doubt}"
            case "abandoned":
                return f"{stopped} and did not end in time; it may still have effects.{so_far}"
            case "not_started":
                return f"This call was not started{f', {why}' if why else ''}. It had no effects."
            case "denied":
                return f"This call was not allowed and not started: {self.detail or 'no reason was given'}."
            case "failed":
                return f"This call failed: {self.detail or 'no error text'}{so_far and '.' + so_far}"
