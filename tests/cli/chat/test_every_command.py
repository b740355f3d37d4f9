"""Every command and every key of the chat, driven once in a real terminal. A new one without a row here fails."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from halter.cli.chat.input_line.key_bindings import make_keys
from halter.cli.chat.slash_commands import COMMANDS, KEY_HELP
from halter.testing import FakeProvider, answer, hang_mid_stream
from tests.support.chat_screen import (
    ALT_ENTER,
    ALT_UP,
    CTRL_C,
    CTRL_D,
    CTRL_O,
    CTRL_R,
    CTRL_U,
    ENTER,
    ESC,
    TAB,
    ChatScreen,
)
from tests.support.cli_program import Home


class Row(NamedTuple):
    """A line to type after one turn, and what comes of it; in an order in which one does not hide the next."""

    line: str
    shown: tuple[str, ...]


COMMAND_ROWS = (
    Row("/help", ("Ctrl+O           show the full output", "/quit")),
    Row("/tools", ("launch               Launch something.",)),
    Row("/model", ("using test; to change it: /model openai:NAME",)),
    Row("/model nonsense", ("/model: there is no model named 'nonsense'",)),
    Row("/mcp", ("no MCP servers; add one with `halter mcp add",)),
    Row("/context", ("next request: about", "estimated: 2 messages")),
    Row("/cost", ("turn     ", "session  ")),
    Row("/why", ("no turn of this session was stopped",)),
    Row("/diff", ("the last turn changed no files",)),
    Row("/redo", ("no file changes to redo",)),
    Row("/init", ("the model cannot write files: it has no write_file tool",)),
    Row("/sessions", ("FIRST MESSAGE", "Hello.")),
    Row("/resume", ("FIRST MESSAGE", "Hello.")),
    Row("/resume nothing", ("there is no session 'nothing'",)),
    Row("/theme", ("the colours are for a dark background",)),
    Row("/theme light", ("the colours are for a light background",)),
    Row("/theme pink", ("usage: /theme dark or /theme light",)),
    Row("/busy", ("a message is sent into it (busy = steer)",)),
    Row("/busy queue", ("a message waits until it ends (busy = queue)",)),
    Row("/busy never", ("usage: /busy steer, /busy interrupt or /busy queue; not 'never'",)),
    Row("/queue", ("no messages are queued",)),
    Row("/steer", ("usage: /steer TEXT",)),
    Row("/stop", ("nothing is running",)),
    Row("/stop step", ("nothing is running",)),
    Row("/stop later", ("usage: /stop or /stop step",)),
    Row("/export EXPORTED", ("2 messages written to",)),
    Row("/compact", ("the context is compacted before the next request, if there is anything to compact",)),
    Row("/retry", ("the turn was removed from the conversation", "Answer 2.")),
    Row("/undo everything", ("usage: /undo, /undo files or /undo keep",)),
    Row("/undo", ("> Hello.",)),
    Row("/rollback", ("no turn to remove",)),
    Row("/new", ("New session.",)),
    Row("/stpo", ("unknown command /stpo; did you mean /stop",)),
    Row("/quit", ("Shutting down…",)),
)


def test_every_command(home: Home, provider: FakeProvider) -> None:
    """Each command does what its help says, or says why not, in a chat with one turn."""
    provider.script(answer("Answer 1."), answer("Answer 2."))
    with ChatScreen(home, rows=60, columns=110) as chat:
        chat.wait_ready()
        chat.send("Hello.")
        chat.wait_for("Answer 1.")
        chat.wait_ready()
        for row in COMMAND_ROWS:
            seen = len(chat.text)
            line = row.line.replace("EXPORTED", str(home.path / "talk.md"))
            chat.type(CTRL_U)
            chat.send(line)
            chat.wait(
                lambda seen=seen, row=row: all(
                    each in chat.text[min(seen, len(chat.text)) - 400 :] for each in row.shown
                ),
                row,
            )
        assert chat.end() == 0
    assert "Answer 1." in (home.path / "talk.md").read_text()


def test_every_command_has_a_row() -> None:
    """A command that is added to the chat is driven above, too."""
    assert {row.line.split()[0][1:] for row in COMMAND_ROWS} - {"stpo"} == set(COMMANDS)


def press_enter(chat: ChatScreen, provider: FakeProvider) -> None:
    provider.script(answer("Answer 1."))
    chat.send("Hello.")
    chat.wait_for("» Hello.", "Answer 1.")
    chat.wait_ready()


def press_alt_enter(chat: ChatScreen, provider: FakeProvider) -> None:
    provider.script(hang_mid_stream(1, text="Once upon a time"))
    chat.send("A story.")
    chat.wait_for("Once upon a")
    chat.type("and more")
    chat.wait_for_line("> and more")
    chat.type(ALT_ENTER)
    chat.wait_for("queued    and more")


def press_alt_up(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.type(ALT_UP)
    chat.wait_for_line("> and more")
    chat.type(", please")
    chat.wait_for_line("> and more, please")
    chat.type(ENTER)
    chat.wait_for("queued    and more, please")


def press_esc(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.type(ESC)
    chat.wait_for("■ stopped in", "held      and more, please")
    chat.wait_ready()


def press_ctrl_c(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.type("half a thought")
    chat.wait_for_line("> half a thought")
    chat.type(CTRL_C)
    chat.wait_notice("line cleared; press Up to get it back")


def press_tab(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.type("/qui" + TAB)
    chat.wait_for_line("> /quit")
    chat.type(CTRL_U)


def type_path(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.type("@mytoo" + TAB)
    chat.wait_for_line("@mytools.py")
    chat.type(CTRL_U)


def type_command(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.send("!echo won | tr o i")
    chat.wait_for("win\n", "its output will be sent with your next message")


def type_note(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.send("#use tabs")
    chat.wait_for_match(r":\s+use\s+tabs")  # the path before it may be long


def press_ctrl_o(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.type(CTRL_O)
    chat.wait_notice("no further tool output to show")


def press_ctrl_r(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.type(CTRL_R + "stor")
    chat.wait_for("search your input")
    chat.wait_for("A story.")
    chat.type(ENTER)
    chat.wait_for_line("> A story.")
    chat.type(CTRL_U)


def press_backslash_enter(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.type("first\\" + ENTER + "second")
    chat.wait_for("> first\n  second")
    chat.type(CTRL_C)


def press_ctrl_d(chat: ChatScreen, _provider: FakeProvider) -> None:
    chat.wait_gone("second")
    chat.type(CTRL_D)
    assert chat.end() == 0


KEY_ROWS: dict[str, Callable[[ChatScreen, FakeProvider], None]] = {
    "Enter": press_enter,
    "Alt+Enter": press_alt_enter,
    "Alt+Up": press_alt_up,
    "Esc": press_esc,
    "Ctrl+C": press_ctrl_c,
    "Tab": press_tab,
    "@PATH": type_path,
    "!COMMAND": type_command,
    "#NOTE": type_note,
    "Ctrl+O": press_ctrl_o,
    "Ctrl+R": press_ctrl_r,
    "\\ Enter": press_backslash_enter,
    "Ctrl+D": press_ctrl_d,
}
BOUND = {
    ("c-m",): "Enter",
    ("escape", "c-m"): "Alt+Enter",
    ("escape", "up"): "Alt+Up",
    ("escape",): "Esc",
    ("c-c",): "Ctrl+C",
    ("c-i",): "Tab",
    ("c-o",): "Ctrl+O",
    ("c-d",): "Ctrl+D",
}


def test_every_key(home: Home, provider: FakeProvider) -> None:
    """Each key and each beginning of a line does what /help says of it."""
    home.launcher = ["env", "-C", str(home.path)]
    home.env["SHELL"] = "/bin/sh"
    with ChatScreen(home, rows=60) as chat:
        chat.wait_ready()
        for press in KEY_ROWS.values():
            press(chat, provider)


def test_every_key_has_a_row() -> None:
    """A key that is bound, or listed by /help, is driven above, too."""
    listed = {key for key, _ in KEY_HELP}
    bound: Any = make_keys(SimpleNamespace(actions=None))  # type: ignore[arg-type]  # only to list them
    assert {tuple(getattr(key, "value", key) for key in each.keys) for each in bound.bindings} == set(BOUND)
    assert set(BOUND.values()) <= listed
    assert set(KEY_ROWS) == listed
