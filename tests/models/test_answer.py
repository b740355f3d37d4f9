"""The answer while it is built: what was shown is kept until something replaces it."""

from __future__ import annotations

import pytest

from halter.models import ToolCall, Usage
from halter.models.answer import AnswerBuilder
from halter.models.types import (
    Finished,
    ModelEvent,
    Reasoning,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
)

CALL = ToolCall("c1", "look", '{"at": 1}')


def test_before_the_first_attempt_there_is_an_empty_answer() -> None:
    """It names the model that is going to be asked."""
    answer = AnswerBuilder("m").answer()
    assert (answer.model, answer.attempts, answer.text, answer.status) == ("m", 0, "", "partial")


@pytest.mark.parametrize(
    "event",
    [TextDelta("b"), ReasoningDelta("hm"), ToolCallStarted(0, "c", "look"), ToolCallDone(0, CALL), Finished("stop")],
)
def test_a_broken_attempt_is_kept_until_the_next_one_says_anything(event: ModelEvent) -> None:
    """Two broken attempts in a row that say nothing change nothing either."""
    builder = AnswerBuilder()
    builder.start_attempt("one", 1)
    builder.take(TextDelta("shown"))
    for number in (2, 3):
        builder.start_attempt("other", number)
        builder.take(Usage(3, 0))
        assert (builder.answer().text, builder.answer().model, builder.answer().attempts) == ("shown", "one", 1)
    assert builder.attempt_text == ""
    builder.take(event)
    answer = builder.answer()
    assert (answer.model, answer.attempts) == ("other", 3)
    assert "shown" not in answer.text


def test_a_call_is_complete_or_unfinished() -> None:
    """Pieces of a call are kept for the record; a call at which the answer was cut counts as unfinished."""
    builder = AnswerBuilder()
    builder.start_attempt("m", 1)
    for event in (TextDelta("a"), ReasoningDelta("hm"), ToolCallStarted(0, "c1", "look"), ToolCallDelta(0, '{"at"')):
        builder.take(event)
    answer = builder.answer()
    assert (answer.calls, answer.unfinished) == ([], [ToolCall("c1", "look", '{"at"')])
    assert answer.reasoning == [Reasoning("hm")]
    builder.take(ToolCallDone(0, CALL))
    assert (builder.answer().calls, builder.answer().unfinished) == ([CALL], [])
    assert not builder.is_complete
    builder.take(Finished("length"))
    assert builder.is_complete
    assert (builder.answer().calls, builder.answer().unfinished) == ([], [CALL])
