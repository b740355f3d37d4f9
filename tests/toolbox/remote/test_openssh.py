"""The tools for another machine, over OpenSSH's own server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from halter.toolbox.remote.remote import Remote
from halter.tools.resources import SessionResources
from tests.support.openssh import MISSING, PROGRAM, OpenSSH
from tests.support.remote_calls import COMMANDS, Work, judge_dead, wait_for_pids

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=MISSING)


@pytest.fixture
def openssh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenSSH]:
    """A server that allows one session on a connection, unless the test says otherwise."""
    folder, home = tmp_path / "sshd", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    with OpenSSH(folder, home, getattr(request, "param", "MaxSessions 1")) as server:
        yield server


@pytest.fixture
def work(openssh: OpenSSH, resources: SessionResources) -> Work:
    return Work(Remote(openssh.machine(), python=sys.executable, grace=0.3), resources)


@pytest.mark.parametrize("openssh", ["MaxSessions 10", "MaxSessions 1"], indirect=True)
def test_all_tools_work_side_by_side(work: Work, openssh: OpenSSH) -> None:
    """Beside an interpreter and a background command the other tools work, also where the server allows one session
    on a connection; then there are more connections.
    """
    assert work.text("execute_code", code="x = 6; print(x * 7)") == "42\n"
    assert "four" in work.text("terminal", command="echo four")
    assert "job 1 started" in work.text("terminal", command="cat", background=True)
    work.text("process", action="write", job=1, text="to the cat\n", end_input=True)
    assert "to the cat" in work.text("process", action="wait", job=1)
    work.text("write_file", path="made.txt", content="one\n")
    assert work.text("execute_code", code="print(x, tools.read_file(path='made.txt').count('one'))") == "6 1\n"
    assert (openssh.home / "made.txt").read_text() == "one\n"


def test_a_stop_ends_the_command_there(work: Work, openssh: OpenSSH) -> None:
    """Beside an interpreter too, what the command had printed is given back, and all its processes are dead."""
    work.text("execute_code", code="x = 1")
    pids = openssh.home / "pids"
    outcome = work.stopped("terminal", wait_for_pids(pids, 2), command=COMMANDS["new session"])
    assert (outcome.status, outcome.reason) == ("partial", "stop")
    judge_dead(pids)
    assert work.text("execute_code", code="print(x)") == "1\n"


def test_a_stop_ends_the_code_there(work: Work, openssh: OpenSSH) -> None:
    """A stop of code ends the processes that it has started."""
    pids = openssh.home / "pids"
    code = """
        import subprocess, pathlib
        child = subprocess.Popen(["sleep", "1000"])
        pathlib.Path("new").write_text(str(child.pid))
        pathlib.Path("new").rename("pids")
        child.wait()
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    assert work.stopped("execute_code", pids.exists, code=lines).status == "partial"
    judge_dead(pids)


def test_closing_ends_everything_there(work: Work, openssh: OpenSSH, resources: SessionResources) -> None:
    """With the session end its interpreter, its commands in the background, and all connections."""
    work.text("execute_code", code="import os; print(os.getpid(), file=open('pids', 'w'))")
    work.text("terminal", command="echo $$ >>pids; exec sleep 1000", background=True)
    resources.close()
    judge_dead(openssh.home / "pids")


def test_a_server_that_allows_no_session_is_named(tmp_path: Path, resources: SessionResources) -> None:
    """The error names the setting and a value that works."""
    with OpenSSH(tmp_path, tmp_path, "MaxSessions 0") as server:
        work = Work(Remote(server.machine()), resources)
        for outcome in (work("terminal", command="true"), work("read_file", path="config")):
            assert outcome.status == "failed"
            assert "raise MaxSessions in its sshd_config, to 10" in outcome.detail
        resources.close()
