"""Outcomes: written down, read back, and told to the model."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from halter.models import Image, Text
from halter.tools import LateEnd, ToolOutcome
from halter.tools.outcome import _REASONS, Status

STATUSES: tuple[Status, ...] = get_args(Status)


def told(status: Status, **fields: Any) -> str:
    return ToolOutcome(call_id="c", name="f", status=status, **fields).to_message().text


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("content", ["", "some", [Text("some"), Image(b"x")]])
def test_every_status_is_told(status: Status, content: Any) -> None:
    """Every outcome has a message with words in it, its content first, and survives being written down."""
    outcome = ToolOutcome(call_id="c", name="f", status=status, content=content, reason="interrupt")
    message = outcome.to_message()
    assert (message.call_id, message.name) == ("c", "f")
    assert message.text
    assert message.is_error == (status not in ("completed", "partial"))
    if content:
        assert message.parts[0] == Text("some")
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=ToolOutcome) == outcome


def test_completed_is_just_the_content() -> None:
    """A result is given as it is, and none is said to be none."""
    assert told("completed", content="42") == "42"
    assert told("completed") == "(no output)"


def test_partial_results_are_marked() -> None:
    """What a stopped call gave comes first, and behind it that it is not all."""
    assert told("partial", content="page 1", reason="steer") == (
        "page 1\n[This call was stopped because the user gave new guidance before it was done. "
        "Its output until then is above.]"
    )


def test_abandoned_says_that_nobody_knows() -> None:
    """An abandoned call is not reported as skipped: it may still have effects."""
    assert told("abandoned", reason="interrupt") == (
        "This call was stopped because the user interrupted and did not end in time; it may still have effects."
    )


def test_a_timeout_that_left_something_behind() -> None:
    """A call whose time was over and whose thread went on says both."""
    text = told("timed_out", reason="timeout", detail="it timed out after 5 s", stop_steps=["cut", "abandoned"])
    assert "it timed out after 5 s" in text
    assert "may still have effects" in text
    assert "may still" not in told("timed_out", reason="timeout", stop_steps=["cooperated"])


@pytest.mark.parametrize("status", ["not_started", "denied"])
def test_what_did_not_start_had_no_effects(status: Status) -> None:
    """Calls that never ran say so, and say nothing of effects that may be there."""
    text = told(status, reason="stop", detail="it was denied")
    assert "not started" in text
    assert "may still" not in text


def test_failures_carry_their_error() -> None:
    """The model reads what went wrong, and what there was before it."""
    assert told("failed", detail="ValueError: no") == "This call failed: ValueError: no"
    assert told("failed", detail="no", content="half").startswith("half\n[This call failed: no.")


@pytest.mark.parametrize("reason", [*_REASONS, "quota", None])
def test_reasons_read_as_sentences(reason: str | None) -> None:
    """Every reason of ours, one of a user's own, and none at all make a sentence."""
    text = told("cancelled", reason=reason)
    assert "None" not in text
    assert "  " not in text
    assert "stopped." not in text


def test_a_late_end_is_news_not_history() -> None:
    """A late end leaves the message as it was sent, and is told as what it is."""
    outcome = ToolOutcome(call_id="c", name="f", status="abandoned", reason="stop", stop_steps=["abandoned"])
    before = outcome.to_message()
    assert outcome.may_go_on
    assert outcome.late_note() == ""
    outcome.late = LateEnd(ended_at=1.0, seconds=2.04, content="written")
    assert outcome.to_message() == before
    assert not outcome.may_go_on
    assert "2.0 s after the stop" in outcome.late_note()
    assert outcome.late_note().endswith("written")
    outcome.late = LateEnd(ended_at=1.0, seconds=2.0, error="OSError: disk")
    assert "OSError: disk" in outcome.late_note()
    outcome.late = LateEnd(ended_at=1.0, seconds=2.0, content=[Text("a"), Image(b"")])
    assert outcome.late_note().endswith("a")
    outcome.late = LateEnd(ended_at=1.0, seconds=2.0)
    assert "nothing" in outcome.late_note()
