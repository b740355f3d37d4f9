"""Going from one session to another, while the one before still does something."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from halter.cancel import ExitGuard
from halter.cli.chat import chat_ui
from halter.cli.chat.chat_ui import ChatUI
from halter.cli.chat.screen.terminal import TerminalDevice
from halter.cli.chat.session_host import SessionHost
from halter.cli.chat.shutdown import Shutdown
from halter.cli.model_choice import ModelChoice
from halter.cli.settings import load
from halter.models import ToolCall
from halter.stores import SQLiteStore
from halter.testing import FakeProvider, answer, tool_calls
from tests.support.chat_screen import ENTER, ChatScreen
from tests.support.cli_program import WAIT, Home
from tests.support.looped import looped
from tests.support.waiting import until, wait_until

SLOW_TO_CLOSE = '''
import pathlib, time
from halter import ToolContext, tool

class SlowToClose:
    def close(self):
        pathlib.Path("{0}/closing").touch()
        while not pathlib.Path("{0}/go").exists():
            time.sleep(0.01)

@tool
def hold(ctx: ToolContext) -> str:
    """Hold."""
    ctx.keep(SlowToClose)
    return "held"

@tool(approval=True)
def launch(what: str) -> str:
    """Launch."""
    return f"launched {{what}}"

tools = [hold, launch]
'''


def test_a_question_while_the_previous_session_is_closed(home: Home, provider: FakeProvider) -> None:
    """The question of a new session was never seen if it came while the previous one was still being closed."""
    home.write_module(SLOW_TO_CLOSE.format(home.path))
    provider.script(tool_calls([ToolCall("1", "hold", "{}")]), answer("First answer."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("First.")
        chat.wait_for("First answer.")
        chat.wait_ready()
        provider.script(tool_calls([ToolCall("2", "launch", '{"what": "rocket"}')]), answer("Second answer."))
        chat.send("/new")
        wait_until((home.path / "closing").exists, WAIT)
        chat.send("Second.")
        chat.wait_state("needs you")
        chat.type("y" + ENTER)
        chat.wait_for("Second answer.")
        (home.path / "go").touch()
        chat.wait_ready()


@looped
async def test_a_switch_between_two_frames(
    tmp_path: Path, provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of the previous session that were not drawn yet came into the new one, which then showed nothing."""
    monkeypatch.setattr(chat_ui, "_FRAME", 1.0)  # the chat draws nothing between the events below
    for name, value in Home(tmp_path, provider).env.items():
        monkeypatch.setenv(name, value)
    other_end, device = pty.openpty()
    with os.fdopen(other_end, "rb"), os.fdopen(device, "w") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stdout", terminal)
        configuration = load({})
        with SQLiteStore(configuration.make_store()) as store:
            host = SessionHost(configuration, ModelChoice("openai:test", ""), store)
            ui = ChatUI(host, TerminalDevice(), Shutdown(ExitGuard(), host), color=False)
            running = asyncio.ensure_future(ui.run([]))
            provider.script(answer("One."), answer("Two."), answer("Three."))
            first = host.session.post("First.")
            await until(lambda: _shows(ui))  # from here on it pauses
            await first.settled_async()
            await host.session.post("Second.").settled_async()
            previous = await host.switch(None)
            ui.show_session()
            await host.close_previous(previous)
            host.post("Third.")
            await until(lambda: _shows(ui, "Three."))
            assert [turn.text for turn in ui.transcript.display.turns] == ["Three."]
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            host.session.close()


async def _shows(ui: ChatUI, text: str | None = None) -> bool:
    """Whether a turn is shown, and the last one has this text."""
    turns = ui.transcript.display.turns
    return bool(turns) and text in (None, turns[-1].text)


def test_a_switch_while_the_output_is_not_read(home: Home, provider: FakeProvider) -> None:
    """Without a terminal, the answers of the new session were lost if the previous one was not written yet."""
    text = "".join(f"line {number:06}\n" for number in range(15_000))  # more than a pipe holds
    chunks = [text[at : at + 6000] for at in range(0, len(text), 6000)]
    provider.script(answer(chunks=chunks), answer(chunks=["Second ", "answer."]))
    with home.start(stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        os.write(program.stdin.fileno(), b"First.\n")
        home.wait_until_sealed()
        os.write(program.stdin.fileno(), b"/new\nSecond.\n")
        provider.wait_for_finish(2, WAIT)
        out, _ = program.communicate(timeout=WAIT)
    expected = f"{text}Second answer.\n"
    assert (program.returncode, out[-20:].decode()) == (0, expected[-20:])
    assert out.decode() == expected, len(out)
