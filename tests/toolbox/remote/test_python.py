"""Code on another machine, over a real SSH connection: its interpreter lasts, and nothing of it outlives its end."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from halter import ToolOutcome
from halter.models.types import Image, Text
from halter.testing import Moment, Stop, ToolCalls
from halter.toolbox.python import interpreter_main
from halter.toolbox.remote import interpreter, interpreter_supervisor
from halter.toolbox.remote.remote import Remote
from halter.toolbox.remote.ssh import SSHMachine
from tests.support.allowing import allow
from tests.support.processes import is_alive, wait_dead
from tests.support.remote_calls import judge_dead, pids_in, remote_of, wait_for_pids
from tests.support.ssh_server import SSHServer
from tests.support.stopped_calls import BEFORE_THE_END, GIVES_BACK, IN_THE_MIDDLE, kept_by, patient
from tests.support.time_limits import call_limited
from tests.support.waiting import wait_until

# Notes its own process and one that leaves its session, and says "on".
BUSY = """
import os, subprocess, time
other = subprocess.Popen(["setsid", "sleep", "1000"])
print(os.getpid(), other.pid, file=open("pids", "w"), flush=True)
print("on\\n", end="")
"""
DEAF = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{BUSY}\nwhile True: time.sleep(1000)"


@pytest.fixture
def calls(server: SSHServer) -> Iterator[ToolCalls]:
    remote = remote_of(server)
    remote.code._grace = 5.0  # for code that hears its interrupt, on a busy machine
    with ToolCalls(*patient(remote.tools), approve=allow) as calls:
        yield calls


def run(calls: ToolCalls, code: str, **arguments: Any) -> ToolOutcome:
    return calls.call("execute_code", code=code, **arguments)


def text_of(outcome: ToolOutcome) -> str:
    content = outcome.content
    return content if isinstance(content, str) else "".join(part.text for part in content if isinstance(part, Text))


def test_code_is_run_as_an_interpreter_would(calls: ToolCalls, server: SSHServer) -> None:
    """Variables, functions and imports stay for the next call; the last expression is shown; one connection does."""
    assert run(calls, "import os\nx = 20\nprint('set')").content == "set\n"
    assert run(calls, "def f(y): return x * y").content == ""
    assert run(calls, "f(2)").content == "40\n"
    assert run(calls, "os.path.realpath(os.getcwd())").content == f"{str(server.home.resolve())!r}\n"
    assert server.connections == 1
    assert list(server.home.glob("*.py")) == []


def test_errors_are_told_cleanly(calls: ToolCalls) -> None:
    """What was printed before is there; the traceback has the code's own lines, and none of ours."""
    outcome = run(calls, "def f():\n    raise ValueError('no')\nprint('so far')\nf()")
    assert outcome.status == "failed"
    assert "ValueError: no" in outcome.detail
    assert text_of(outcome).startswith('so far\nTraceback (most recent call last):\n  File "<code 1>", line 4')
    assert "halter" not in text_of(outcome)


def test_all_that_was_printed_comes_before_the_end(calls: ToolCalls) -> None:
    """However much it is, and whoever has printed it: the result of a call has all of it, in its order."""
    code = "import os, subprocess\nprint('x' * 3_000_000)\nsubprocess.run(['echo', 'child'])\n_ = os.write(2, b'end')"
    for _ in range(2):
        text = text_of(run(calls, code))
        assert text.endswith("x\nchild\nend")
        assert "bytes left out" in text


def test_code_calls_the_other_tools_there_and_shows_pictures(calls: ToolCalls, tmp_path: Path) -> None:
    """The tools for that machine are functions for the code, and pictures come back."""
    (tmp_path / "note").write_text("hello\n")
    outcome = run(calls, "print(tools.read_file(path='note'))\nshow(b'\\x89PNG' + b'x' * 300_000)\ntools")
    assert isinstance(outcome.content, list)
    assert text_of(outcome) == (
        "     1\thello\n<tools: patch, process, read_file, search_files, terminal, write_file>\n"
    )
    assert [part.data for part in outcome.content if isinstance(part, Image)] == [b"\x89PNG" + b"x" * 300_000]
    assert "No such file: nowhere" in run(calls, "tools.read_file(path='nowhere')").detail


@pytest.mark.parametrize("reason", ["stop", "steer"])
@pytest.mark.parametrize("moment", BEFORE_THE_END)
def test_a_stop_interrupts_and_variables_stay(calls: ToolCalls, tmp_path: Path, reason: str, moment: Moment) -> None:
    """Whenever the stop comes, what was printed is given back, what the code started is dead, and variables stay."""
    pid = int(text_of(run(calls, "import os\nkept = 1\nos.getpid()")))
    outcome = calls.call_stopped(Stop(reason, moment, report="on\n"), "execute_code", code=f"{BUSY}\ntime.sleep(1000)")
    assert outcome.status in GIVES_BACK[moment]
    assert outcome.reason == reason
    if moment in IN_THE_MIDDLE:
        assert text_of(outcome).startswith("on\n")
        wait_dead(pids_in(tmp_path / "pids")[1])
    assert run(calls, "kept").content == "1\n"
    assert is_alive(pid)


def test_a_slow_look_at_the_processes_is_not_the_last(
    calls: ToolCalls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine the first look at /proc took longer than the sweep may, which then ended nothing."""
    program = interpreter._program

    def without_time(file: str) -> str:
        return program(file).replace("_SWEEP_TIMEOUT = 1.0", "_SWEEP_TIMEOUT = 0.0")

    monkeypatch.setattr(interpreter, "_program", without_time)
    assert without_time(interpreter_supervisor.__file__) != program(interpreter_supervisor.__file__)
    outcome = calls.call_stopped(Stop("stop", report="on\n"), "execute_code", code=f"{BUSY}\ntime.sleep(1000)")
    assert text_of(outcome).startswith("on\n")
    wait_dead(pids_in(tmp_path / "pids")[1])


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_at_the_very_end(calls: ToolCalls, tmp_path: Path, reason: str) -> None:
    """A stop that races with the end of the code is never carried over to the next."""
    for number in range(4):
        mark = tmp_path / f"{reason}{number}"
        code = f"print('said')\nopen({str(mark)!r}, 'w').close()"
        outcome = calls.call_stopped(Stop(reason, wait=lambda: wait_until(mark.exists)), "execute_code", code=code)
        assert outcome.status in {"completed", "partial"}
        if outcome.status == "completed":  # at a stop it may still be on its way
            assert text_of(outcome) == "said\n"
        assert run(calls, f"{number}").content == f"{number}\n"


def test_deaf_code_is_killed(server: SSHServer, tmp_path: Path) -> None:
    """Code that does not hear its interrupt dies with its family; the next call gets a fresh one and is told."""
    with ToolCalls(*patient(remote_of(server).tools), approve=allow) as calls:
        outcome = calls.call_stopped(Stop("steer", report="on\n"), "execute_code", code=DEAF)
        assert outcome.status == "partial"
        assert text_of(outcome).startswith("on\n[interrupted, but it has not ended yet")
        judge_dead(tmp_path / "pids")
        fresh = text_of(run(calls, "'other' in globals()"))
        assert "was killed; this is a new one" in fresh
        assert fresh.endswith("False\n")


def test_code_has_its_time(calls: ToolCalls) -> None:
    """Code that takes too long is interrupted, and fails with what it had printed."""
    run(calls, "kept = 1")
    code = "print('on')\nimport time; time.sleep(60)"
    outcome, limit = call_limited(lambda seconds: run(calls, code, timeout=seconds), lambda got: "on\n" in text_of(got))
    assert outcome.status == "failed"
    assert f"took longer than {limit}" in outcome.detail
    assert run(calls, "kept").content == "1\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os._exit(3)", "exit code 3"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("os.kill(os.getppid(), 9)\ntime.sleep(1000)", "exit code 137"),
    ],
)
def test_an_interpreter_that_dies(calls: ToolCalls, tmp_path: Path, code: str, words: str) -> None:
    """Code that takes its interpreter with it, or who keeps that, fails and says so; nobody is left behind."""
    outcome = run(calls, BUSY + code)
    assert outcome.status == "failed"
    assert words in outcome.detail
    judge_dead(tmp_path / "pids")
    assert "this is a new one" in text_of(run(calls, "1"))
    assert run(calls, "1").content == "1\n"


@pytest.mark.parametrize("code", [f"{BUSY}time.sleep(1000)", DEAF], ids=["listens", "deaf"])
def test_a_lost_connection_ends_the_code(calls: ToolCalls, server: SSHServer, tmp_path: Path, code: str) -> None:
    """When the connection breaks the machine ends the interpreter and its family; it is asked, and the error tells."""

    def cut() -> None:
        wait_until(wait_for_pids(tmp_path / "pids", 2))
        server.drop()

    thread = threading.Thread(target=cut)
    thread.start()
    outcome = run(calls, code)
    thread.join(10)
    assert outcome.status == "failed"
    assert "its connection was lost; all its processes have ended" in outcome.detail
    assert not [pid for pid in pids_in(tmp_path / "pids") if is_alive(pid)]
    assert "this is a new one" in text_of(run(calls, "1"))


def test_a_machine_that_is_gone_for_good_ends_the_code_too(calls: ToolCalls, server: SSHServer, tmp_path: Path) -> None:
    """If the machine cannot be asked any more, a stop gives control back and claims nothing; the code is dead."""

    def gone() -> None:
        wait_until(wait_for_pids(tmp_path / "pids", 2))
        server.drop(for_good=True)

    outcome = calls.call_stopped(Stop("stop", wait=gone), "execute_code", code=DEAF)
    assert outcome.status in ("partial", "failed", "cancelled")
    assert "all its processes have ended" not in text_of(outcome)
    judge_dead(tmp_path / "pids")


def test_a_connection_that_falls_silent_ends_the_code(server: SSHServer, beating: SSHMachine, tmp_path: Path) -> None:
    """If heartbeats do not arrive any more, and nobody has noticed a break, the machine ends the code as well."""
    with ToolCalls(*Remote(beating).tools, approve=allow) as calls:
        assert run(calls, f"{BUSY}time.sleep(3.5)").content == "on\n"  # longer than the silence that is allowed
        server.is_silent = True
        judge_dead(tmp_path / "pids")


@pytest.mark.parametrize("python", ["no-such-python", "false"])
def test_a_machine_without_python_says_so(server: SSHServer, python: str) -> None:
    """If there is no Python to run it, the error has the machine's own words."""
    with ToolCalls(*remote_of(server, python=python).tools, approve=allow) as calls:
        outcome = run(calls, "1")
        assert outcome.status == "failed"
        assert ("no-such-python: not found" if python.startswith("no") else "exit code 1") in outcome.detail


@pytest.mark.parametrize("kind", ["hangs", "paused"])
def test_a_supervisor_that_does_not_read_is_ended(server: SSHServer, tmp_path: Path, kind: str) -> None:
    """Nothing ended a Python that hung at its start, or whose supervisor the code had paused, not even the close."""
    hung = tmp_path / "hung"
    hung.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pids\nexec sleep 1000\n")
    hung.chmod(0o755)
    code = "import os, signal, time\nprint(os.getpid(), os.getppid(), file=open('pids', 'w'), flush=True)\n"
    code += "os.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(1000)"
    python = str(hung) if kind == "hangs" else sys.executable
    with ToolCalls(*remote_of(server, python=python).tools, approve=allow) as calls:
        wait = Stop("stop", wait=lambda: wait_until(lambda: pids_in(tmp_path / "pids")))
        assert calls.call_stopped(wait, "execute_code", code=code).status in ("partial", "cancelled")
        judge_dead(tmp_path / "pids")


@pytest.mark.parametrize("program", [interpreter_supervisor, interpreter_main])
def test_what_is_sent_is_written_for_an_old_python(program: ModuleType) -> None:
    """Machines have older interpreters than we do: nothing in these programs is newer than Python 3.8."""
    assert program.__file__ is not None
    ast.parse(Path(program.__file__).read_text(), feature_version=(3, 8))


def test_a_shell_that_greets_is_not_taken_for_code(server: SSHServer, tmp_path: Path) -> None:
    """What a shell says before it begins is no part of any result."""
    (tmp_path / "greet").write_text("echo o 3; echo Welcome!\n")
    env = {"BASH_ENV": str(tmp_path / "greet")}
    with ToolCalls(*remote_of(server, env=env, python=sys.executable).tools, approve=allow) as calls:
        outcome = run(calls, "import os; 'HALTER_WATCH' in os.environ")
        assert outcome.content == "False\n", outcome


def test_the_interpreter_ends_with_its_session(server: SSHServer, tmp_path: Path) -> None:
    """Closing what was kept ends the interpreter and all it has started, and code is refused then."""
    with ToolCalls(*remote_of(server).tools, approve=allow) as calls:
        assert run(calls, BUSY).content == "on\n"
        assert all(is_alive(pid) for pid in pids_in(tmp_path / "pids"))
        kept_by(calls).close()
        judge_dead(tmp_path / "pids")
        assert "session is closed" in run(calls, "1").detail
    wait_until(lambda: server.connections == 0)
