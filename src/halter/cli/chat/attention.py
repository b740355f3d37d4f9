"""Calls the user back to the terminal: BEL and a desktop notice, if the chat needs them or is done meanwhile.

Only if the terminal is not in front, which most terminals report, or the turn has taken long. Terminals that know
neither OSC 9 nor OSC 777 show nothing of them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.keys import Keys

from halter.events import ApprovalAsked, QuestionAsked, TurnFinished
from halter.views.text import single_line

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.key_binding.key_processor import KeyPressEvent

    from halter.cli.chat.terminal import Terminal
    from halter.cli.chat.transcript import Transcript
    from halter.events import Event

__all__ = ["REPORT_FOCUS", "REPORT_NO_FOCUS", "Attention"]

REPORT_FOCUS: Final = b"\x1b[?1004h"
REPORT_NO_FOCUS: Final = b"\x1b[?1004l"
_LONG: Final = 30.0  # seconds of a turn after which nobody may be watching
# Keys that no keyboard has stand for the reports.
_GAINED, _LOST = Keys.F23, Keys.F24


class Attention:
    """Whether somebody watches, and how to call them."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._is_in_front = True  # until the terminal says otherwise

    def bind(self, keys: KeyBindings) -> None:
        """Take the terminal's reports, which come like keys."""
        ANSI_SEQUENCES["\x1b[I"], ANSI_SEQUENCES["\x1b[O"] = _GAINED, _LOST

        @keys.add(_GAINED)
        def gained(_event: KeyPressEvent) -> None:
            self._is_in_front = True

        @keys.add(_LOST)
        def lost(_event: KeyPressEvent) -> None:
            self._is_in_front = False

    def take(self, event: Event, transcript: Transcript) -> None:
        """Call the user if this event is for them and they may not watch. *transcript* has the event already."""
        data = event.data
        if isinstance(data, (ApprovalAsked, QuestionAsked)):
            text = "needs you"
        elif isinstance(data, TurnFinished):
            text = "is done" if data.status == "done" else f"has ended: {data.status}"
        else:
            return
        turns = transcript.display.turns
        took = time.time() - turns[-1].started if turns else 0.0
        if not self._is_in_front or took >= _LONG:
            self._terminal.say(_notice(f"Halter {text}"))


def _notice(text: str) -> bytes:
    """BEL, and the notice in both of the forms that terminals know."""
    line = single_line(text)
    return f"\x07\x1b]9;{line}\x07\x1b]777;notify;Halter;{line}\x07".encode()
