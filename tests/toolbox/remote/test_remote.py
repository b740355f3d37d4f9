"""The tools for another machine, over a real SSH connection: what they do, and the way in."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halter import Session
from halter.events.tools import ToolProgress
from halter.testing import Gate
from halter.toolbox.remote.remote import Remote
from halter.toolbox.remote.ssh import SSHMachine
from halter.tools.resources import SessionResources
from tests.support.allowing import allow
from tests.support.background import Background, RunningTurn
from tests.support.processes import is_alive
from tests.support.remote_calls import COMMANDS, Work, ask, judge_dead, machine_of, pids_in, remote_of, wait_for_pids
from tests.support.sessions import agent_of, data_of, model_of
from tests.support.ssh_server import SSHServer
from tests.support.stopped_calls import patient
from tests.support.time_limits import call_limited
from tests.support.valid_history import judge_session
from tests.support.waiting import wait_until

# -- terminal ------------------------------------------------------------------------------------------------------


def test_a_command_runs_there(work: Work, server: SSHServer) -> None:
    """Output of both streams comes back in order, with the exit code; a cd holds for the next command."""
    home = os.path.realpath(server.home)
    assert work.text("terminal", command="echo one; echo two >&2; exit 3") == "one\ntwo\n[exit code 3]"
    assert work.text("terminal", command="mkdir sub && cd sub") == f"[exit code 0; now in {home}/sub]"
    assert work.text("terminal", command="pwd") == f"{home}/sub\n[exit code 0]"
    assert server.connections == 1


def test_output_is_reported_while_a_command_runs(work: Work, server: SSHServer) -> None:
    """The user sees it before the command has ended."""
    command = "echo on its way; until [ -e seen ]; do sleep 0.05; done"
    running = Background(lambda: work.text("terminal", command=command))
    wait_until(lambda: any(isinstance(event, ToolProgress) for event in [*work.calls.events]))
    (server.home / "seen").touch()
    assert running.result() == "on its way\n[exit code 0]"


@pytest.mark.parametrize("text", ['it\'s \\n "quoted" $HOME `x`', "two\nlines", "tab\tund Ümläut ☃", "%s %b \\\\"])
def test_any_text_travels_as_it_is(work: Work, text: str) -> None:
    """Quotes, backslashes, line breaks and other alphabets reach the shell unchanged."""
    quoted = "'" + text.replace("'", "'\\''") + "'"
    assert work.text("terminal", command=f"printf '%s\\n' {quoted}") == f"{text}\n[exit code 0]"


def test_variables_are_set_and_not_shown(server: SSHServer, resources: SessionResources) -> None:
    """Variables reach the command, and are in no command line where others on the machine could see them."""
    work = Work(server, resources, env={"SECRET": "a b\\c\nd"})
    text = work.text("terminal", command='printf "%s|" "$SECRET"; env | grep -c HALTER_')
    assert text == "a b\\c\nd|1\n[exit code 0]"
    assert not any("a b" in command for command in server.commands)


def test_what_a_command_leaves_running_is_ended(work: Work, tmp_path: Path) -> None:
    """A server that was started with & does not outlive its command."""
    text = work.text("terminal", command="sleep 1000 >/dev/null & echo $! >pids; setsid sleep 1000 & echo $! >>pids")
    assert text == "[exit code 0]"
    assert not [pid for pid in pids_in(tmp_path / "pids") if is_alive(pid)]


def test_a_command_that_takes_too_long_is_ended(work: Work, tmp_path: Path) -> None:
    """After its time the command is dead, what it said is there, and the error says what to do."""
    command = "echo $$ >pids; echo half; sleep 1000"
    outcome, limit = call_limited(
        lambda seconds: work("terminal", command=command, timeout=seconds), lambda got: "half\n" in str(got.content)
    )
    assert outcome.status == "failed"
    assert "half\n[stopped after" in str(outcome.content)
    assert "all its processes have ended" in str(outcome.content)
    assert f"longer than {limit}" in outcome.detail
    judge_dead(tmp_path / "pids")


def test_a_directory_that_is_gone_is_told_once(work: Work) -> None:
    """If the directory was removed, the error says so and the next command begins where the first one did."""
    work.text("terminal", command="mkdir sub && cd sub")
    work.text("terminal", command="rmdir ../sub")
    outcome = work("terminal", command="pwd")
    assert "no such directory" in outcome.detail
    assert work("terminal", command="pwd").status == "completed"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("terminal", {"command": " "}, "the command is empty"),
        ("terminal", {"command": "x", "timeout": 0}, "must be greater than 0"),
        ("terminal", {"command": "a\0b"}, "null characters"),
        ("process", {"action": "poll", "job": 9}, "no job 9; existing jobs: none"),
        ("read_file", {"path": "nowhere"}, "No such file: nowhere"),
        ("read_file", {"path": "."}, "is a directory"),
        ("read_file", {"path": "/dev/zero"}, "not a regular file"),
        ("write_file", {"path": ".", "content": "x"}, "is a directory"),
        ("patch", {"changes": "nonsense"}, "neither a unified diff"),
        ("search_files", {"pattern": "x", "path": "nowhere"}, "no such file or directory: nowhere"),
        ("execute_code", {"code": "x" * 200_000 + " = 1; raise KeyError('no')"}, "KeyError: 'no'"),
    ],
)
def test_errors_say_what_is_wrong(work: Work, name: str, arguments: Any, words: str) -> None:
    """What cannot be done is an error that the model can act upon."""
    outcome = work(name, **arguments)
    assert outcome.status == "failed"
    assert words in outcome.detail


def test_a_command_that_destroys_needs_approval(work: Work, tmp_path: Path) -> None:
    """The rule of danger holds on other machines as well."""
    (tmp_path / "dear").mkdir()
    work.approve = None
    for name, arguments in (
        ("terminal", {"command": "rm -rf dear"}),
        ("terminal", {"command": "rm -rf dear", "background": True}),
        ("execute_code", {"code": "import shutil; shutil.rmtree('dear')"}),
    ):
        assert work(name, **arguments).status == "denied"
    assert (tmp_path / "dear").is_dir()


def test_much_output_is_cut_honestly(server: SSHServer, resources: SessionResources) -> None:
    """Of a flood the beginning and the end are kept, and how much is missing is said."""
    text = Work(server, resources, limit=1000).text("terminal", command="seq 1 100000")
    assert text.startswith("1\n2\n3\n")
    assert "bytes left out" in text
    assert text.endswith("100000\n[exit code 0]")
    assert len(text) < 1200


# -- files -------------------------------------------------------------------------------------------------------


def test_files_are_written_and_read(work: Work, tmp_path: Path) -> None:
    """A file is made with its directories, replaced with its rights kept, and read with line numbers from any line."""
    assert work.text("write_file", path="a/b.txt", content="one\ntwo\n") == "Created a/b.txt: 2 lines, 8 bytes."
    (tmp_path / "a/b.txt").chmod(0o751)
    assert work.text("write_file", path="a/b.txt", content="1\n2\n3\n4") == "Replaced a/b.txt: 4 lines, 7 bytes."
    assert (tmp_path / "a/b.txt").stat().st_mode & 0o777 == 0o751
    assert work.text("read_file", path="a/b.txt") == "     1\t1\n     2\t2\n     3\t3\n     4\t4"
    part = work.text("read_file", path="a/b.txt", start=2, lines=2)
    assert part.endswith("[lines 2 to 3 of 4; continue with start=4]")
    assert work.text("read_file", path="a/b.txt", start=4).endswith("4\n[lines 4 to 4: the end of the file]")
    (tmp_path / "zero").write_bytes(b"a\0b")
    assert "binary" in work("read_file", path="zero").detail
    (tmp_path / "empty").touch()
    assert work.text("read_file", path="empty") == "[the file is empty]"
    assert "there is no line" in work("read_file", path="empty", start=5).detail
    assert list(tmp_path.glob(".halter.*")) == []


def test_the_home_directory_has_a_short_name(
    work: Work, server: SSHServer, resources: SessionResources, tmp_path: Path
) -> None:
    """A path that begins with ~/ is in the home directory there, wherever the machine is worked in."""
    work.text("write_file", path="~/sub/a", content="x")
    assert (tmp_path / "sub/a").read_text() == "x"
    work.tools = Remote(machine_of(server, directory="~/sub")).tools
    assert work.text("read_file", path="a") == "     1\tx"
    assert work.text("read_file", path="~/sub/a") == "     1\tx"
    assert work.text("terminal", command="ls") == "a\n[exit code 0]"


def test_a_link_is_written_through(work: Work, tmp_path: Path) -> None:
    """Writing to a link changes what it points at, and the link stays."""
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    work.text("write_file", path="link", content="new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_in_the_middle_of_a_write_leaves_it_whole(work: Work, tmp_path: Path, reason: str) -> None:
    """A stopped write has all of the new content or all of the old, and no draft is left."""
    (tmp_path / "file").write_text("old")
    content = "x" * 5_000_000
    work.text("terminal", command="true")
    outcome = work.stopped("write_file", lambda: list(tmp_path.glob(".halter.*")), reason, path="file", content=content)
    assert outcome.status in ("partial", "completed")
    wait_until(lambda: not list(tmp_path.glob(".halter.*")))
    assert (tmp_path / "file").read_text() in ("old", content)


def test_a_lost_connection_in_the_middle_of_a_write_leaves_it_whole(
    work: Work, server: SSHServer, tmp_path: Path
) -> None:
    """If the connection breaks in a write the file is as it was, and no draft is left on the machine."""
    (tmp_path / "file").write_text("old")
    content = "x" * 9_000_000

    def cut() -> None:
        wait_until(lambda: list(tmp_path.glob(".halter.*")))
        server.drop()

    thread = threading.Thread(target=cut)
    thread.start()
    outcome = work("write_file", path="file", content=content)
    thread.join(10)
    wait_until(lambda: not list(tmp_path.glob(".halter.*")))
    whole = "old" if outcome.status == "failed" else content
    assert (tmp_path / "file").read_text() in (whole, content)


# -- the way in ----------------------------------------------------------------------------------------------------


def test_an_unknown_host_key_is_refused(server: SSHServer, resources: SessionResources, tmp_path: Path) -> None:
    """A machine that is not in known_hosts is not talked to, unless the user has said so."""
    (tmp_path / "other").write_text("")
    for options, status in (({"known_hosts": tmp_path / "other"}, "failed"), ({"check_host_key": False}, "completed")):
        work = Work(server, resources)
        work.tools = Remote(machine_of(server, **options)).tools
        outcome = work("terminal", command="echo in")
        assert outcome.status == status
        assert ("host key" in outcome.detail) == (status == "failed")


def test_a_wrong_password_is_told_without_it(
    server: SSHServer, resources: SessionResources, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is not let in is told so; the password is in no text, no log and no repr."""
    machine = machine_of(server, password="hunter2")
    work = Work(server, resources)
    work.tools = Remote(machine).tools
    with caplog.at_level(0):
        outcome = work("terminal", command="echo in")
    assert "refused the login" in outcome.detail
    assert "hunter2" not in outcome.detail + caplog.text + repr(machine) + repr(machine.open())


def test_a_machine_that_is_not_there_is_told(resources: SessionResources, server: SSHServer) -> None:
    """If nobody listens there, the error says so."""
    work = Work(server, resources)
    work.tools = Remote(machine_of(server, port=1)).tools
    assert "cannot reach" in work("terminal", command="x").detail
    with pytest.raises(ValueError, match="host is empty"):
        SSHMachine("")
    with pytest.raises(ValueError, match="keepalive must be greater than 0"):  # it sent heartbeats without a pause
        SSHMachine("host", keepalive=0)


def test_the_directory_survives_a_lost_connection(work: Work, server: SSHServer) -> None:
    """A command that could not be started because the machine was away moved the session to another directory."""
    work.text("terminal", command="mkdir sub && cd sub")
    server.drop(for_good=True)
    assert work("terminal", command="pwd").status == "failed"
    server.welcome()
    assert work.text("terminal", command="pwd").startswith(f"{server.home}/sub\n")


def test_the_tools_of_two_machines_are_told_apart(server: SSHServer, tmp_path: Path) -> None:
    """With a prefix an agent can have the tools of several machines; each has its own directory."""
    (tmp_path / "b").mkdir()
    one, two = Remote(machine_of(server), prefix="a_"), Remote(machine_of(server, directory="b"), prefix="b_")
    calls = [ask("a_terminal", "1", command="pwd"), ask("b_terminal", "2", command="pwd")]
    with agent_of(calls, "ok", tools=[*one.tools, *two.tools], approve=allow).session() as session:
        first, second = session.run("x").outcomes
        assert str(second.content) == str(first.content).replace("\n", "/b\n", 1)
        assert "a_terminal" in [spec.name for spec in model_of(session).requests[0].tools]


# -- in a session --------------------------------------------------------------------------------------------------


def test_a_session_stops_its_remote_work(server: SSHServer, tmp_path: Path) -> None:
    """In a whole turn: a stop ends the foreground command and not the job; the end of the session ends that too."""
    remote = remote_of(server)
    pids, job = tmp_path / "pids", tmp_path / "job"
    background = ask("terminal", "b", command="echo $$ >job; sleep 1000", background=True)
    gate = Gate()
    foreground = ask("terminal", "f", command=COMMANDS["new session"])
    agent = agent_of(background, foreground, [gate], tools=patient(remote.tools), approve=allow)
    with agent.session() as session:
        _stop_when(session, wait_for_pids(pids, 2))
        judge_dead(pids)
        assert is_alive(pids_in(job)[0])
        judge_session(session, model_of(session).requests)
        session.stop(scope="all")
        judge_dead(job)


def _stop_when(session: Session, condition: Callable[[], object]) -> None:
    running = RunningTurn(session)
    wait_until(condition)
    session.stop()
    turn = running.end()
    assert [outcome.status for outcome in turn.outcomes] == ["completed", "partial"]
    assert data_of(session, "turn.finished")[0].reason == "stop"
