"""Law 7, bounded exit: a session can be closed at any time, and is free for the next owner at once."""

from __future__ import annotations

from tests.support.turn_scenarios import a_close, try_decisions


def test_a_session_can_be_closed_at_any_point() -> None:
    """close() at any point of a turn: the turn is sealed, the lease given back, and whoever opens it next goes on."""
    try_decisions(a_close)
