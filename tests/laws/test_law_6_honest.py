"""Law 6, honest: every outcome says what happened, and who asked for the stop is on record."""

from __future__ import annotations

from tests.support.turn_scenarios import a_turn, try_decisions


def test_a_pause_cuts_nothing_and_says_so() -> None:
    """stop(when="step") at any point of a turn: each call that runs is completed, and the turn is whole or paused."""
    try_decisions(a_turn(lambda session: session.stop("step"), "pause"))
