"""What a model has answered: an `Answer` at any instant, built by an `AnswerBuilder` from the events of its attempts.

A tool call is either complete, and then in `calls`, or it is in `unfinished`, for the record: no code path leads from
there to a tool. A call at which the model reached its output limit counts as unfinished too, even if what there is of
it happens to be valid JSON.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from halter.models.types import (
    AssistantMessage,
    Finished,
    FinishReason,
    ModelEvent,
    Reasoning,
    ReasoningDelta,
    ReasoningDone,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Answer", "AnswerBuilder"]

# The answer was truncated; the model would have gone on.
_TRUNCATED: Final[frozenset[FinishReason]] = frozenset({"length", "content_filter", "refusal"})


class Answer(Struct, frozen=True, gc=False, tag="answer"):
    """An answer, or as much of it as there is.

    `status` is `"complete"` once the model has finished, for whatever `reason`; until then, and for good if the request
    was stopped or broke, it is `"partial"`. `model` is the one that answered, `attempts` the number of this attempt.
    `usage` is that of all attempts until then, if a `ModelCall` gives the answer.
    """

    text: str = ""
    reasoning: list[Reasoning] = []
    calls: list[ToolCall] = []
    unfinished: list[ToolCall] = []
    usage: Usage = Usage()
    reason: FinishReason | None = None
    detail: str = ""
    model: str = ""
    attempts: int = 0
    status: Literal["complete", "partial"] = "partial"

    @property
    def message(self) -> AssistantMessage:
        """The same as a message of the history. Each of its calls needs a result, even if it was never started."""
        return AssistantMessage(self.text, self.calls, self.reasoning)


class AnswerBuilder:
    """The answer of one request while its attempts are made. Reading it is safe from any thread, at any time.

    The answer is that of the newest attempt that has said anything: what was shown of a broken attempt is kept until
    something replaces it, also if that never comes.
    """

    __slots__ = ("_attempt", "_previous")

    def __init__(self, model: str = "") -> None:
        self._attempt = _Attempt(model, 0)
        self._previous: _Attempt | None = None  # the newest one before it that has said anything

    def start_attempt(self, model: str, attempt: int) -> None:
        """Begin attempt number *attempt*, by *model*."""
        if not self._attempt.is_empty:
            self._previous = self._attempt  # before the next line: a reader in another thread finds it in one of them
        self._attempt = _Attempt(model, attempt)

    def take(self, event: ModelEvent) -> None:
        """Add one event of the running attempt."""
        self._attempt.take(event)

    @property
    def model(self) -> str:
        """The model of the running attempt."""
        return self._attempt.model

    @property
    def attempt(self) -> int:
        """The number of the running attempt; 0 before the first."""
        return self._attempt.number

    @property
    def pieces(self) -> Sequence[str]:
        """The text of the answer so far, in pieces. The list is only ever appended to."""
        attempt, previous = self._attempt, self._previous
        return (previous if attempt.is_empty and previous is not None else attempt).text

    @property
    def attempt_text(self) -> str:
        """The text of the running attempt alone."""
        return "".join(self._attempt.text)

    @property
    def is_complete(self) -> bool:
        """Whether the model has finished."""
        return self._attempt.is_complete

    def attempt_answer(self) -> Answer:
        """The answer of the running attempt alone."""
        return self._attempt.answer()

    def answer(self) -> Answer:
        """The answer so far."""
        attempt, previous = self._attempt, self._previous
        return (previous if attempt.is_empty and previous is not None else attempt).answer()


class _Attempt:
    """One attempt's answer while it is being written."""

    __slots__ = (
        "_at_call",
        "_calls",
        "_finished",
        "_open",
        "_reasoning",
        "_thinking",
        "_usage",
        "model",
        "number",
        "text",
    )

    def __init__(self, model: str, number: int) -> None:
        self.model = model
        self.number = number
        self.text: list[str] = []
        self._thinking: list[str] = []
        self._reasoning: list[Reasoning] = []
        self._calls: dict[int, ToolCall] = {}
        self._open: dict[int, tuple[ToolCallStarted, list[str]]] = {}
        self._at_call = -1  # number of text pieces when the last call ended
        self._usage = Usage()
        self._finished: Finished | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the model has finished."""
        return self._finished is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come that could be shown or kept."""
        return not (self.text or self._thinking or self._reasoning or self._open or self._calls or self._finished)

    def take(self, event: ModelEvent) -> None:
        """Add one event."""
        kind = event.__class__
        if kind is TextDelta:
            self.text.append(event.text)  # type: ignore[union-attr]  # compared by class: isinstance is slower
        elif kind is ReasoningDelta:
            self._thinking.append(event.text)  # type: ignore[union-attr]
        else:
            self._take_rare(event)

    def _take_rare(self, event: ModelEvent) -> None:
        if isinstance(event, ToolCallDelta):
            if event.index in self._open:
                self._open[event.index][1].append(event.arguments)
        elif isinstance(event, ToolCallStarted):
            self._open[event.index] = (event, [])
        elif isinstance(event, ToolCallDone):
            # In this order, so that a reader in another thread finds the call in at least one of the two.
            self._calls[event.index] = event.call
            self._open.pop(event.index, None)
            self._at_call = len(self.text)
        elif isinstance(event, ReasoningDone):
            self._reasoning.append(event.reasoning)
            self._thinking.clear()
        elif isinstance(event, Usage):
            self._usage = event
        elif isinstance(event, Finished):
            self._finished = event

    def answer(self) -> Answer:
        """What there is."""
        finished = self._finished
        thinking = "".join(self._thinking)
        # Most have no calls, and a stop waits for this.
        calls, unfinished = self._split_calls(finished) if self._open or self._calls else ([], [])
        return Answer(
            text="".join(self.text),
            reasoning=[*self._reasoning, *([Reasoning(thinking)] if thinking else [])],
            calls=calls,
            unfinished=unfinished,
            usage=self._usage,
            reason=finished.reason if finished else None,
            detail=finished.detail if finished else "",
            model=(finished.model if finished else "") or self.model,
            attempts=self.number,
            status="complete" if finished else "partial",
        )

    def _split_calls(self, finished: Finished | None) -> tuple[list[ToolCall], list[ToolCall]]:
        """The complete calls, and the others."""
        begun = [item for item in list(self._open.items()) if item[0] not in self._calls]
        calls = [call for _, call in sorted(self._calls.items())]
        unfinished = [ToolCall(start.id, start.name, "".join(pieces)) for _, (start, pieces) in begun]
        if finished and finished.reason in _TRUNCATED and calls and self._at_call == len(self.text):
            # Nothing came after the last call, so it is where the answer was truncated.
            unfinished.insert(0, calls.pop())
        return calls, unfinished
