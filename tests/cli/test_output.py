"""What others said, on a terminal: nothing of it is obeyed there, whichever way it comes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import sys
import threading

import pytest

from halter.cli.output import Output
from halter.models import ToolCall
from halter.testing import FakeProvider, answer, status, tool_calls
from halter.views.text import escape_controls, make_visible
from tests.support.cli_program import Home, OnTerminal

# Sets the clipboard and the title, clears the screen, opens the other screen; and the same with controls of one byte.
HOSTILE = "a\x1b]52;c;ZXZpbA==\x07b\x1b]0;title\x1b\\c\x1b[2J\x1b[?1049h\x9d52;c;x\x9c\x9b2Jd\x7f"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
ASK = """
from halter import ToolContext, tool

@tool
async def ask(ctx: ToolContext) -> str:
    '''Ask.'''
    return await ctx.ask({question!r}, [{question!r}, "no"])

TOOLS = [ask]
"""


def shown_by(home: Home, *args: str, typed: bytes = b"", wait: bytes = b"", **env: str) -> str:
    """All that the program writes to a terminal."""
    with OnTerminal(home, *args, **env) as terminal:
        if typed:
            terminal.type(typed)
        if wait:
            terminal.read_until(wait)
            terminal.type(b"no\n\x04")
        terminal.end()
        return terminal.shown.decode("utf-8", "replace").replace("\r\n", "\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_and_an_error_of_the_provider(home: Home, provider: FakeProvider, as_json: bool) -> None:
    """An answer, a request that is tried again, and one that fails for good: of all three only the text is shown."""
    provider.script(status(500, HOSTILE, retry_after=0.0), answer(f"An answer {HOSTILE}"))
    flags = ("--json",) if as_json else ()
    first = shown_by(home, "-p", "hi", *flags)
    provider.script(status(400, HOSTILE))
    second = shown_by(home, "-p", "hi", *flags)
    assert "An answer" in first
    assert "52;c;ZXZpbA" in second
    assert not CONTROLS.findall(first + second)


def test_a_question_in_line_mode(home: Home, provider: FakeProvider) -> None:
    """It is on standard error, with its choices."""
    home.write_module(ASK.format(question=HOSTILE))
    provider.script(tool_calls([ToolCall("1", "ask", "{}")]), answer("Well."))
    shown = shown_by(home, typed=b"Go.\n", wait=b"2. no", TERM="dumb", HALTER_TOOLS="mytools:TOOLS")
    assert "Well." in shown
    assert not CONTROLS.findall(shown)


def test_a_warning_of_a_tool(home: Home, provider: FakeProvider) -> None:
    """What is logged goes to standard error as well."""
    home.write_module(
        "import logging\nfrom halter import tool\n\n@tool\ndef shout() -> str:\n    'Shout.'\n"
        f"    logging.getLogger('x').warning({HOSTILE!r})\n    return 'done'\n\nTOOLS = [shout]\n"
    )
    provider.script(tool_calls([ToolCall("1", "shout", "{}")]), answer("Well."))
    shown = shown_by(home, "-p", "hi", HALTER_TOOLS="mytools:TOOLS")
    assert "52;c;ZXZpbA" in shown
    assert not CONTROLS.findall(shown)


def test_json_keeps_its_meaning() -> None:
    """Controls are escapes in it, and what it says is the same."""
    line = json.dumps({"text": HOSTILE + "é ü"}, ensure_ascii=False).encode()
    assert not CONTROLS.findall(escape_controls(line).decode())
    assert json.loads(escape_controls(line)) == {"text": HOSTILE + "é ü"}


def test_what_cannot_be_seen_is_made_visible() -> None:
    """Ordinary text stays as it is, in any script."""
    assert make_visible("grüße, שלום, 日本語 🙂") == "grüße, שלום, 日本語 🙂"
    assert make_visible("a\u202eb\x1b\u200b\U000e0041") == r"a\u202eb\x1b\u200b\U000e0041"


def test_a_message_never_goes_on_with_the_line_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that another thread prints as soon as a word is on the screen begins a line of its own."""
    monkeypatch.setattr("halter.cli.output._WRITE_TIMEOUT", 30.0)
    main, terminal = pty.openpty()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, main)
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, stack.enter_context(open(os.dup(terminal), "w", encoding="utf-8")))
        os.close(terminal)
        output = Output()
        interval = sys.getswitchinterval()
        stack.callback(sys.setswitchinterval, interval)
        sys.setswitchinterval(1e-6)  # the threads alternate as often as they can
        for _ in range(300):
            writer = threading.Thread(target=output.write, args=("word",))
            writer.start()
            shown = os.read(main, 100)  # in the moment in which it is on the screen
            output.say("message")
            writer.join()
            output.end_line()
            output.write("end\n")
            while not shown.endswith(b"end\r\n"):
                shown += os.read(main, 100)
            assert shown == b"word\r\nmessage\r\nend\r\n"
