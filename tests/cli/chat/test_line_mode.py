"""The chat without a terminal: plain lines in, plain text out."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from halter.events import MessageAccepted, TurnFinished
from halter.events.tools import ApprovalAnswered
from halter.models import ToolCall
from halter.testing import FakeProvider, answer, hang_mid_stream, slow_stream, status, tool_calls
from tests.support.cli_program import WAIT, Home, end, read_until


def test_each_line_is_a_message(home: Home, provider: FakeProvider) -> None:
    """Lines are answered in order, as plain text without colour; commands work; the end of the input is the end, after
    the last answer.
    """
    provider.script(answer("**One.**"), answer("Two."))
    ended = home.run(stdin="first\n/busy\n/nonsense\nsecond")
    assert ended.code == 0
    assert ended.out == "**One.**\nTwo.\n"
    assert "(busy = queue)" in ended.err
    assert "unknown command /nonsense" in ended.err
    assert "To continue: python -m halter --session" in ended.err
    assert "\x1b" not in ended.out + ended.err
    accepted = [event.data.message.text for event in home.events() if isinstance(event.data, MessageAccepted)]
    assert accepted == ["first", "second"]


def test_nothing_in_nothing_out(home: Home) -> None:
    """No line at all: nothing is said, and no session is kept."""
    assert home.run(stdin="") == (0, "", "")


def test_a_failure_is_in_the_code(home: Home, provider: FakeProvider) -> None:
    """If the last turn failed, the code is 1, and standard error says why."""
    provider.script(status(400, "no such thing"))
    ended = home.run(stdin="Hello.\n")
    assert (ended.code, ended.out) == (1, "")
    assert "no such thing" in ended.err


def test_steering_and_stopping_by_lines(home: Home, provider: FakeProvider) -> None:
    """/steer reaches the running turn and /stop stops it, as they do on a terminal."""
    provider.script(hang_mid_stream(1, text="Once upon a "), hang_mid_stream(1, text="Ahoy, there "))
    with home.start(stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        os.write(program.stdin.fileno(), b"A story.\n")
        read_until(program.stdout.fileno(), b"Once upon a ")
        os.write(program.stdin.fileno(), b"/steer Like a pirate.\n")
        read_until(program.stdout.fileno(), b"Ahoy, there ")
        os.write(program.stdin.fileno(), b"/stop\n")
        ended = end(program)
    assert ended.code == 0
    assert "steered, interrupted the answer" in ended.err
    assert "stopped in" in ended.err


def test_a_question_is_answered_by_the_next_line(home: Home, provider: FakeProvider) -> None:
    """What a tool asks is on standard error, and the next line is the answer; with no line left, it is withdrawn."""
    provider.script(tool_calls([ToolCall("1", "ask", "{}")]), answer("Blue it is."))
    with home.start(stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stderr is not None
        os.write(program.stdin.fileno(), b"Paint.\n")
        read_until(program.stderr.fileno(), b"  2. blue\n")
        os.write(program.stdin.fileno(), b"2\n")
        ended = end(program)
    assert (ended.code, ended.out) == (0, "Blue it is.\n")
    provider.script(tool_calls([ToolCall("1", "ask", "{}")]))
    ended = home.run(stdin="Paint.\n")
    assert ended.code == 0
    assert "Which colour? · withdrawn" in ended.err


def test_nobody_can_be_asked_for_approval(home: Home, provider: FakeProvider) -> None:
    """Lines that were written beforehand allow nothing: a call that needs approval is denied."""
    provider.script(tool_calls([ToolCall("1", "launch", '{"what": "rocket"}')]), answer("Not allowed."))
    assert home.run(stdin="Launch.\n").out == "Not allowed.\n"
    granted = [event.data.granted for event in home.events() if isinstance(event.data, ApprovalAnswered)]
    assert granted == [False]


def test_stopped_by_a_signal(home: Home, provider: FakeProvider) -> None:
    """A signal ends it with its code; what was said stays, and the turn is sealed."""
    provider.script(hang_mid_stream(2, text="Once upon a time there was a"))
    with home.start(stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        os.write(program.stdin.fileno(), b"A story.\n")
        shown = read_until(program.stdout.fileno(), b"Once upon a time there w")
        program.send_signal(signal.SIGTERM)
        assert program.wait(WAIT) == 143
        ended = end(program)
    assert shown.decode() + ended.out == "Once upon a time there w\n"
    assert "Shutting down (SIGTERM)…" in ended.err
    finished = home.events()[-1].data
    assert isinstance(finished, TurnFinished)
    assert (finished.status, finished.reason) == ("interrupted", "shutdown")


def test_a_closed_pipe_ends_it(home: Home, provider: FakeProvider) -> None:
    """When whoever reads goes, the turn is stopped and the program ends, without a word about pipes."""
    provider.script(slow_stream(0.005, text="a line\n"))
    with home.start(stdin=subprocess.PIPE) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        os.write(program.stdin.fileno(), b"Go on for ever.\n")
        read_until(program.stdout.fileno(), b"a line\n")
        program.stdout.close()
        assert program.wait(WAIT) == 141
        assert program.stderr is not None
        assert b"Traceback" not in program.stderr.read()
    provider.wait_for_close(1)


def test_a_slow_reader_gets_all_of_the_answer(home: Home, provider: FakeProvider) -> None:
    """`halter < questions.txt | less` lost the rest of the answer, and its code was 70, unless it was read at once."""
    text = "".join(f"line {number:06}\n" for number in range(15_000))  # more than a pipe holds
    provider.script(answer(chunks=[text[at : at + 6000] for at in range(0, len(text), 6000)]))
    with home.start(stdin=subprocess.PIPE, HALTER_EXIT_TIMEOUT="0.5") as program:
        assert program.stdin is not None
        program.stdin.write(b"Go.\n")
        program.stdin.close()
        program.stdin = None
        home.wait_until_sealed()
        with pytest.raises(subprocess.TimeoutExpired):  # it would have given up by then
            program.wait(4)
        out, _ = program.communicate(timeout=WAIT)
    assert (program.returncode, len(out), out.decode() == text) == (0, len(text), True)  # a diff would take minutes


def test_a_signal_does_not_wait_for_a_slow_reader(home: Home, provider: FakeProvider) -> None:
    """If nobody reads the rest of the answer, a signal ends the program within its time all the same."""
    provider.script(answer(chunks=["x" * 6000] * 30))
    with home.start(stdin=subprocess.PIPE, HALTER_EXIT_TIMEOUT="1") as program:
        assert program.stdin is not None
        program.stdin.write(b"Go.\n")
        program.stdin.close()
        program.stdin = None
        home.wait_until_sealed()
        program.send_signal(signal.SIGTERM)
        assert program.wait(WAIT) in (70, 143)


FILE_TOOLS = """
from pathlib import Path
from halter.toolbox import Checkpoints, Files

here = Path(__file__).parent
tools = Checkpoints(here / "workspace", folder=here / "data").watch(Files(here / "workspace").tools)
"""


def test_undo_shows_the_changed_files_first_and_redo_brings_them_back(home: Home, provider: FakeProvider) -> None:
    """/undo shows the diff and changes nothing; /undo files restores, and the turn is gone; /redo brings files back."""
    file = home.path / "workspace" / "a.txt"
    file.parent.mkdir()
    file.write_text("old\n")
    (home.path / "file_tools.py").write_text(FILE_TOOLS)
    write = ToolCall("c1", "write_file", '{"path": "a.txt", "content": "new\\n"}')
    provider.script(tool_calls([write]), answer("Done."))
    with home.start(stdin=subprocess.PIPE, HALTER_TOOLS="file_tools:tools") as program:
        assert program.stdin is not None
        assert program.stderr is not None
        lines, said = program.stdin.fileno(), program.stderr.fileno()
        os.write(lines, b"Go.\n")
        home.wait_until_sealed()
        os.write(lines, b"/undo\n")
        shown = read_until(said, b"/undo keep").decode()
        assert "a.txt +1 -1\n" in shown
        assert "1 - old\n    1 + new\n" in shown
        assert file.read_text() == "new\n"
        os.write(lines, b"/undo files\n")
        read_until(said, b"1 file restored")
        assert file.read_text() == "old\n"
        os.write(lines, b"/redo\n")
        read_until(said, b"1 file restored")
        assert file.read_text() == "new\n"
        os.write(lines, b"/undo what\n")
        read_until(said, b"usage: /undo")
        assert end(program).code == 0
