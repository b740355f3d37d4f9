"""What a model has answered: an `Answer` at any instant, put together by a `Draft` as the events come.

A tool call is either whole, and then in `calls`, or it is not, and then in `unfinished`, for the record: no code path
leads from there to a tool. A call at which the model ran into its limit counts as unfinished too, even if what there
is of it happens to be valid JSON.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from halter.models.model import (
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

__all__ = ["Answer", "Draft"]

# The provider ended the answer where it was, not where the model would have.
_CUT: Final[frozenset[FinishReason]] = frozenset({"length", "content_filter", "refusal"})


class Answer(Struct, frozen=True, tag="answer"):
    """An answer, or as much of it as there is.

    `status` is `"complete"` once the model has finished, for whatever `reason`; until then, and for ever if the request
    was stopped or broke, it is `"partial"`. `model` is who answered, `attempts` how many were made up to this one.
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
        """The same as a message of the history. Each of its calls wants a result, also if it was never started."""
        return AssistantMessage(self.text, self.calls, self.reasoning)


class Draft:
    """One attempt's answer while it is being written. Reading it is safe from any thread, at any time."""

    __slots__ = (
        "_at_call",
        "_calls",
        "_finished",
        "_open",
        "_reasoning",
        "_thought",
        "_usage",
        "attempt",
        "model",
        "text",
    )

    def __init__(self, model: str, attempt: int) -> None:
        self.model = model
        self.attempt = attempt
        self.text: list[str] = []
        self._thought: list[str] = []
        self._reasoning: list[Reasoning] = []
        self._calls: dict[int, ToolCall] = {}
        self._open: dict[int, tuple[ToolCallStarted, list[str]]] = {}
        self._at_call = -1  # how many pieces of text there were when the last call ended
        self._usage = Usage()
        self._finished: Finished | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the model has finished."""
        return self._finished is not None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come that could be shown."""
        return not (self.text or self._thought or self._reasoning or self._open or self._calls or self._finished)

    def take(self, event: ModelEvent) -> None:
        """Add one event."""
        kind = event.__class__
        if kind is TextDelta:
            self.text.append(event.text)  # type: ignore[union-attr]  # told apart by class: isinstance costs more
        elif kind is ReasoningDelta:
            self._thought.append(event.text)  # type: ignore[union-attr]
        else:
            self._take_rare(event)

    def _take_rare(self, event: ModelEvent) -> None:
        if isinstance(event, ToolCallDelta):
            if event.index in self._open:
                self._open[event.index][1].append(event.arguments)
        elif isinstance(event, ToolCallStarted):
            self._open[event.index] = (event, [])
        elif isinstance(event, ToolCallDone):
            # In this order, so that a reader in another thread finds the call in one of the two at least.
            self._calls[event.index] = event.call
            self._open.pop(event.index, None)
            self._at_call = len(self.text)
        elif isinstance(event, ReasoningDone):
            self._reasoning.append(event.reasoning)
            self._thought.clear()
        elif isinstance(event, Usage):
            self._usage = event
        elif isinstance(event, Finished):
            self._finished = event

    def answer(self) -> Answer:
        """Give what there is."""
        finished = self._finished
        thought = "".join(self._thought)
        # Most have no calls; and a stop waits for this.
        calls, unfinished = self._whole_and_not(finished) if self._open or self._calls else ([], [])
        return Answer(
            text="".join(self.text),
            reasoning=[*self._reasoning, *([Reasoning(thought)] if thought else [])],
            calls=calls,
            unfinished=unfinished,
            usage=self._usage,
            reason=finished.reason if finished else None,
            detail=finished.detail if finished else "",
            model=(finished.model if finished else "") or self.model,
            attempts=self.attempt,
            status="complete" if finished else "partial",
        )

    def _whole_and_not(self, finished: Finished | None) -> tuple[list[ToolCall], list[ToolCall]]:
        begun = [item for item in list(self._open.items()) if item[0] not in self._calls]
        calls = [call for _, call in sorted(self._calls.items())]
        unfinished = [ToolCall(start.id, start.name, "".join(pieces)) for _, (start, pieces) in begun]
        if finished and finished.reason in _CUT and calls and self._at_call == len(self.text):
            # Nothing came after the last call, so it is where the answer was cut.
            unfinished.insert(0, calls.pop())
        return calls, unfinished
