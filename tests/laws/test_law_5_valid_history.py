"""Law 5, valid history: at every instant the conversation can be sent to every provider."""

from __future__ import annotations

from tests.support.stopped_turn import STEER
from tests.support.turn_scenarios import a_turn, try_decisions


def test_a_steer_never_breaks_the_history() -> None:
    """steer(text) at any point of a turn: each call has one result, the text comes as the user's, the turn goes on."""
    try_decisions(a_turn(lambda session: session.steer(STEER), "steer"))
