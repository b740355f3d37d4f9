"""The user is called back by a bell and a notice, if nobody watches."""

from __future__ import annotations

import pytest

from halter.models import ToolCall
from halter.testing import FakeProvider, answer, tool_calls
from tests.support.chat_screen import CTRL_D, ENTER, ChatScreen
from tests.support.cli_program import Home

FOCUS_GAINED, FOCUS_LOST = "\x1b[I", "\x1b[O"
DONE = b"\x07\x1b]9;Halter is done\x07\x1b]777;notify;Halter;Halter is done\x07"


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_notice_comes_only_if_nobody_watches(is_watched: bool, home: Home, provider: FakeProvider) -> None:
    """With the terminal in the background, an approval and the end of the turn are announced; else neither."""
    provider.script(tool_calls([ToolCall("1", "launch", '{"what": "rocket"}')]), answer("Launched."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        assert b"\x1b[?1004h" in chat.raw
        chat.send("Go.")
        chat.type(FOCUS_LOST)
        if is_watched:
            chat.type(FOCUS_GAINED)
        chat.wait_for("y: Allow once")
        chat.type("y")
        chat.wait_for_line("> y")
        chat.type(ENTER)
        chat.wait_for("Launched.")
        chat.wait_ready()
        if not is_watched:
            chat.wait(lambda: DONE in chat.raw, "the notice")
        chat.type(CTRL_D)
        assert chat.end() == 0
    assert (DONE in chat.raw) is not is_watched
    assert b"\x1b[?1004l" in chat.raw
