"""The tools for another machine, over a real SSH connection: what they do, and what a stop or a cut leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from halter import CancellationToken, Session, ToolOutcome
from halter.models import ToolCall
from halter.testing import Gate
from halter.toolbox.machine import Command, MachineError
from halter.toolbox.remote import Remote
from halter.toolbox.ssh import SSHMachine
from halter.tools.events import ToolProgress
from halter.tools.keep import Keeper
from tests.helpers import is_alive, wait_dead, wait_until
from tests.historyjudge import judge_session
from tests.sessionkit import RunningTurn, agent_of, data_of, model_of
from tests.toolbox.sshserver import PASSWORD, USER, SSHServer
from tests.tools.probe import Probe


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SSHServer]:
    with SSHServer(tmp_path) as server:
        yield server


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    keeper = Keeper()
    yield keeper
    keeper.close()


def machine_of(server: SSHServer, **options: Any) -> SSHMachine:
    given: dict[str, Any] = {"username": USER, "password": PASSWORD, "client_keys": (), "port": server.port}
    return SSHMachine("127.0.0.1", **(given | {"known_hosts": server.known_hosts} | options))


def remote_of(server: SSHServer, **options: Any) -> Remote:
    return Remote(machine_of(server), grace=0.3, **options)


def ask(name: str, call_id: str = "c1", **arguments: Any) -> ToolCall:
    return ToolCall(call_id, name, json.dumps(arguments))


class Work:
    """Calls on one machine, one after the other, as one session would make them."""

    def __init__(self, server: SSHServer, keeper: Keeper, **options: Any) -> None:
        self._tools = remote_of(server, **options).tools
        self._keeper = keeper

    def __call__(self, name: str, **arguments: Any) -> ToolOutcome:
        return self.stopped(name, None, **arguments)

    def text(self, name: str, **arguments: Any) -> str:
        outcome = self(name, **arguments)
        assert outcome.status == "completed", outcome
        return str(outcome.content)

    def stopped(
        self, name: str, when: Callable[[], object] | None, reason: str = "stop", **arguments: Any
    ) -> ToolOutcome:
        async def main() -> ToolOutcome:
            probe = Probe(*self._tools, calls=[ask(name, **arguments)], keeper=self._keeper)
            self.probe = probe
            outcomes = await (probe.run() if when is None else probe.stopped_when(when, reason))
            return outcomes[0]

        return asyncio.run(asyncio.wait_for(main(), 40))


@pytest.fixture
def work(server: SSHServer, keeper: Keeper) -> Work:
    return Work(server, keeper)


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def wait_for_pids(path: Path, count: int) -> Callable[[], bool]:
    return lambda: len(pids_in(path)) == count


def judge_dead(path: Path) -> None:
    pids = pids_in(path)
    assert pids
    for pid in pids:
        wait_dead(pid)


def leftovers(server: SSHServer) -> list[str]:
    """Find what the wrapper itself would leave: its temporary directories and drafts."""
    return [str(path) for place in (server.home, Path("/tmp")) for path in place.glob(".halter.*")]


# -- terminal ------------------------------------------------------------------------------------------------------


def test_a_command_runs_there(work: Work, server: SSHServer) -> None:
    """Output of both streams comes back in order, with the exit code; a cd holds for the next command."""
    home = os.path.realpath(server.home)
    assert work.text("terminal", command="echo one; echo two >&2; exit 3") == "one\ntwo\n[exit code 3]"
    assert work.text("terminal", command="mkdir sub && cd sub") == f"[exit code 0; now in {home}/sub]"
    assert work.text("terminal", command="pwd") == f"{home}/sub\n[exit code 0]"
    assert server.connections == 1
    assert any(isinstance(event, ToolProgress) for event in work.probe.events)


@pytest.mark.parametrize("text", ['it\'s \\n "quoted" $HOME `x`', "two\nlines", "tab\tund Ümläut ☃", "%s %b \\\\"])
def test_any_text_travels_as_it_is(work: Work, text: str) -> None:
    """Quotes, backslashes, line breaks and other alphabets reach the shell unchanged."""
    quoted = "'" + text.replace("'", "'\\''") + "'"
    assert work.text("terminal", command=f"printf '%s\\n' {quoted}") == f"{text}\n[exit code 0]"


def test_variables_are_set_and_not_shown(server: SSHServer, keeper: Keeper) -> None:
    """Variables reach the command, and are in no command line where others on the machine could see them."""
    work = Work(server, keeper, env={"SECRET": "a b\\c\nd"})
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
    outcome = work("terminal", command="echo $$ >pids; echo half; sleep 1000", timeout=0.3)
    assert outcome.status == "failed"
    assert "half\n[stopped after" in str(outcome.content)
    assert "all its processes have ended" in str(outcome.content)
    assert "longer than 0.3 s" in outcome.detail
    judge_dead(tmp_path / "pids")


def test_a_directory_that_is_gone_is_told_once(work: Work) -> None:
    """If the directory was removed, the error says so and the next command begins where the first one did."""
    work.text("terminal", command="mkdir sub && cd sub")
    work.text("terminal", command="rmdir ../sub")
    outcome = work("terminal", command="pwd")
    assert "there is no directory" in outcome.detail
    assert work("terminal", command="pwd").status == "completed"


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("terminal", {"command": " "}, "the command is empty"),
        ("terminal", {"command": "x", "timeout": 0}, "leaves no time"),
        ("terminal", {"command": "a\0b"}, "null characters"),
        ("process", {"action": "poll", "job": 9}, "there is no job 9; there are: none at all"),
        ("read_file", {"path": "nowhere"}, "there is no file nowhere"),
        ("read_file", {"path": "."}, "is a directory"),
        ("read_file", {"path": "/dev/zero"}, "no ordinary file"),
        ("write_file", {"path": ".", "content": "x"}, "is a directory"),
        ("execute_code", {"code": "x" * 100_001}, "longer than"),
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
    for name, arguments in (
        ("terminal", {"command": "rm -rf dear"}),
        ("terminal", {"command": "rm -rf dear", "background": True}),
        ("execute_code", {"code": "import shutil; shutil.rmtree('dear')"}),
    ):
        assert work(name, **arguments).status == "denied"
    assert (tmp_path / "dear").is_dir()


def test_much_output_is_cut_honestly(server: SSHServer, keeper: Keeper) -> None:
    """Of a flood the beginning and the end are kept, and how much is missing is said."""
    text = Work(server, keeper, limit=1000).text("terminal", command="seq 1 100000")
    assert text.startswith("1\n2\n3\n")
    assert "bytes left out" in text
    assert text.endswith("100000\n[exit code 0]")
    assert len(text) < 1200


# -- stops ---------------------------------------------------------------------------------------------------------

# Each writes two process ids and says "half"; each tries to get away in another way.
COMMANDS = {
    "plain": "sleep 1000 & echo $! $$ >pids; echo half; wait",
    "ignores TERM": "trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & echo $! $$ >pids; echo half; wait",
    "new session": "setsid sleep 1000 & echo $! $$ >pids; echo half; wait",
    "double fork": "(setsid sh -c 'echo $$ >>pids; exec sleep 1000' &) ; echo $$ >>pids; echo half; sleep 1000",
    "own group": "env -i bash -mc 'sleep 1000 & echo $! $$ >>pids; wait' & echo half; wait",
    "python": 'python3 -c \'import os; print(os.getpid(), os.getppid(), file=open("pids", "w")); print("half", '
    "flush=True); import time; time.sleep(1000)'; true",
}


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

    def twice() -> bool:
        if any("half" in event.text for event in work.probe.told(ToolProgress)):
            work.probe.token.cancel(reason)
            work.probe.token.cancel("interrupt")
            return True
        return False

    outcome = work.stopped("terminal", twice, reason, command="echo half; sleep 1000")
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
        ("process", {"action": "list"}),
    ],
)
def test_a_stop_at_rest_starts_nothing(work: Work, server: SSHServer, name: str, arguments: Any, reason: str) -> None:
    """A call that is stopped before it starts does not even connect."""

    async def main() -> None:
        probe = Probe(*work._tools, calls=[ask(name, **arguments)])
        probe.token.cancel(reason)
        assert [outcome.status for outcome in await probe.run()] == ["not_started"]

    asyncio.run(main())
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


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_at_the_end_changes_nothing(work: Work, reason: str) -> None:
    """A command that had ended keeps its result."""
    outcome = work("terminal", command="echo whole")
    work.probe.token.cancel(reason)
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

    def when() -> bool:
        if not wait_for_pids(pids, 2)():
            return False
        work.probe.token.cancel("stop")
        server.drop()
        return True

    outcome = work.stopped("terminal", when, command=COMMANDS["ignores TERM"])
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


def test_a_connection_that_falls_silent_ends_the_command(server: SSHServer, keeper: Keeper, tmp_path: Path) -> None:
    """If heartbeats do not arrive any more, and nobody has noticed a break, the machine ends the command as well."""
    work = Work(server, keeper)
    work._tools = Remote(machine_of(server, keepalive=0.25), grace=0.3).tools
    work.text("terminal", command=COMMANDS["ignores TERM"], background=True)
    wait_until(wait_for_pids(tmp_path / "pids", 2))
    server.is_silent = True
    judge_dead(tmp_path / "pids")


def test_heartbeats_keep_a_command_alive(server: SSHServer, keeper: Keeper) -> None:
    """A command that says nothing for longer than the silence that is allowed goes on."""
    work = Work(server, keeper)
    work._tools = Remote(machine_of(server, keepalive=0.25)).tools
    assert work.text("terminal", command="sleep 2; echo there") == "there\n[exit code 0]"


def test_more_commands_than_a_server_allows_take_turns(server: SSHServer, keeper: Keeper) -> None:
    """Twelve commands at once are all run, and a stop reaches those that wait for their turn."""
    tools = remote_of(server).tools

    async def main() -> None:
        calls = [ask("terminal", f"c{number}", command=f"echo {number}") for number in range(12)]
        outcomes = await Probe(*tools, calls=calls, keeper=keeper).run()
        assert [outcome.content for outcome in outcomes] == [f"{number}\n[exit code 0]" for number in range(12)]
        calls = [ask("terminal", f"d{number}", command="echo $$ >>pids; sleep 1000") for number in range(12)]
        probe = Probe(*tools, calls=calls, keeper=keeper)
        outcomes = await probe.stopped_when(lambda: len(pids_in(server.home / "pids")) == 4)
        assert [outcome.status for outcome in outcomes] == ["partial"] * 12
        assert sum("stopped before it was started" in str(outcome.content) for outcome in outcomes) == 8

    asyncio.run(asyncio.wait_for(main(), 40))
    judge_dead(server.home / "pids")
    assert len(pids_in(server.home / "pids")) == 4


# -- jobs ----------------------------------------------------------------------------------------------------------


def test_a_job_is_looked_after(work: Work, tmp_path: Path) -> None:
    """A background job takes input, tells its news once, is listed, waited for, and ends with its input."""
    command = 'echo ready; while read -r x; do echo "got $x"; done; echo bye'
    started = work.text("terminal", command=command, background=True)
    assert started.startswith("[job 1 started, process ")
    assert "written to job 1: 4 bytes" in work.text("process", action="write", job=1, text="a b\n")
    assert "job 1 runs for" in work.text("process", action="list")
    assert "and its input ended" in work.text("process", action="write", job=1, text="c\n", end_input=True)
    waited = work.text("process", action="wait", job=1)
    assert "got a b" in waited
    assert "got c" in waited
    assert "bye\n[job 1 ended with exit code 0" in waited
    assert work.text("process", action="poll", job=1).startswith("[job 1 ended")
    outcome = work("process", action="write", job=1, text="x")
    assert "takes no input any more" in outcome.detail


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_of_writing_to_a_job_that_does_not_read(work: Work, tmp_path: Path, reason: str) -> None:
    """Input that nobody reads does not hold up a stop, and who would pass it on ends with the job."""
    work.text("terminal", command="echo $$ >pids; exec sleep 1000", background=True)
    wait_until(wait_for_pids(tmp_path / "pids", 1))
    started = lambda: any(type(event).__name__ == "ToolStarted" for event in work.probe.events)  # noqa: E731
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
    started = lambda: any(type(event).__name__ == "ToolStarted" for event in work.probe.events)  # noqa: E731
    outcome = work.stopped("process", started, reason, action="wait", job=1)
    assert outcome.status == "partial"
    assert "[job 1 runs for" in str(outcome.content)
    assert is_alive(pids_in(tmp_path / "pids")[0])


def test_a_job_ends_with_its_session(server: SSHServer, tmp_path: Path) -> None:
    """Closing what was kept ends the jobs, the connection and its thread."""
    keeper = Keeper()
    Work(server, keeper).text("terminal", command=COMMANDS["new session"], background=True)
    wait_until(wait_for_pids(tmp_path / "pids", 2))
    keeper.close()
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
    assert "5 background jobs run already" in work("terminal", command="sleep 1000", background=True).detail
    assert work.text("terminal", command="echo there") == "there\n[exit code 0]"
    work.text("process", action="kill", job=1)
    assert work.text("terminal", command="sleep 1000", background=True).startswith("[job 6 started")


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_while_a_job_is_started_leaves_no_job(work: Work, server: SSHServer, reason: str) -> None:
    """A job whose start was stopped is no job: nothing of it runs, and it is not listed."""
    started = lambda: any(type(event).__name__ == "ToolStarted" for event in work.probe.events)  # noqa: E731
    outcome = work.stopped("terminal", started, reason, command="echo $$ >>pids; sleep 1000", background=True)
    listed = work.text("process", action="list")
    if outcome.status == "cancelled":
        assert listed == "There are no jobs."
        for pid in pids_in(server.home / "pids"):
            wait_dead(pid)
    else:  # it had been started
        assert listed.startswith("job 1 runs for")


def test_a_job_on_a_machine_that_is_not_there_is_told(server: SSHServer, keeper: Keeper) -> None:
    """A job that could not be started is an error and is not listed."""
    work = Work(server, keeper)
    work._tools = Remote(machine_of(server, port=1)).tools
    assert "cannot be reached" in work("terminal", command="x", background=True).detail
    assert work.text("process", action="list") == "There are no jobs."


def test_a_link_that_was_closed_says_so(server: SSHServer) -> None:
    """What comes after the end of the session is refused, and closing twice, or unused, does nothing."""
    link = machine_of(server).open()
    link.close()
    link.close()
    running = link.start(Command("true"), print)
    assert running.wait_over(timeout=10)
    assert "closed with its session" in str(running.error)
    with pytest.raises(MachineError, match="closed with its session"):
        link.run("true", token=CancellationToken())


def test_without_asyncssh_the_extra_is_named(
    server: SSHServer, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the library is missing the error says how to get it."""
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    work = Work(server, keeper)
    assert "pip install 'halter[ssh]'" in work("terminal", command="x").detail


def test_a_script_that_hangs_is_given_up(server: SSHServer) -> None:
    """A machine that does not answer in time is told as that."""
    link = machine_of(server).open()
    with pytest.raises(MachineError, match="did not answer within"):
        link.run("sleep 5", token=CancellationToken(), timeout=0.2)
    link.close()


# -- files and code ------------------------------------------------------------------------------------------------


def test_files_are_written_and_read(work: Work, tmp_path: Path) -> None:
    """A file is made with its directories, replaced with its rights kept, and read with line numbers from any line."""
    assert work.text("write_file", path="a/b.txt", content="one\ntwo\n") == "Made a/b.txt: 2 lines, 8 bytes."
    (tmp_path / "a/b.txt").chmod(0o751)
    assert work.text("write_file", path="a/b.txt", content="1\n2\n3\n4") == "Replaced a/b.txt: 4 lines, 7 bytes."
    assert (tmp_path / "a/b.txt").stat().st_mode & 0o777 == 0o751
    assert work.text("read_file", path="a/b.txt") == "     1\t1\n     2\t2\n     3\t3\n     4\t4"
    part = work.text("read_file", path="a/b.txt", start=2, lines=2)
    assert part.endswith("[lines 2 to 3 of 4, 7 bytes; go on with start=4]")
    assert work.text("read_file", path="a/b.txt", start=4).endswith("4\n[lines 4 to 4: the end of the file]")
    (tmp_path / "zero").write_bytes(b"a\0b")
    assert "binary" in work("read_file", path="zero").detail
    (tmp_path / "empty").touch()
    assert work.text("read_file", path="empty") == "[the file is empty]"
    assert "behind its end" in work("read_file", path="empty", start=5).detail
    assert list(tmp_path.glob(".halter.*")) == []


def test_the_home_directory_has_a_short_name(work: Work, server: SSHServer, keeper: Keeper, tmp_path: Path) -> None:
    """A path that begins with ~/ is in the home directory there, wherever the machine is worked in."""
    work.text("write_file", path="~/sub/a", content="x")
    assert (tmp_path / "sub/a").read_text() == "x"
    work._tools = Remote(machine_of(server, directory="~/sub")).tools
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


def test_code_runs_there(work: Work) -> None:
    """Python code prints what it prints; an error has its traceback and its exit code."""
    assert work.text("execute_code", code="print(2 + 3)\nprint('x')") == "5\nx\n[exit code 0]"
    text = work.text("execute_code", code="raise KeyError('no')")
    assert "KeyError: 'no'" in text
    assert text.endswith("[exit code 1]")


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_stop_of_code_gives_what_it_printed(work: Work, tmp_path: Path, reason: str) -> None:
    """Stopped code is dead, and what it had printed is there."""
    code = "import os, time\nprint('half')\nopen('pids', 'w').write(str(os.getpid()))\ntime.sleep(1000)"
    outcome = work.stopped("execute_code", wait_for_pids(tmp_path / "pids", 1), reason, code=code)
    assert outcome.status == "partial"
    assert str(outcome.content).startswith("half\n[stopped after")
    judge_dead(tmp_path / "pids")


# -- the way in ----------------------------------------------------------------------------------------------------


def test_an_unknown_host_key_is_refused(server: SSHServer, keeper: Keeper, tmp_path: Path) -> None:
    """A machine that is not in known_hosts is not talked to, unless the user has said so."""
    (tmp_path / "other").write_text("")
    for options, status in (({"known_hosts": tmp_path / "other"}, "failed"), ({"check_host_key": False}, "completed")):
        work = Work(server, keeper)
        work._tools = Remote(machine_of(server, **options)).tools
        outcome = work("terminal", command="echo in")
        assert outcome.status == status
        assert ("host key" in outcome.detail) == (status == "failed")


def test_a_wrong_password_is_told_without_it(
    server: SSHServer, keeper: Keeper, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever is not let in is told so; the password is in no text, no log and no repr."""
    machine = machine_of(server, password="hunter2")
    work = Work(server, keeper)
    work._tools = Remote(machine).tools
    with caplog.at_level(0):
        outcome = work("terminal", command="echo in")
    assert "does not let us in" in outcome.detail
    assert "hunter2" not in outcome.detail + caplog.text + repr(machine) + repr(machine.open())


def test_a_machine_that_is_not_there_is_told(keeper: Keeper, server: SSHServer) -> None:
    """If nobody listens there, the error says so."""
    work = Work(server, keeper)
    work._tools = Remote(machine_of(server, port=1)).tools
    assert "cannot be reached" in work("terminal", command="x").detail
    with pytest.raises(ValueError, match="which machine"):
        SSHMachine("")


def test_the_tools_of_two_machines_are_told_apart(server: SSHServer, tmp_path: Path) -> None:
    """With a prefix an agent can have the tools of several machines; each has its own directory."""
    (tmp_path / "b").mkdir()
    one, two = Remote(machine_of(server), prefix="a_"), Remote(machine_of(server, directory="b"), prefix="b_")
    calls = [ask("a_terminal", "1", command="pwd"), ask("b_terminal", "2", command="pwd")]
    with agent_of(calls, "ok", tools=[*one.tools, *two.tools]).session() as session:
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
    agent = agent_of(background, ask("terminal", "f", command=COMMANDS["new session"]), [gate], tools=remote.tools)
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
