"""Law 3, nothing lost, for answers: what `answer()` has accepted is in the log, and the model is told of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from halter import Session
from halter.testing import interrupt_everywhere
from tests.support.question_scenarios import answered_then, stopped_then_answered
from tests.support.stopped_turn import STEER, nothing_is_left
from tests.support.turn_scenarios import is_near_a_decision

WAYS: dict[str, Callable[[Session], object]] = {
    "stop": lambda session: session.stop(),
    "interrupt": lambda session: session.interrupt("something else"),
    "steer": lambda session: session.steer(STEER),
}


@pytest.mark.parametrize("way", ["stop", "interrupt", "steer"])
def test_a_stop_at_any_point_of_an_answer(way: str) -> None:
    """Wherever a stop meets an answer, one of them comes first, and answer() says the truth."""
    report = interrupt_everywhere(answered_then(WAYS[way]), check=nothing_is_left, repeat=1, only=is_near_a_decision)
    assert len(report.points) > 150
    assert len(report.missed) < len(report.points) / 10


@pytest.mark.parametrize("way", ["stop", "interrupt"])
def test_an_answer_at_any_point_of_a_stop(way: str) -> None:
    """Wherever an answer from another thread meets a stop, one of them comes first, and answer() says the truth."""
    report = interrupt_everywhere(
        stopped_then_answered(WAYS[way]), check=nothing_is_left, repeat=1, only=is_near_a_decision
    )
    assert len(report.points) > 150
    assert len(report.missed) < len(report.points) / 10
