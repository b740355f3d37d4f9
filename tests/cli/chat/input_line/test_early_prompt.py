"""The prompt that is there before the chat is: what is typed into it, and what becomes of that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.cli.chat.input_line.early_prompt import visible_lines
from halter.testing import FakeProvider, answer
from tests.support.chat_screen import CTRL_C, CTRL_D, ENTER, ChatScreen
from tests.support.cli_program import WAIT, Home
from tests.support.waiting import wait_until

LEFT, BACKSPACE = "\x1b[D", "\x7f"
# Its import lasts until the other end of the pipe was open and is closed again.
SLOW_TOOLS = '''
from halter import tool

open("PIPE.reached", "w").close()
open("PIPE").read()

@tool
def greet() -> str:
    """Greet."""
    return "hello"
'''


class SlowStart:
    """A home whose tools are imported for as long as the test wants."""

    def __init__(self, home: Home, folder: Path) -> None:
        self._pipe = folder / "pipe"
        os.mkfifo(self._pipe)
        self.home = home
        home.env["HALTER_TOOLS"] = f"{home.write_module(SLOW_TOOLS.replace('PIPE', str(self._pipe)))}:greet"

    def go_on(self) -> None:
        self.wait_reached()
        self._pipe.open("w").close()

    def wait_reached(self) -> None:
        """Wait until the import of the tools has begun."""
        wait_until(self._pipe.with_suffix(".reached").exists, WAIT)


@pytest.fixture
def slow(home: Home, tmp_path: Path) -> SlowStart:
    return SlowStart(home, tmp_path)


@pytest.fixture
def chat(slow: SlowStart) -> Iterator[ChatScreen]:
    with ChatScreen(slow.home) as chat:
        chat.wait_for("starting")
        yield chat


def test_a_message_sent_at_once(chat: ChatScreen, slow: SlowStart, provider: FakeProvider) -> None:
    """What is typed while the tools are still imported is shown at once; a line that was sent waits for them, is sent
    with them and once, and what was typed behind it stays in the line.
    """
    provider.script(answer("Hello yourself."))
    chat.type(f"hxx{BACKSPACE}{BACKSPACE}éllo 漢字")
    chat.wait_for("> héllo 漢字")
    assert "Tools:" not in chat.text
    chat.type(f"{ENTER}and more")
    chat.wait_for("> and more", "starting · 1 to be sent")
    assert not provider.requests
    slow.go_on()
    chat.wait_for("Tools: greet", "» héllo 漢字", "Hello yourself.")
    chat.wait_ready()
    chat.wait_for_line("> and more")
    assert "starting" not in chat.text
    (request,) = provider.requests
    assert request.body["messages"][-1]["content"] == "héllo 漢字"
    assert [each["function"]["name"] for each in request.body["tools"]] == ["greet"]


def test_keys_that_are_no_text(chat: ChatScreen, slow: SlowStart) -> None:
    """Keys that the early prompt does not know do what they always do, once the chat is up; a paste stays one line."""
    chat.type(f"abc{LEFT}X")
    chat.paste("one\ntwo")
    chat.wait_for("starting · 1 to be sent")
    slow.go_on()
    chat.wait_ready()
    chat.wait_for("> abXone")
    chat.wait_for_line("  twoc")


def test_a_line_longer_than_the_screen(chat: ChatScreen, slow: SlowStart) -> None:
    """Of a line that does not fit, the early prompt shows the end, and leaves nothing behind."""
    chat.type("漢" * 60 + "end")
    chat.wait_for("漢end")
    slow.go_on()
    chat.wait_ready()
    assert chat.text.count("漢") == 60


def test_leaving_before_it_is_up(chat: ChatScreen, slow: SlowStart) -> None:
    """Ctrl+D on the empty line leaves as soon as the chat is up."""
    chat.type(CTRL_D)
    slow.go_on()
    assert chat.end() == 0


def test_ctrl_c_before_it_is_up(chat: ChatScreen, slow: SlowStart) -> None:
    """Ctrl+C while it starts ends it; what was typed is shown, and nothing of the prompt is left."""
    chat.type("hello")
    chat.wait_for("> hello")
    slow.wait_reached()
    chat.type(CTRL_C)
    chat.wait_for("Shutting down (SIGINT)…")
    slow.go_on()
    assert chat.end() == 130
    assert "Not sent: hello" in chat.text
    assert "starting" not in chat.text
    assert "Traceback" not in chat.text


def test_a_start_that_fails(slow: SlowStart) -> None:
    """If the chat cannot be opened, the error is shown, and what was typed for it."""
    slow.home.env["HALTER_TOOLS"] += ",mytools:missing"
    with ChatScreen(slow.home) as chat:
        chat.wait_for("starting")
        chat.type(f"first{ENTER}second")
        chat.wait_for("> second")
        slow.go_on()
        assert chat.end() == 1
        assert "there is no tool 'mytools:missing'" in chat.text
        assert "Not sent: first" in chat.text
        assert "Not sent: second" in chat.text
        assert "starting" not in chat.text


@pytest.mark.parametrize(
    ("typed", "lines"),
    [
        ("", [""]),
        ("ab\x7fc", ["ac"]),
        ("a\rb\n", ["a", "b", ""]),
        ("\x7f\b", [""]),
        ("a\x1b[Db\x1bOAc\x1b\x01\x1b[", ["abc"]),
    ],
)
def test_visible_lines(typed: str, lines: list[str]) -> None:
    """Of the keys, characters, backspace and Enter are shown; sequences and control characters are not."""
    assert visible_lines(typed) == lines
