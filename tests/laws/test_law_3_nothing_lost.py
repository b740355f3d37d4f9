"""Law 3, nothing lost: a message that was accepted is applied exactly once, or is still in the inbox."""

from __future__ import annotations

from tests.laws.turns import a_turn, try_everywhere


def test_a_message_that_interrupts_is_never_lost() -> None:
    """interrupt(text) at any point of a turn: the turn stops if it ran, and the text is in the next turn, once."""
    try_everywhere(a_turn(lambda session: session.interrupt("something else"), "interrupt"))
