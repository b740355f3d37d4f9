"""The end of the chat: announced at once, bounded, with an honest code, and nothing lost; however it comes about."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from halter.events import MessageAccepted, TurnFinished, TurnStopping
from halter.models import ToolCall
from halter.testing import FakeProvider, answer, hang_mid_stream, tool_calls
from tests.support.chat_screen import CTRL_C, CTRL_D, ENTER, ChatScreen
from tests.support.cli_program import Home
from tests.support.processes import run_python

# A tool that takes its time to obey, as long as a test needs, and one that stops the whole loop.
SLOW = '''
import asyncio, pathlib, time
from halter import tool


@tool(grace=60)
async def linger() -> str:
    """Take long to end."""
    try:
        print("lingering now")  # so that a test knows that it is in here
        await asyncio.sleep(1000)
    finally:
        while not pathlib.Path("{go}").exists():
            time.sleep(0.005)
    return "done"


tools = [linger]
'''


def say_story(chat: ChatScreen, provider: FakeProvider) -> None:
    provider.script(hang_mid_stream(2, text="Once upon a time there was"))
    chat.wait_ready()
    chat.send("A story.")
    chat.wait_for("Once upon a time there w")


def begin_to_linger(chat: ChatScreen, provider: FakeProvider) -> None:
    provider.script(tool_calls([ToolCall("1", "linger", "{}")]))
    chat.wait_ready()
    chat.send("Go.")
    chat.wait_for("⋯ linger", "lingering now")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal(home: Home, provider: FakeProvider, number: signal.Signals, code: int) -> None:
    """A signal from outside ends it as keys do: the turn is stopped and sealed, the provider sees it, the session is
    named, the terminal is as it was, and the code is that of the signal.
    """
    with ChatScreen(home) as chat:
        say_story(chat, provider)
        chat.program.send_signal(number)
        assert chat.end() == code
        assert f"Shutting down ({number.name})…" in chat.text
        assert "To continue: python -m halter --session" in chat.text
        assert "Traceback" not in chat.text
    provider.wait_for_close(1)
    stopping, finished = home.events()[-3].data, home.events()[-1].data
    assert isinstance(stopping, TurnStopping)
    assert (stopping.reason, stopping.detail) == ("shutdown", number.name)
    assert isinstance(finished, TurnFinished)
    assert (finished.status, finished.reason) == ("interrupted", "shutdown")


def test_the_terminal_is_closed(home: Home, provider: FakeProvider) -> None:
    """Whoever closes the window ends the chat: the turn is stopped and sealed, and nothing is left running."""
    with ChatScreen(home) as chat:
        say_story(chat, provider)
        chat.close()
        assert chat.program.wait(20) == 129
    provider.wait_for_close(1)
    finished = home.events()[-1].data
    assert isinstance(finished, TurnFinished)
    assert (finished.status, finished.reason) == ("interrupted", "shutdown")


def test_the_terminal_is_closed_while_it_is_being_left(home: Home, provider: FakeProvider) -> None:
    """Was a defect: what was being waited for was not waited for any more, and the turn was cut off."""
    go = home.path / "go"
    home.write_module(SLOW.format(go=go))
    with ChatScreen(home, HALTER_EXIT_TIMEOUT="20") as chat:
        begin_to_linger(chat, provider)
        chat.program.send_signal(signal.SIGTERM)
        chat.wait_for("Shutting down (SIGTERM)…", "Shutting down: waiting for")
        chat.wait_state("shutting down")
        chat.close()
        with pytest.raises(subprocess.TimeoutExpired):
            chat.program.wait(0.5)
        go.touch()
        assert chat.program.wait(20) == 143
    finished = home.events()[-1].data
    assert isinstance(finished, TurnFinished)
    assert (finished.status, finished.reason) == ("interrupted", "shutdown")


# Python runs it at its start: the thread of the exit guard is late.
LATE_GUARD = """
import time
from halter.cancel.exit import ExitGuard

report = ExitGuard._report

def report_late(self, text):
    time.sleep(2)
    report(self, text)

ExitGuard._report = report_late
"""


def test_a_signal_is_announced_before_the_chat_ends(home: Home, provider: FakeProvider) -> None:
    """The guard's thread announced it, and could come too late for a chat that had ended by then."""
    (home.path / "sitecustomize.py").write_text(LATE_GUARD)
    with ChatScreen(home) as chat:
        say_story(chat, provider)
        chat.program.send_signal(signal.SIGINT)
        assert chat.end() == 130
        assert chat.text.count("Shutting down (SIGINT)…") == 1


def test_a_wedged_tool_does_not_hold_it_up(home: Home, provider: FakeProvider) -> None:
    """A tool that hears nothing is told as abandoned, and the program is gone long before its deadline."""
    provider.script(tool_calls([ToolCall("1", "wedge", "{}")]))
    with ChatScreen(home, HALTER_EXIT_TIMEOUT="20") as chat:
        chat.wait_ready()
        chat.send("Go.")
        chat.wait_for("⋯ wedge", "wedged now")
        chat.type(CTRL_D)
        began = time.monotonic()
        assert chat.end() == 0
        assert time.monotonic() - began < 10
        assert "wedge · abandoned: it did not end, and may still have effects" in chat.text


# Python runs it at its start: on a busy machine there is time enough to close the session and to end.
LONG_SAVE_TIME = """
from halter.cli.chat import shutdown

shutdown._SAVE_TIME = 20.0
"""


def test_what_stops_the_loop_is_left_behind(home: Home, provider: FakeProvider) -> None:
    """A tool that does not end is not waited for without end: after the deadline the log is sealed, and the exit code
    says that something was left behind.
    """
    home.write_module(SLOW.format(go=home.path / "never"))
    (home.path / "sitecustomize.py").write_text(LONG_SAVE_TIME)
    with ChatScreen(home, HALTER_EXIT_TIMEOUT="21") as chat:  # one second for the turn
        begin_to_linger(chat, provider)
        chat.type(CTRL_D)
        chat.wait_for("Shutting down…", "at most 21 s")
        assert chat.end() == 70
    finished = home.events()[-1].data
    assert isinstance(finished, TurnFinished)
    assert (finished.status, finished.reason) == ("interrupted", "shutdown")


def test_a_third_ctrl_c_leaves_at_once(home: Home, provider: FakeProvider) -> None:
    """Ctrl+C stops, a second one leaves, and a third does not wait: the code is no good one, and the terminal
    is given back in order.
    """
    home.write_module(SLOW.format(go=home.path / "never"))
    with ChatScreen(home, HALTER_EXIT_TIMEOUT="60") as chat:
        begin_to_linger(chat, provider)
        chat.type(CTRL_C)
        chat.wait_notice("stopping")
        chat.type(CTRL_C)
        chat.wait_for("Shutting down…")
        chat.type(CTRL_C)
        began = time.monotonic()
        assert chat.end() == 70
        assert time.monotonic() - began < 10
        assert "Forced exit after a second signal" in chat.text


def test_a_message_during_the_shutdown_is_kept(home: Home, provider: FakeProvider) -> None:
    """What is typed while it shuts down is kept in the session, told at the end, and answered when it goes on."""
    go = home.path / "go"
    home.write_module(SLOW.format(go=go))
    with ChatScreen(home, HALTER_EXIT_TIMEOUT="30") as chat:
        begin_to_linger(chat, provider)
        chat.type(CTRL_D)
        chat.wait_for("Shutting down…")
        chat.send("One more thing.")
        chat.wait_notice("saved for the next run")
        go.touch()
        assert chat.end() == 0
        name = chat.wait_for_match(r"1 message is queued\.\nTo continue: python -m halter --session (\w+)")[1]
    provider.script(answer("Which thing?"))
    with ChatScreen(home, "--session", name) as chat:
        chat.wait_for(f"Session {name}, where you left off", "» Go.", "» One more thing.", "Which thing?")
        chat.wait_ready()
    accepted = [event.data.message.text for event in home.events() if isinstance(event.data, MessageAccepted)]
    assert accepted == ["Go.", "One more thing."]


def test_what_was_typed_and_not_sent_is_told(home: Home, provider: FakeProvider) -> None:
    """Half a message that is in the line when a signal comes is no message; it is shown once more at the end."""
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.type("half a thought")
        chat.wait_for_line("> half a thought")
        chat.program.send_signal(signal.SIGTERM)
        assert chat.end() == 143
        assert "Not sent: half a thought" in chat.text
    assert not home.events()


def test_a_message_when_the_session_is_closed_already_is_kept(tmp_path: Path) -> None:
    """What comes when the session has been let go of is put into it all the same, in order, and counted."""
    program = """
        import asyncio, sys
        from halter.cancel import ExitGuard
        from halter.cli.chat.session_host import SessionHost
        from halter.cli.chat.shutdown import Shutdown
        from halter.cli.model_choice import ModelChoice
        from halter.cli.settings import load
        from halter.stores import SQLiteStore
        configuration = load({"model": "openai:test"}, {"HALTER_HOME": sys.argv[1]})
        with SQLiteStore(configuration.make_store()) as store:
            host = SessionHost(configuration, ModelChoice("openai:test", ""), store, "s")
            host.session.post("first")
            shutdown = Shutdown(ExitGuard(), host)
            late = ["second", "third"]
            asyncio.run(shutdown.end_session("the test", late))
            with host.agent.session("s", store) as again:
                print(late, [message.text for message in again.inbox], *shutdown.lines)
    """
    ended = run_python(program, str(tmp_path))
    told = "Session s is saved. 3 messages are queued. To continue: halter --session s"
    assert ended.stdout == f"[] ['first', 'second', 'third'] {told}\n", ended.stderr


def test_leaving_and_coming_back(home: Home, provider: FakeProvider) -> None:
    """A session that is gone on with shows where it was, its held messages, and the model has what was said."""
    provider.script(hang_mid_stream(1, text="Once upon a "), answer("time there was a horse."))
    with ChatScreen(home, "--session", "story") as chat:
        chat.wait_ready()
        chat.send("A story.")
        chat.wait_for("Once upon a")
        chat.type("And then?\x1b\r")
        chat.wait_for("queued    And then?")
        chat.type("\x1b")
        chat.wait_for("held      And then?")
        chat.type(CTRL_D)
        assert chat.end() == 0
        assert "1 message is queued.\nTo continue: python -m halter --session story\n" in chat.text
    with ChatScreen(home, "--session", "story") as chat:
        chat.wait_for("» A story.", "Once upon a", "held      And then?")
        chat.type(ENTER)
        chat.wait_for("» And then?", "time there was a horse.")
    assert "Once upon a" in str(provider.requests[1].body["messages"])
