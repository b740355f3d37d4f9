"""Stops of what runs on another machine, and connections that are lost in the middle of it: nobody is left."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from halter import CancellationToken
from halter.testing import Stop
from halter.toolbox.remote import machine as machine_module
from halter.toolbox.remote.machine import RemoteCommand
from halter.toolbox.remote.remote import Remote
from halter.toolbox.remote.ssh import SSHMachine
from halter.tools.resources import SessionResources
from tests.support.allowing import allow
from tests.support.batches import Probe
from tests.support.processes import is_alive, wait_dead
from tests.support.remote_calls import COMMANDS, Work, ask, judge_dead, machine_of, pids_in, remote_of, wait_for_pids
from tests.support.ssh_server import SSHServer
from tests.support.stopped_calls import PATIENT, patient
from tests.support.waiting import wait_until

# -- stops ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["stop", "interrupt", "steer"])
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_stop_in_the_middle_ends_all_of_it(work: Work, tmp_path: Path, kind: str, reason: str) -> None:
    """What was said is given back, and the whole family is dead on its machine, also who tried to get away."""
    pids = tmp_path / "pids"
    outcome = work.stopped("terminal", wait_for_pids(pids, 2), reason, command=COMMANDS[kind])
    assert (outcome.status, outcome.reason) == ("partial", reason)
    assert "[stopped after" in str(outcome.content)
    judge_dead(pids)


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_what_was_said_is_given_back(work: Work, reason: str) -> None:
    """The partial output of a stopped command is its result; a second stop changes nothing."""
    outcome = work("terminal", Stop(reason, "twice", report="half"), command="echo half; sleep 1000")
    assert (outcome.status, outcome.reason) == ("partial", reason)
    assert str(outcome.content).startswith("half\n[stopped after")


@pytest.mark.parametrize("reason", ["stop", "steer"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("terminal", {"command": "touch made"}),
        ("terminal", {"command": "touch made", "background": True}),
        ("execute_code", {"code": "open('made', 'w')"}),
        ("write_file", {"path": "made", "content": "x"}),
        ("read_file", {"path": "known_hosts"}),
        ("patch", {"changes": "--- /dev/null\n+++ made\n@@ -0,0 +1 @@\n+x\n"}),
        ("search_files", {"pattern": "x"}),
        ("process", {"action": "list"}),
    ],
)
def test_a_stop_at_rest_starts_nothing(work: Work, server: SSHServer, name: str, arguments: Any, reason: str) -> None:
    """A call that is stopped before it starts does not even connect."""
    assert work(name, Stop(reason, "before"), **arguments).status == "not_started"
    assert server.connections == 0
    assert not (server.home / "made").exists()


@pytest.mark.parametrize("reason", ["stop", "steer"])
@pytest.mark.parametrize("count", range(5))
def test_a_stop_at_the_start_leaves_nothing(
    work: Work, server: SSHServer, tmp_path: Path, reason: str, count: int
) -> None:
    """A stop while the connection is made, or the command is being started, is not lost; the connection is used."""
    ready = threading.Event()
    counted = iter(range(count * 40))

    def when() -> bool:
        ready.set()
        return next(counted, None) is None

    outcome = work.stopped("terminal", when, reason, command="echo $$ >>pids; sleep 1000")
    assert outcome.status in ("partial", "cancelled", "not_started")
    assert work.text("terminal", command="true") == "[exit code 0]"
    assert server.connections == 1
    for pid in pids_in(tmp_path / "pids"):
        wait_dead(pid)


def test_a_connection_that_is_made_while_it_is_closed_does_not_stay(
    server: SSHServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came after the end, and so nobody closed it: the machine had an open connection until the program ended."""
    machine = machine_of(server)
    connect, waits = machine.connect, threading.Event()

    async def late() -> Any:
        waits.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()  # ends when the connection is closed
        return await connect()

    monkeypatch.setattr(machine, "connect", late)
    connection = machine.open()
    connection.start(RemoteCommand("true"), lambda _: None)
    assert waits.wait(30)
    connection.close()
    wait_until(lambda: server.connections == 0)
    assert connection.start(RemoteCommand("true"), lambda _: None).is_over


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_at_the_end_changes_nothing(work: Work, reason: str) -> None:
    """A command that had ended keeps its result."""
    outcome = work("terminal", Stop(reason, "end"), command="echo whole")
    assert (outcome.status, outcome.content) == ("completed", "whole\n[exit code 0]")


# -- lost connections ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COMMANDS)
def test_a_lost_connection_ends_the_command(work: Work, server: SSHServer, tmp_path: Path, kind: str) -> None:
    """When the connection breaks the machine ends the command by itself; it is asked again, and the result says so."""
    pids = tmp_path / "pids"

    def cut() -> None:
        wait_until(wait_for_pids(pids, 2))
        server.drop()

    thread = threading.Thread(target=cut)
    thread.start()
    outcome = work("terminal", command=COMMANDS[kind])
    thread.join(10)
    assert outcome.status == "failed"
    assert "connection to tester@127.0.0.1 was lost" in outcome.detail
    assert "all its processes have ended" in str(outcome.content)
    assert not [pid for pid in pids_in(pids) if is_alive(pid)]
    assert work.text("terminal", command="echo again") == "again\n[exit code 0]"


def test_a_machine_that_is_gone_for_good_ends_the_command_too(work: Work, server: SSHServer, tmp_path: Path) -> None:
    """If the machine cannot be asked any more, a stop gives control back and claims nothing; the command is dead."""
    pids = tmp_path / "pids"

    def when() -> bool:
        if not wait_for_pids(pids, 2)():
            return False
        server.drop(for_good=True)
        return True

    outcome = work.stopped("terminal", when, command=COMMANDS["new session"])
    assert outcome.status == "partial"
    assert "all its processes have ended" not in str(outcome.content)
    judge_dead(pids)


def test_a_stop_and_a_cut_together_leave_nothing(work: Work, server: SSHServer, tmp_path: Path) -> None:
    """A connection that breaks while a command is being stopped takes nothing back."""
    pids = tmp_path / "pids"
    token = CancellationToken()

    def stop_and_cut() -> None:
        wait_until(wait_for_pids(pids, 2))
        token.cancel()
        server.drop()

    thread = threading.Thread(target=stop_and_cut)
    thread.start()
    outcome = work("terminal", Stop("stop", token), command=COMMANDS["ignores TERM"])
    thread.join(30)
    assert outcome.status == "partial"
    judge_dead(pids)


@pytest.mark.parametrize("missing", [{"bash"}, {"setsid"}, {"bash", "setsid"}])
@pytest.mark.parametrize("how", ["stop", "cut"])
def test_a_sparse_machine_is_enough(
    work: Work, server: SSHServer, tmp_path_factory: pytest.TempPathFactory, missing: set[str], how: str
) -> None:
    """Without bash or setsid commands run as well, and nobody is left of them."""
    server.path = str(_tools_without(missing, tmp_path_factory.mktemp("bin")))
    assert work.text("terminal", command="echo there; exit 3") == "there\n[exit code 3]"
    pids = server.home / "pids"

    def when() -> bool:
        if not wait_for_pids(pids, 3)():
            return False
        if how == "cut":
            server.drop()
        return True

    command = (
        "trap '' TERM; sleep 1000 & echo $! >>pids; (sleep 1000 & echo $! >>pids) ; echo $$ >>pids; echo half; wait"
    )
    outcome = work.stopped("terminal", when, command=command)
    assert outcome.status == "partial"
    judge_dead(pids)


def _tools_without(missing: set[str], folder: Path) -> Path:
    """Make a folder of links to the programs that any machine has."""
    names = "bash cat chmod cp dirname env grep head mkdir mkfifo mktemp mv pwd readlink rm sed setsid sh sleep tail wc"
    for name in set(names.split()) - missing:
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    return folder


def test_a_connection_that_falls_silent_ends_the_command(
    server: SSHServer, beating: SSHMachine, resources: SessionResources, tmp_path: Path
) -> None:
    """If heartbeats do not arrive any more, and nobody has noticed a break, the machine ends the command as well."""
    work = Work(server, resources)
    work.tools = Remote(beating, grace=0.3).tools
    work.text("terminal", command=COMMANDS["ignores TERM"], background=True)
    wait_until(wait_for_pids(tmp_path / "pids", 2))
    server.is_silent = True
    judge_dead(tmp_path / "pids")


def test_heartbeats_keep_a_command_alive(server: SSHServer, beating: SSHMachine, resources: SessionResources) -> None:
    """A command that says nothing for longer than the silence that is allowed goes on."""
    work = Work(server, resources)
    work.tools = Remote(beating).tools
    assert work.text("terminal", command="sleep 4; echo there") == "there\n[exit code 0]"


def test_more_commands_than_a_server_allows_take_turns(
    server: SSHServer, resources: SessionResources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve commands at once are all run, and a stop reaches those that wait for their turn."""
    monkeypatch.setattr(machine_module, "_STOP_WAIT", PATIENT)
    tools = patient(remote_of(server).tools)

    async def main() -> None:
        calls = [ask("terminal", f"c{number}", command=f"echo {number}") for number in range(12)]
        outcomes = await Probe(*tools, calls=calls, resources=resources).run()
        assert [outcome.content for outcome in outcomes] == [f"{number}\n[exit code 0]" for number in range(12)]
        calls = [ask("terminal", f"d{number}", command="echo $$ >>pids; sleep 1000") for number in range(12)]
        probe = Probe(*tools, calls=calls, resources=resources, approve=allow)
        outcomes = await probe.stopped_when(lambda: len(pids_in(server.home / "pids")) == 4)
        assert [outcome.status for outcome in outcomes] == ["partial"] * 12
        assert sum("stopped before it was started" in str(outcome.content) for outcome in outcomes) == 8

    asyncio.run(asyncio.wait_for(main(), 40))
    judge_dead(server.home / "pids")
    assert len(pids_in(server.home / "pids")) == 4


def test_a_command_is_not_started_after_its_stop(server: SSHServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that came while the channel was opened was overtaken by the command: it ran, for a moment at least."""
    opens, is_stopped = threading.Event(), threading.Event()
    create_session = asyncssh.SSHClientConnection.create_session

    async def late(self: Any, *args: Any, **options: Any) -> Any:
        opens.set()
        await asyncio.to_thread(is_stopped.wait, 30)
        return await create_session(self, *args, **options)

    monkeypatch.setattr(asyncssh.SSHClientConnection, "create_session", late)
    connection = machine_of(server).open()
    process = connection.start(RemoteCommand("touch mark"), lambda _: None)
    assert opens.wait(30)
    process.stop(0.3)
    is_stopped.set()
    assert process.wait_over(timeout=30)
    assert process.pid is None  # which the other side reports as soon as it has started the command
    assert process.is_gone
    assert not (server.home / "mark").exists()
    connection.close()
