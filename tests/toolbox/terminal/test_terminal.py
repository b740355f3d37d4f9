"""The terminal and its background jobs."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import threading
from pathlib import Path
from typing import Any

import pytest

from halter import Agent
from halter.events.tools import ToolProgress
from halter.models import ToolCall
from halter.testing import Moment, ScriptedModel, Stop, ToolCalls, deaf_process
from halter.toolbox.terminal.environment import without_secrets
from halter.toolbox.terminal.jobs import Jobs
from halter.toolbox.terminal.terminal import Terminal
from tests.support.allowing import allow
from tests.support.leftovers import leaves_nothing
from tests.support.processes import is_alive, wait_dead
from tests.support.stopped_calls import BEFORE_THE_END, GIVES_BACK, IN_THE_MIDDLE, REASONS, kept_by, patient
from tests.support.time_limits import call_limited
from tests.support.waiting import wait_until

DEAF = shlex.join(deaf_process(escape=True))


def calls_in(path: Path, **options: Any) -> ToolCalls:
    return ToolCalls(*patient(Terminal(path, grace=0.1, **options).tools), approve=allow)


def pids_in(text: object) -> list[int]:
    found = re.search(r"ready (\d+) (\d+)", str(text))
    assert found is not None, text
    return [int(found[1]), int(found[2])]


def test_a_command_gives_its_output_and_exit_code(tmp_path: Path) -> None:
    """Stdout and stderr come together and in order, and the exit code is told."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        outcome = calls.call("terminal", command="echo one; echo two >&2; echo three; exit 3")
        assert (outcome.status, outcome.content) == ("completed", "one\ntwo\nthree\n[exit code 3]")
        assert calls.call("terminal", command="printf no-newline").content == "no-newline\n[exit code 0]"
        assert "[was ended by SIGKILL after" in str(calls.call("terminal", command="kill -KILL $$").content)
        assert calls.call("terminal", command="read x; echo got:$x").content == "got:\n[exit code 0]"
        assert "empty" in calls.call("terminal", command="  ").detail
        assert calls.call("terminal", command="true", timeout=0).status == "failed"


def test_a_change_of_directory_holds(tmp_path: Path) -> None:
    """A `cd` holds for the next command of the session, also if that exits or fails, and not for another session."""
    (tmp_path / "sub dir").mkdir()
    with calls_in(tmp_path) as calls, calls_in(tmp_path) as other:
        assert f"now in {tmp_path}/sub dir" in str(calls.call("terminal", command="cd 'sub dir'; exit 1").content)
        assert str(calls.call("terminal", command="pwd").content).startswith(f"{tmp_path}/sub dir\n")
        assert str(calls.call("terminal", command="(cd /); pwd").content).startswith(f"{tmp_path}/sub dir\n")
        assert str(other.call("terminal", command="pwd").content).startswith(f"{tmp_path}\n")
        (tmp_path / "sub dir").rmdir()
        assert f"no longer exists; now in {tmp_path}]" in str(calls.call("terminal", command="pwd").content)


def test_output_is_bounded(tmp_path: Path) -> None:
    """Of a flood the beginning and the end are kept, and how much is missing is told; to the byte."""
    with calls_in(tmp_path, limit=1000) as calls:
        text = str(calls.call("terminal", command="echo first; seq 100000; echo last").content)
        assert text.startswith("first\n1\n2\n")
        assert text.endswith("100000\nlast\n[exit code 0]")
        missing = re.search(r"\n\[\.\.\. ([\d,]+) bytes left out \.\.\.\]\n", text)
        assert missing is not None
        whole = len("first\nlast\n") + sum(len(f"{n}\n") for n in range(1, 100001))
        assert int(missing[1].replace(",", "")) == whole - 1000


def test_output_is_reported_while_it_comes(tmp_path: Path) -> None:
    """What a command says is told before it ends, also when it then falls silent."""
    with calls_in(tmp_path) as calls:
        stop = Stop(report="two")
        outcome = calls.call_stopped(stop, "terminal", command="echo one; sleep 0.02; echo two; sleep 60")
        assert "one\ntwo\n" in str(outcome.content)
        assert "".join(calls.reports) == "one\ntwo\n"


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("moment", BEFORE_THE_END)
def test_a_stop_leaves_nothing(tmp_path: Path, reason: str, moment: Moment) -> None:
    """Whenever the stop comes: what was said so far is given back, and deaf and escaped processes are dead."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        stop = Stop(reason, moment, report="ready")
        outcome = calls.call_stopped(stop, "terminal", command=DEAF)
        assert outcome.status in GIVES_BACK[moment]
        assert outcome.reason == reason
        if moment in IN_THE_MIDDLE:
            assert "its processes are being ended]" in str(outcome.content)
            for pid in pids_in(outcome.content):
                wait_dead(pid)
        assert str(calls.call("terminal", command="pwd").content) == f"{tmp_path}\n[exit code 0]"


@pytest.mark.parametrize("reason", REASONS)
def test_a_stop_at_the_very_end(tmp_path: Path, reason: str) -> None:
    """A stop that races with the end finds a whole result or a partial one, and never a failure."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        for number in range(5):
            mark = tmp_path / f"{reason}{number}"
            stop = Stop(reason, wait=lambda: wait_until(mark.exists))
            outcome = calls.call_stopped(stop, "terminal", command=f"echo said; touch {mark}")
            assert outcome.status in {"completed", "partial"}
            if outcome.status == "completed":
                assert str(outcome.content).startswith("said\n")


def test_a_quick_death_is_told(tmp_path: Path) -> None:
    """Processes that end at TERM have ended when control is back, and the outcome may say so; else it does not."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        outcome = calls.call_stopped(Stop(report="on"), "terminal", command="echo on $$; sleep 60")
        pid = int(str(outcome.content).split()[1])
        if "all its processes have ended" in str(outcome.content):
            assert not is_alive(pid)
        else:
            assert "are being ended" in str(outcome.content)
            wait_dead(pid)


def test_a_command_has_its_time(tmp_path: Path) -> None:
    """A command that takes too long is ended, and fails with what it had said."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        outcome, limit = call_limited(
            lambda seconds: calls.call("terminal", command=DEAF, timeout=seconds),
            lambda got: "ready " in str(got.content),
        )
        assert outcome.status == "failed"
        assert f"took longer than {limit}" in outcome.detail
        assert not any(is_alive(pid) for pid in pids_in(outcome.content))


def test_what_a_command_leaves_behind_becomes_a_job(tmp_path: Path) -> None:
    """A process that outlives its command is listed, can be heard and ended, and ends with the session."""
    with leaves_nothing():
        with calls_in(tmp_path) as calls:
            outcome = calls.call("terminal", command="(setsid sh -c 'echo $$; exec sleep 60') & sleep 0.2; echo back")
            assert re.search("(1 process is|2 processes are) still running as job 1", str(outcome.content))
            assert "still run" in str(calls.call("process", action="list").content)
            calls.call("process", action="kill", job=1)
            assert "still run" not in str(calls.call("process", action="list").content)
            outcome = calls.call("terminal", command="sleep 60 & echo pid $!")
            pid = int(str(outcome.content).split()[1])
            assert is_alive(pid)
        wait_dead(pid)


def test_a_flood_that_is_left_behind_does_not_hold_up_the_command(tmp_path: Path) -> None:
    """A command that leaves `yes` running behind it has ended when it has."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        assert "still running as job 1" in str(calls.call("terminal", command="yes & sleep 0.05").content)


def test_a_background_job(tmp_path: Path) -> None:
    """It is listed, written to, heard piece by piece, waited for, and tells how it ended."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        assert "There are no jobs" in str(calls.call("process", action="list").content)
        assert "job 1 started" in str(calls.call("terminal", command="cat; exit 4", background=True).content)
        assert "job 1 has been running" in str(calls.call("process", action="list").content)
        calls.call("process", action="write", job=1, text="hello\n")
        jobs = kept_by(calls)
        assert isinstance(jobs, Jobs)
        wait_until(lambda: jobs.get(1).output.size)
        assert str(calls.call("process", action="poll", job=1).content).startswith("hello\n[job 1 has been")
        assert str(calls.call("process", action="poll", job=1).content).startswith("[job 1 has been")
        calls.call("process", action="write", job=1, text="bye\n", end_input=True)
        assert str(calls.call("process", action="wait", job=1).content).startswith("bye\n[job 1 ended with exit code 4")
        assert "does not accept input" in calls.call("process", action="write", job=1, text="x").detail
        assert "no job 7; existing jobs: 1" in calls.call("process", action="poll", job=7).detail


def test_a_kill_of_a_job_that_has_ended_changes_nothing(tmp_path: Path) -> None:
    """The model was told that the job was stopped, and its exit code was gone."""
    with calls_in(tmp_path) as calls:
        calls.call("terminal", command="exit 3", background=True)
        jobs = kept_by(calls)
        wait_until(lambda: not jobs.get(1).is_running)
        for action in ("kill", "list"):
            assert "job 1 ended with exit code 3" in str(calls.call("process", action=action, job=1).content)


def test_a_character_that_comes_in_two_parts_is_shown_whole(tmp_path: Path) -> None:
    """A poll between the two destroyed it: programs write full blocks, wherever a character ends."""
    with calls_in(tmp_path) as calls:
        command = r"printf 'a\350\257'; read x; printf '\255b'"
        calls.call("terminal", command=command, background=True)
        jobs = kept_by(calls)
        wait_until(lambda: jobs.get(1).output.size == 3)
        assert str(calls.call("process", action="poll", job=1).content).startswith("a\n[job 1 has been")
        calls.call("process", action="write", job=1, text="\n")
        wait_until(lambda: not jobs.get(1).is_running)
        assert str(calls.call("process", action="poll", job=1).content).startswith("语b\n[job 1 ended")


@pytest.mark.parametrize("reason", REASONS)
@pytest.mark.parametrize("moment", BEFORE_THE_END)
def test_a_stop_of_a_wait_leaves_the_job_alone(tmp_path: Path, reason: str, moment: Moment) -> None:
    """Stopping a wait ends the wait: what was said so far is given back, and the job goes on."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        started = str(calls.call("terminal", command="echo on; exec sleep 60", background=True).content)
        found = re.search(r"process (\d+)", started)
        assert found is not None
        jobs = kept_by(calls)
        wait_until(lambda: jobs.get(1).output.size)
        stop = Stop(reason, moment, wait=lambda: wait_until(lambda: jobs.get(1).process.changes._listeners))
        outcome = calls.call_stopped(stop, "process", action="wait", job=1)
        assert outcome.status in GIVES_BACK[moment]
        if moment in IN_THE_MIDDLE:
            assert str(outcome.content).startswith("on\n[job 1 has been running")
        assert is_alive(int(found[1]))
        assert "job 1 was ended by SIGTERM" in str(calls.call("process", action="kill", job=1).content)
        assert not is_alive(int(found[1]))


def test_a_wait_has_its_time(tmp_path: Path) -> None:
    """A wait that takes too long is over, and the job goes on."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        calls.call("terminal", command="sleep 60", background=True)
        outcome = calls.call("process", action="wait", job=1, timeout=0.01)
        assert outcome.status == "completed"
        assert "has been running" in str(outcome.content)


def test_a_deaf_job_is_killed_with_its_escapees(tmp_path: Path) -> None:
    """Killing a job is verified: nobody of its family is alive when the call has ended."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        calls.call("terminal", command=DEAF, background=True)
        jobs = kept_by(calls)
        wait_until(lambda: "ready" in jobs.get(1).output.text())
        pids = pids_in(jobs.get(1).output.text())
        outcome = calls.call("process", action="kill", job=1)
        assert "was ended by SIGKILL" in str(outcome.content)
        assert not any(is_alive(pid) for pid in pids)


def test_all_jobs_can_be_ended_at_once(tmp_path: Path) -> None:
    """stop_all() of what the session keeps ends every job, and the session goes on; close() ends it for good."""
    with leaves_nothing(), calls_in(tmp_path) as calls:
        for _ in range(3):
            calls.call("terminal", command="sleep 60", background=True)
        jobs = kept_by(calls)
        pids = [job.process.pid for job in jobs.all()]
        assert jobs.stop_all() == []
        assert not any(is_alive(pid) for pid in pids)
        assert calls.call("terminal", command="echo on").content == "on\n[exit code 0]"
        jobs.close()
        assert "[" in str(calls.call("terminal", command="sleep 60").content)


def test_jobs_end_with_their_session(tmp_path: Path) -> None:
    """A job survives a stopped turn, and does not survive its session."""
    model = ScriptedModel(
        ToolCall("1", "terminal", '{"command": "sleep 60", "background": true}'),
        ToolCall("2", "terminal", '{"command": "echo on; sleep 60"}'),
    )
    with Agent(ScriptedModel("warm")).session() as session:
        session.run("start the loop that all sessions share")
    with leaves_nothing():
        with Agent(model, patient(Terminal(tmp_path).tools), approve=allow).session() as session:

            def stop() -> None:
                wait_until(lambda: any(isinstance(event.data, ToolProgress) for event in session.events()))
                session.stop()

            threading.Thread(target=stop).start()
            turn = session.run("go")
            assert turn.status == "interrupted"
            assert [outcome.status for outcome in turn.outcomes] == ["completed", "partial"]
            found = re.search(r"process (\d+)", str(turn.outcomes[0].content))
            assert found is not None
            assert is_alive(int(found[1]))
        wait_dead(int(found[1]))


def test_destruction_needs_approval(tmp_path: Path) -> None:
    """A command that destroys is not run without a yes, and the reason is told to the person and the model."""
    target = tmp_path / "precious"
    target.mkdir()
    with ToolCalls(*Terminal(tmp_path).tools) as calls:
        outcome = calls.call("terminal", command="rm -rf precious")
        assert outcome.status == "denied"
        assert "rm -r deletes whole directories" in outcome.detail
        assert calls.call("process", action="write", job=1, text="rm -rf precious\n").status == "denied"
        assert calls.call("process", action="list").status == "completed"
        assert target.exists()
    reasons: list[str] = []

    def yes(request: Any) -> bool:
        reasons.append(request.reason)
        return True

    with ToolCalls(*Terminal(tmp_path).tools, approve=yes) as calls:
        assert calls.call("terminal", command="rm -rf precious").status == "completed"
        assert calls.call("terminal", command="ls").status == "completed"
    assert reasons == ["rm -r deletes whole directories"]
    assert not target.exists()


def test_secrets_are_not_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command does not see keys and passwords of ours, unless they were named."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("MY_TOKEN", "t-2")
    with calls_in(tmp_path, pass_env=["MY_TOKEN"], env={"EXTRA": "3"}) as calls:
        text = str(calls.call("terminal", command="echo $OPENAI_API_KEY-$MY_TOKEN-$EXTRA-$HOME").content)
        assert text.startswith(f"-t-2-3-{os.environ['HOME']}\n")


def test_a_url_with_a_password_is_a_secret() -> None:
    """Whatever its name, a URL with a password in it is not passed on; a proxy's is, or nothing would be reached."""
    environment = {"X": "postgres://me:pw@db/x", "Y": "https://host/path", "https_proxy": "http://me:pw@proxy"}
    assert without_secrets(environment=environment) == {key: environment[key] for key in ("Y", "https_proxy")}


def test_a_shell_that_is_not_there(tmp_path: Path) -> None:
    """What cannot be started is an error that says so, and leaves nothing."""
    with leaves_nothing(), ToolCalls(*Terminal(tmp_path, shell="/no/such/shell").tools, approve=allow) as calls:
        for background in (False, True):
            outcome = calls.call("terminal", command="ls", background=background)
            assert outcome.status == "failed"
            assert "/no/such/shell" in outcome.detail


def test_many_at_once(tmp_path: Path) -> None:
    """Commands run side by side, and a stop of the turn ends all of them."""

    async def all_of_them() -> None:
        await asyncio.gather(*(asyncio.to_thread(one, number) for number in range(4)))

    def one(number: int) -> None:
        with calls_in(tmp_path) as calls:
            outcome = calls.call_stopped(Stop(report="ready"), "terminal", command=DEAF)
            for pid in pids_in(outcome.content):
                wait_dead(pid)

    with leaves_nothing():
        asyncio.run(all_of_them())
