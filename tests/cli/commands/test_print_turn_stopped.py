"""Print mode when it is stopped: at its start, in the middle and at its end, by a person, a program or its reader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from halter.events import MessageAccepted, TurnFinished, TurnStopping
from halter.events.requests import RequestCancelled
from halter.models import ToolCall
from halter.testing import FakeProvider, answer, hang_before_first_byte, hang_mid_stream, slow_stream, tool_calls
from tests.support.cli_program import (
    WAIT,
    Home,
    OnTerminal,
    end,
    read_until,
    wait_until_it_hears,
    without_slow_exit,
)
from tests.support.processes import wait_dead

SIGNALS = [(signal.SIGINT, 130, "interrupt"), (signal.SIGTERM, 143, "shutdown"), (signal.SIGHUP, 129, "shutdown")]


@pytest.mark.parametrize(("number", "code", "reason"), SIGNALS)
def test_stopped_in_the_middle(
    home: Home, provider: FakeProvider, number: signal.Signals, code: int, reason: str
) -> None:
    """A signal ends the turn: the words stay on the screen and in the store, the provider sees the connection close,
    standard error says what happened, and the code is that of the signal.
    """
    provider.script(hang_mid_stream(2, text="Once upon a time there was a"))
    with home.start("-p", "Tell me a story.") as program:
        assert program.stdout is not None
        shown = read_until(program.stdout.fileno(), b"Once upon a time there w")
        ended = end(program, number)
    assert (ended.code, shown.decode() + ended.out) == (code, "Once upon a time there w\n")
    first, second, third = ended.err.splitlines()
    assert first == f"Shutting down ({number.name})…"
    assert second.startswith(f"halter: the turn was stopped ({reason}: {number.name}); the answer so far")
    assert "halter why" in third
    assert "Traceback" not in ended.err
    provider.wait_for_close(1)
    events = home.events()
    stopping, cancelled, finished = [event.data for event in events][-3:]
    assert isinstance(stopping, TurnStopping)
    assert (stopping.reason, stopping.detail, stopping.by) == (reason, number.name, f"signal {number.name}")
    assert isinstance(cancelled, RequestCancelled)
    assert cancelled.answer is not None
    assert cancelled.answer.text == "Once upon a time there w"
    assert isinstance(finished, TurnFinished)
    assert (finished.status, finished.reason) == ("interrupted", reason)


def test_a_stopped_session_goes_on(home: Home, provider: FakeProvider) -> None:
    """The next message in the session has what was said before the stop in front of it."""
    provider.script(hang_mid_stream(1, text="Once upon a "), answer("time."))
    with home.start("-p", "A story.", "--session", "s") as program:
        provider.wait_for_pieces(1, timeout=WAIT)
        assert program.stdout is not None
        read_until(program.stdout.fileno(), b"Once upon a ")
        assert end(program, signal.SIGINT).code == 130
    assert home.run("-p", "Go on.", "--session", "s").out == "time.\n"
    sent = provider.requests[1].body["messages"]
    assert "Once upon a" in str(sent)
    assert sent[-1]["role"] == "user"


def test_stopped_before_the_first_byte(home: Home, provider: FakeProvider) -> None:
    """A stop while the provider has said nothing yet closes the connection, prints nothing and keeps the message."""
    provider.script(hang_before_first_byte())
    with home.start("-p", "Hello?") as program:
        provider.wait_for_request(1, timeout=WAIT)
        ended = end(program, signal.SIGINT)
    assert (ended.code, ended.out) == (130, "")
    assert "the message is saved in session" in ended.err
    provider.wait_for_close(1)
    accepted = home.events()[0].data
    assert isinstance(accepted, MessageAccepted)
    assert accepted.message.text == "Hello?"


@pytest.mark.parametrize(("number", "code", "_reason"), SIGNALS)
def test_stopped_before_it_has_a_text(home: Home, number: signal.Signals, code: int, _reason: str) -> None:
    """A signal while it still waits for its text ends it with the signal's code, and leaves nothing behind."""
    with home.start("-p", stdin=subprocess.PIPE) as program:
        wait_until_it_hears(program)
        program.send_signal(number)
        assert program.wait(WAIT) == code
        ended = end(program)
    assert ended.out == ""
    assert ended.err.splitlines() == [f"Shutting down ({number.name})…"]
    assert not (home.path / "sessions.db").exists()


def test_stopped_at_any_moment_of_its_start(home: Home, provider: FakeProvider) -> None:
    """Ctrl+C at any moment between its first look at signals and the request ends it at once, without a traceback."""
    provider.script(*[hang_before_first_byte()] * 10)
    for step in range(10):
        with home.start("-p", "Hi.") as program:
            wait_until_it_hears(program)
            with pytest.raises(subprocess.TimeoutExpired):
                program.wait(0.03 * step)  # nothing to wait for: each round is another moment
            ended = end(program, signal.SIGINT)
        assert ended.code == 130, ended
        assert ended.out == ""
        assert "Traceback" not in ended.err, ended.err


# Sends SIGINT in the middle of an import, and says at the end whether the import was finished.
SIGNAL_IN_AN_IMPORT = """
import atexit, os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "halter.stores.rows":
            sys.meta_path.remove(self)
            atexit.register(lambda: print("imported" if name in sys.modules else "broken off"))
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
"""


def test_stopped_in_the_middle_of_an_import(home: Home, provider: FakeProvider) -> None:
    """An import is finished before the exit: where the handler raised while msgspec inspected our classes, the process
    crashed, or the exception was lost and the turn ran on.
    """
    (home.path / "sitecustomize.py").write_text(SIGNAL_IN_AN_IMPORT)
    ended = home.run("-p", "Hi.")
    assert (ended.code, ended.out) == (130, "imported\n")
    assert ended.err.splitlines() == ["Shutting down (SIGINT)…"]
    assert not provider.requests


def test_stopped_when_all_is_said_and_nobody_has_read_it(home: Home, provider: FakeProvider) -> None:
    """A reader who does not read holds up neither the turn nor the stop: the turn is done and sealed, and the program
    leaves when it is told to.
    """
    provider.script(answer(chunks=["word " * 100] * 400))  # more than a pipe holds
    with home.start("-p", "Much, please.") as program:
        provider.wait_for_finish(1, timeout=WAIT)
        home.wait_until_sealed()
        program.send_signal(signal.SIGINT)
        assert program.wait(WAIT) == 130
    finished = home.events()[-1].data
    assert isinstance(finished, TurnFinished)
    assert finished.status == "done"


def test_a_closed_pipe_stops_the_turn(home: Home, provider: FakeProvider) -> None:
    """As in `halter -p x | head -1`: when the reader goes, the provider's connection is closed, and nothing is said
    about pipes but why the turn was stopped.
    """
    provider.script(slow_stream(0.005, text="a line\n"))
    with home.start("-p", "Go on for ever.") as program:
        assert program.stdout is not None
        read_until(program.stdout.fileno(), b"a line\n")
        program.stdout.close()
        assert program.wait(WAIT) == 141
        assert program.stderr is not None
        said = program.stderr.read().decode()
    provider.wait_for_close(1)
    assert "the turn was stopped (disconnect: cannot write the output: Broken pipe)" in said
    assert "Traceback" not in said
    assert "BrokenPipeError" not in said
    finished = home.events()[-1].data
    assert isinstance(finished, TurnFinished)
    assert (finished.status, finished.reason) == ("interrupted", "disconnect")


@pytest.mark.parametrize("both", ["", "2>&1"])
def test_with_a_shell_and_head(home: Home, provider: FakeProvider, both: str) -> None:
    """`halter -p x | head -1` prints one line and ends, also if what is said beside the answer goes there, too."""
    provider.script(slow_stream(0.005, text="a line\n"))
    command = f'"$1" -m halter -p x {both} | head -1'
    ended = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable],
        env=home.env,
        capture_output=True,
        timeout=WAIT,
        check=False,
    )
    assert ended.stdout == b"a line\n"
    assert b"Traceback" not in ended.stderr
    assert b"Exception" not in ended.stderr
    provider.wait_for_close(1)


def test_a_stop_ends_what_a_tool_has_started(home: Home, provider: FakeProvider) -> None:
    """Ctrl+C while a tool runs a command: the command is dead when the program has ended, and its call is answered."""
    home.write_module(
        "import os\nfrom halter import run_process, tool\n"
        "@tool\nasync def work() -> str:\n"
        "    'Work.'\n"
        "    result = await run_process('echo $$; exec sleep 1000',\n"
        "        on_output=lambda data: os.write(1, data) if isinstance(data, bytes) else os.write(1, data.encode()))\n"
        "    return str(result.returncode)\n"
    )
    provider.script(tool_calls([ToolCall("1", "work", "{}")]))
    with home.start("-p", "Work.", HALTER_TOOLS="mytools:work") as program:
        assert program.stdout is not None
        pid = int(read_until(program.stdout.fileno(), b"\n"))
        ended = end(program, signal.SIGINT)
    assert ended.code == 130
    wait_dead(pid)
    kinds = [event.kind for event in home.events()]
    assert kinds.index("turn.stopping") < kinds.index("tool.finished") < kinds.index("turn.finished")


# A thread that Python waits for at exit, for ever: what a careless library leaves behind.
WEDGED = (
    "import os, threading, time\n"
    "def wedge() -> str:\n"
    "    'Wedge.'\n"
    "    threading.Thread(target=time.sleep, args=(1000,), daemon=False).start()\n"
    "    os.write(1, b'wedged\\n')\n"
    "    time.sleep(1000)\n"
    "    return ''\n"
)


def test_leaving_is_bounded(home: Home, provider: FakeProvider) -> None:
    """What a tool has left behind holds the program up for exit_timeout at the most; it says so, and the code is 70."""
    home.write_module(WEDGED)
    provider.script(tool_calls([ToolCall("1", "wedge", "{}")]))
    with home.start("-p", "Work.", HALTER_TOOLS="mytools:wedge", HALTER_EXIT_TIMEOUT="4") as program:
        assert program.stdout is not None
        read_until(program.stdout.fileno(), b"wedged\n")
        ended = end(program, signal.SIGINT)
    assert ended.code == 70
    assert "Forced exit after 4 s" in ended.err
    assert home.events()[-1].kind == "turn.finished"


def test_a_second_signal_leaves_at_once(home: Home, provider: FakeProvider) -> None:
    """Ctrl+C again, and it leaves without waiting for what holds it up; the turn was sealed by the first."""
    home.write_module(WEDGED)
    provider.script(tool_calls([ToolCall("1", "wedge", "{}")]))
    with home.start("-p", "Work.", HALTER_TOOLS="mytools:wedge", HALTER_EXIT_TIMEOUT="500") as program:
        assert program.stdout is not None
        assert program.stderr is not None
        read_until(program.stdout.fileno(), b"wedged\n")
        program.send_signal(signal.SIGINT)
        said = read_until(program.stderr.fileno(), b"shows how it ended.").decode()
        ended = end(program, signal.SIGINT)
    assert ended.code == 70
    assert "Forced exit after a second signal" in said + ended.err
    assert home.events()[-1].kind == "turn.finished"


def test_ctrl_c_on_a_terminal(home: Home, provider: FakeProvider) -> None:
    """On a terminal, what is said about the stop begins on a line of its own below the words that were shown."""
    provider.script(hang_mid_stream(1, text="Once upon a "))
    with OnTerminal(home, "-p", "A story.") as terminal:
        terminal.read_until(b"Once upon a ")
        terminal.type(b"\x03")
        assert terminal.end() == 130
    lines = without_slow_exit(terminal.shown.replace(b"^C", b"").decode()).splitlines()
    assert lines[:2] == ["Once upon a ", "Shutting down (SIGINT)…"]
    assert lines[2].startswith("halter: the turn was stopped (interrupt: SIGINT); the answer so far is saved")


def test_killed_without_a_word(home: Home, provider: FakeProvider) -> None:
    """After kill -9 the words that were shown are in the session, which goes on with them."""
    provider.script(hang_mid_stream(1, text="Once upon a "), answer("time."))
    with home.start("-p", "A story.", "--session", "s") as program:
        assert program.stdout is not None
        read_until(program.stdout.fileno(), b"Once upon a ")
        os.kill(program.pid, signal.SIGKILL)
        program.wait(WAIT)
    assert home.run("-p", "Go on.", "--session", "s").out == "time.\n"
    assert "Once upon a" in str(provider.requests[1].body["messages"])
