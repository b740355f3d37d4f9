"""Notifies the user, by BEL and a desktop notification, when a question is open or a turn has ended.

Only if the terminal does not have the focus, which most terminals report, or the turn took long. Terminals that support
neither OSC 9 nor OSC 777 ignore them.
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

    from halter.cli.chat.screen.terminal import TerminalDevice
    from halter.cli.chat.screen.transcript import ChatTranscript
    from halter.events import Event

__all__ = ["REPORT_FOCUS", "REPORT_NO_FOCUS", "Attention"]

REPORT_FOCUS: Final = b"\x1b[?1004h"
REPORT_NO_FOCUS: Final = b"\x1b[?1004l"
_LONG_TURN: Final = 30.0  # seconds after which the user may have turned to something else
# prompt_toolkit parses the reports as keys: these are on no keyboard.
_FOCUS_GAINED, _FOCUS_LOST = Keys.F23, Keys.F24


class Attention:
    """Tracks the focus of the terminal, and notifies the user."""

    def __init__(self, terminal: TerminalDevice) -> None:
        self._terminal = terminal
        self._has_focus = True  # until the terminal reports otherwise

    def bind(self, keys: KeyBindings) -> None:
        """Handle the terminal's reports, which arrive as keys."""
        ANSI_SEQUENCES["\x1b[I"], ANSI_SEQUENCES["\x1b[O"] = _FOCUS_GAINED, _FOCUS_LOST

        @keys.add(_FOCUS_GAINED)
        def gained(_event: KeyPressEvent) -> None:
            self._has_focus = True

        @keys.add(_FOCUS_LOST)
        def lost(_event: KeyPressEvent) -> None:
            self._has_focus = False

    def notify(self, event: Event, transcript: ChatTranscript) -> None:
        """Notify the user if this event needs them and they may not be watching. *transcript* has the event already."""
        data = event.data
        if isinstance(data, (ApprovalAsked, QuestionAsked)):
            text = "needs you"
        elif isinstance(data, TurnFinished):
            text = "is done" if data.status == "done" else f"has ended: {data.status}"
        else:
            return
        turns = transcript.display.turns
        took = time.time() - turns[-1].started if turns else 0.0
        if not self._has_focus or took >= _LONG_TURN:
            self._terminal.write(_notice(f"Halter {text}"))


def _notice(text: str) -> bytes:
    """BEL, and the notification in both forms that terminals support."""
    line = single_line(text)
    return f"\x07\x1b]9;{line}\x07\x1b]777;notify;Halter;{line}\x07".encode()
