"""Jobs in the background of another machine."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from halter import CancellationToken
from halter.toolbox.remote.machine import MachineError, RemoteCommand
from halter.toolbox.remote.remote import Remote
from halter.tools.resources import SessionResources
from tests.support.processes import is_alive, wait_dead
from tests.support.remote_calls import COMMANDS, Work, judge_dead, leftovers, machine_of, pids_in, wait_for_pids
from tests.support.ssh_server import SSHServer
from tests.support.waiting import wait_until

# -- jobs ----------------------------------------------------------------------------------------------------------


def test_a_job_is_looked_after(work: Work, tmp_path: Path) -> None:
    """A background job takes input, tells its news once, is listed, waited for, and ends with its input."""
    command = 'echo ready; while read -r x; do echo "got $x"; done; echo bye'
    started = work.text("terminal", command=command, background=True)
    assert started.startswith("[job 1 started, process ")
    assert "4 bytes sent to job 1" in work.text("process", action="write", job=1, text="a b\n")
    assert "job 1 has been running for" in work.text("process", action="list")
    assert "its input is closed" in work.text("process", action="write", job=1, text="c\n", end_input=True)
    waited = work.text("process", action="wait", job=1)
    assert "got a b" in waited
    assert "got c" in waited
    assert "bye\n[job 1 ended with exit code 0" in waited
    assert work.text("process", action="poll", job=1).startswith("[job 1 ended")
    outcome = work("process", action="write", job=1, text="x")
    assert "does not accept input" in outcome.detail


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_of_writing_to_a_job_that_does_not_read(work: Work, tmp_path: Path, reason: str) -> None:
    """Input that nobody reads does not hold up a stop, and who would pass it on ends with the job."""
    work.text("terminal", command="echo $$ >pids; exec sleep 1000", background=True)
    wait_until(wait_for_pids(tmp_path / "pids", 1))
    started = lambda: any(type(event).__name__ == "ToolStarted" for event in work.calls.events)  # noqa: E731
    outcome = work.stopped("process", started, reason, action="write", job=1, text="x" * 200_000)
    assert outcome.status == "cancelled"
    assert "all its processes have ended" in work.text("process", action="kill", job=1)
    judge_dead(tmp_path / "pids")


def test_a_job_is_killed(work: Work, tmp_path: Path) -> None:
    """Kill ends the job with all it has started, and says that nobody is left."""
    work.text("terminal", command=COMMANDS["ignores TERM"], background=True)
    wait_until(wait_for_pids(tmp_path / "pids", 2))
    assert "was stopped" in (text := work.text("process", action="kill", job=1))
    assert "all its processes have ended" in text
    assert not [pid for pid in pids_in(tmp_path / "pids") if is_alive(pid)]


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_of_waiting_leaves_the_job_alone(work: Work, tmp_path: Path, reason: str) -> None:
    """Waiting for a job ends at a stop; the job belongs to the session and goes on."""
    work.text("terminal", command="echo $$ >pids; echo half; sleep 1000", background=True)
    wait_until(wait_for_pids(tmp_path / "pids", 1))
    started = lambda: any(type(event).__name__ == "ToolStarted" for event in work.calls.events)  # noqa: E731
    outcome = work.stopped("process", started, reason, action="wait", job=1)
    assert outcome.status in ("partial", "cancelled")  # cancelled: it was told to start, and had not begun to wait
    assert outcome.status == "cancelled" or "[job 1 has been running for" in str(outcome.content)
    assert is_alive(pids_in(tmp_path / "pids")[0])


def test_a_job_ends_with_its_session(server: SSHServer, tmp_path: Path) -> None:
    """Closing what was kept ends the jobs, the connection and its thread."""
    resources = SessionResources()
    Work(server, resources).text("terminal", command=COMMANDS["new session"], background=True)
    wait_until(wait_for_pids(tmp_path / "pids", 2))
    resources.close()
    judge_dead(tmp_path / "pids")
    wait_until(lambda: server.connections == 0)
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("halter-ssh")])
    assert leftovers(server) == []


def test_a_job_whose_connection_is_lost_says_so(work: Work, server: SSHServer, tmp_path: Path) -> None:
    """A job hangs on its connection; when that was lost it is ended, and whoever asks is told."""
    work.text("terminal", command=COMMANDS["double fork"], background=True)
    wait_until(wait_for_pids(tmp_path / "pids", 2))
    server.drop()
    text = work.text("process", action="wait", job=1)
    assert "lost its connection" in text
    assert "all its processes have ended" in text
    judge_dead(tmp_path / "pids")


def test_only_so_many_jobs_run_at_once(work: Work) -> None:
    """The sixth job is refused, with what to do; a command in the foreground runs all the same."""
    for _ in range(5):
        work.text("terminal", command="sleep 1000", background=True)
    assert "5 background jobs are running already" in work("terminal", command="sleep 1000", background=True).detail
    assert work.text("terminal", command="echo there") == "there\n[exit code 0]"
    work.text("process", action="kill", job=1)
    assert work.text("terminal", command="sleep 1000", background=True).startswith("[job 6 started")


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_while_a_job_is_started_leaves_no_job(work: Work, server: SSHServer, reason: str) -> None:
    """A job whose start was stopped is no job: nothing of it runs, and it is not listed."""
    started = lambda: any(type(event).__name__ == "ToolStarted" for event in work.calls.events)  # noqa: E731
    outcome = work.stopped("terminal", started, reason, command="echo $$ >>pids; sleep 1000", background=True)
    listed = work.text("process", action="list")
    if outcome.status == "cancelled":
        assert listed == "There are no jobs."
        for pid in pids_in(server.home / "pids"):
            wait_dead(pid)
    else:  # it had been started
        assert listed.startswith("job 1 has been running for")


def test_a_job_on_a_machine_that_is_not_there_is_told(server: SSHServer, resources: SessionResources) -> None:
    """A job that could not be started is an error and is not listed."""
    work = Work(server, resources)
    work.tools = Remote(machine_of(server, port=1)).tools
    assert "cannot reach" in work("terminal", command="x", background=True).detail
    assert work.text("process", action="list") == "There are no jobs."


def test_a_link_that_was_closed_says_so(server: SSHServer) -> None:
    """What comes after the end of the session is refused, and closing twice, or unused, does nothing."""
    link = machine_of(server).open()
    link.close()
    link.close()
    running = link.start(RemoteCommand("true"), print)
    assert running.wait_over(timeout=10)
    assert "session is closed" in str(running.error)
    with pytest.raises(MachineError, match="session is closed"):
        link.run("true", token=CancellationToken())


def test_without_asyncssh_the_extra_is_named(
    server: SSHServer, resources: SessionResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the library is missing the error says how to get it."""
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    work = Work(server, resources)
    assert "pip install 'halter[ssh]'" in work("terminal", command="x").detail


def test_a_script_that_hangs_is_given_up(server: SSHServer) -> None:
    """A machine that does not answer in time is told as that."""
    link = machine_of(server).open()
    with pytest.raises(MachineError, match="did not answer within"):
        link.run("sleep 5", token=CancellationToken(), timeout=0.2)
    link.close()
