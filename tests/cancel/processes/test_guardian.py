"""The guardian: a SIGKILL of this process leaves none of its processes alive."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from halter.cancel.processes import guardian
from halter.cancel.processes.guardian_main import SLOT, TREE
from tests.support.processes import is_alive, run_python, wait_dead
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and pidfd")

# What every program begins with. A process that is to die writes its number into the folder "pids".
_HEAD = """
import asyncio, os, signal, subprocess, sys, threading, time
from pathlib import Path
home = Path(sys.argv[1])
SLEEP = f"echo x > {home}/pids/$$; exec sleep 60"
def wait_for(count):
    while len(os.listdir(home / "pids")) < count:
        time.sleep(0.005)
    while not guardian_pid():
        time.sleep(0.005)
    (home / "ready").touch()
def guardian_pid():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\\0")
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            # The one that is our child ends as soon as it has started the other one.
            is_guardian = any(word.endswith(b"guardian_main.py") for word in words)
            if is_guardian and parent != os.getpid() and str(os.getpid()).encode() in words:
                (home / "guardian").write_text(name)
                return int(name)
"""


class Program(NamedTuple):
    """A program of its own, the processes it has started, and its guardian."""

    process: subprocess.Popen[bytes]
    home: Path

    @property
    def pids(self) -> list[int]:
        return [int(path.name) for path in (self.home / "pids").iterdir()]

    @property
    def guardian(self) -> int:
        return int((self.home / "guardian").read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)

    def all_are_dead(self) -> None:
        """The processes end within a second, with some reserve for a busy machine, and the guardian after them."""
        for pid in self.pids:
            wait_dead(pid, 5)
        wait_dead(self.guardian, 5)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    """Run a program until it says that it is ready; whatever is left of it is killed after the test."""
    (tmp_path / "pids").mkdir()
    programs: list[Program] = []

    def start(code: str) -> Program:
        text = _HEAD + textwrap.dedent(code)
        program = Program(subprocess.Popen([sys.executable, "-c", text, str(tmp_path)]), tmp_path)
        programs.append(program)
        wait_until(lambda: (tmp_path / "ready").exists() or program.process.poll() is not None, 30)
        return program

    yield start
    for program in programs:
        program.process.kill()
        program.process.wait(30)
        for pid in program.pids:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


_TREES = {
    "run_process": """
        from halter import run_process
        threading.Thread(target=wait_for, args=(1,)).start()
        asyncio.run(run_process(SLEEP))
        """,
    "run_process, an escapee that ignores TERM": """
        from halter import run_process
        threading.Thread(target=wait_for, args=(2,)).start()
        asyncio.run(run_process(f"trap '' TERM HUP; (setsid sh -c '{SLEEP}' &); " + SLEEP))
        """,
    "run_process, without an environment": """
        from halter import run_process
        threading.Thread(target=wait_for, args=(1,)).start()
        asyncio.run(run_process(["env", "-i", "/bin/sh", "-c", SLEEP]))
        """,
    "an isolated function and its child": """
        from halter import run_isolated
        threading.Thread(target=wait_for, args=(1,)).start()
        run_isolated(subprocess.run, SLEEP, shell=True)
        """,
    "plain subprocess in a deaf tool": """
        from halter import Agent, tool
        from halter.models import ToolCall
        from halter.testing import ScriptedModel
        @tool
        def deaf() -> str:
            "Deaf."
            subprocess.run(SLEEP, shell=True)
        threading.Thread(target=wait_for, args=(1,)).start()
        Agent(ScriptedModel(ToolCall("1", "deaf", "{}"), "x"), [deaf]).session().run("go")
        """,
    "plain asyncio subprocess in an async tool, in a session of its own": """
        from halter import Agent, tool
        from halter.models import ToolCall
        from halter.testing import ScriptedModel
        @tool
        async def own() -> str:
            "Own."
            await (await asyncio.create_subprocess_shell(SLEEP, start_new_session=True)).wait()
        threading.Thread(target=wait_for, args=(1,)).start()
        Agent(ScriptedModel(ToolCall("1", "own", "{}"), "x"), [own]).session().run("go")
        """,
    "a background job of the terminal, and a child that has no environment": """
        import json
        from halter import Agent
        from halter.models import ToolCall
        from halter.testing import ScriptedModel
        from halter.toolbox.terminal.terminal import Terminal
        command = "env -i /bin/sh -c '" + SLEEP + "' & " + SLEEP
        call = ToolCall("1", "terminal", json.dumps({"command": command, "background": True}))
        session = Agent(ScriptedModel(call, "x"), Terminal(home).tools, approve=lambda request: True).session()
        session.run("go")
        wait_for(2)
        time.sleep(60)
        """,
}


@pytest.mark.parametrize("name", _TREES)
def test_a_killed_program_leaves_no_process(name: str, start: object) -> None:
    """SIGKILL cannot be caught; the guardian ends what was left, and then itself."""
    program: Program = start(_TREES[name])  # type: ignore[operator]
    assert program.process.poll() is None
    assert all(is_alive(pid) for pid in program.pids)
    program.kill()
    began = time.monotonic()
    program.all_are_dead()
    assert time.monotonic() - began < 5


def test_os_exit_is_treated_like_a_kill(start: object) -> None:
    """A program that leaves without its exit handlers has not ended its processes."""
    program: Program = start(  # type: ignore[operator]
        """
        from halter import run_process
        def leave():
            wait_for(1)
            os._exit(3)
        threading.Thread(target=leave).start()
        asyncio.run(run_process(SLEEP))
        """
    )
    assert program.process.wait(30) == 3
    program.all_are_dead()


def test_after_a_proper_exit_it_ends_at_once_and_kills_nobody(start: object) -> None:
    """A server that a command has started in the background is meant to run on after a regular exit."""
    program: Program = start(  # type: ignore[operator]
        """
        from halter import run_process_blocking
        run_process_blocking(f"(setsid sh -c '{SLEEP}' >/dev/null 2>&1 &)")
        wait_for(1)
        """
    )
    assert program.process.wait(30) == 0
    wait_dead(program.guardian, 5)
    [pid] = program.pids
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_program_that_becomes_another_one_is_left_alone(start: object) -> None:
    """After exec the guardian goes, and does not end the processes of the new program when that ends."""
    program: Program = start(  # type: ignore[operator]
        """
        from halter import run_process_blocking
        run_process_blocking("true")
        wait_for(0)
        os.execv("/bin/sh", ["sh", "-c", f"(setsid sh -c '{SLEEP}' >/dev/null 2>&1 &) ; exec sleep 60"])
        """
    )
    wait_dead(program.guardian, 10)
    wait_until(lambda: program.pids)
    assert program.process.poll() is None
    program.kill()
    [pid] = program.pids
    assert is_alive(pid)


def test_a_program_that_becomes_another_one_before_the_guardian_has_begun(start: object) -> None:
    """The guardian took the new program for its own, stayed as long as that ran, and then ended its processes."""
    program: Program = start(  # type: ignore[operator]
        """
        from halter.cancel.processes import guardian
        class Noted(subprocess.Popen):
            def __init__(self, *args, **options):
                super().__init__(*args, **options)
                (home / "guardian").write_text(str(self.pid))
        subprocess.Popen = Noted
        guardian.ensure().started.wait(30)
        (home / "ready").touch()
        os.execv("/bin/sleep", ["sleep", "60"])
        """
    )
    assert program.guardian  # one was started
    # Looked for twice: one look can miss both the process that forks and ends, and its fork.
    wait_until(lambda: not guardians_of(program.process.pid) and not guardians_of(program.process.pid))
    assert program.process.poll() is None


def guardians_of(pid: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if str(pid).encode() in words and any(word.endswith(b"guardian_main.py") for word in words):
                found.append(path.parent.name)
    return found


def test_closed_descriptors_do_not_end_the_protection(start: object) -> None:
    """Programs close all descriptors that they do not know; nothing is written into what gets their numbers next."""
    program: Program = start(  # type: ignore[operator]
        """
        from halter import run_process_blocking
        run_process_blocking("true")
        wait_for(0)
        (home / "ready").unlink()
        os.closerange(3, 100)
        files = [open(home / f"file{number}", "wb") for number in range(60)]
        threading.Thread(target=wait_for, args=(1,)).start()
        run_process_blocking(SLEEP)
        """
    )
    wait_until(lambda: program.pids and (program.home / "ready").exists(), 30)
    program.kill()
    program.all_are_dead()
    assert all(path.stat().st_size == 0 for path in program.home.glob("file*"))


def test_a_fork_that_never_calls_exec_does_not_delay_it(start: object) -> None:
    """Such a fork has our descriptors, also by way of C, where nothing of ours runs in the child; it is left alone."""
    program: Program = start(  # type: ignore[operator]
        """
        import ctypes
        from halter import run_process
        def fork():
            wait_for(1)
            pid = ctypes.PyDLL(None).fork()
            if pid == 0:
                time.sleep(60)
            (home / "forked").write_text(str(pid))
        threading.Thread(target=fork).start()
        asyncio.run(run_process(SLEEP))
        """
    )
    wait_until(lambda: (program.home / "forked").exists() and (program.home / "forked").read_text())
    forked = int((program.home / "forked").read_text())
    program.kill()
    program.all_are_dead()
    assert is_alive(forked)
    os.kill(forked, signal.SIGKILL)


def test_a_process_that_was_being_started_at_the_kill_is_found(start: object) -> None:
    """The kill came between its fork and its exec: it looked like a fork of the program, and survived."""
    program: Program = start(  # type: ignore[operator]
        """
        from halter import run_process_blocking
        run_process_blocking("true")
        wait_for(0)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            while os.getppid() == parent:
                time.sleep(0.001)
            time.sleep(0.2)
            os.execl("/bin/sh", "sh", "-c", "trap '' TERM; sleep 60")
        (home / "pids" / str(pid)).touch()
        os.kill(parent, signal.SIGKILL)  # at once: a fork that is older than a second is left alone
        """
    )
    assert program.process.wait(30) == -signal.SIGKILL
    program.all_are_dead()


def test_a_forked_child_has_a_guardian_of_its_own(start: object) -> None:
    """When the child is killed its processes end, and those of the parent do not."""
    program: Program = start(  # type: ignore[operator]
        """
        from halter import run_process_blocking
        threading.Thread(target=run_process_blocking, args=(SLEEP,)).start()
        wait_for(1)
        (home / "ready").unlink()
        (home / "parents").write_text(os.listdir(home / "pids")[0])
        (home / "guardian").unlink()
        if os.fork() == 0:
            (home / "child").write_text(str(os.getpid()))
            threading.Thread(target=wait_for, args=(2,)).start()
            run_process_blocking(SLEEP)
        time.sleep(60)
        """
    )
    wait_until(lambda: len(program.pids) == 2 and (program.home / "guardian").exists(), 30)
    parents = int((program.home / "parents").read_text())
    [childs] = set(program.pids) - {parents}
    os.kill(int((program.home / "child").read_text()), signal.SIGKILL)
    wait_dead(childs, 5)
    assert is_alive(parents)
    program.kill()
    wait_dead(parents, 5)


def test_it_is_invisible_to_the_program(start: object) -> None:
    """No child to wait for, no descriptor, folder or terminal kept, Ctrl+C and TERM ignored."""
    program: Program = start(  # type: ignore[operator]
        """
        from halter import run_process_blocking
        run_process_blocking("true")
        wait_for(0)
        try:
            while True:
                os.wait()
        except ChildProcessError:
            (home / "childless").touch()
        time.sleep(60)
        """
    )
    wait_until((program.home / "childless").exists)
    guardian = program.guardian
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guardian, number)
    assert os.getsid(guardian) != os.getsid(program.process.pid)
    assert os.readlink(f"/proc/{guardian}/cwd") == "/"
    opened = sorted(os.readlink(f"/proc/{guardian}/fd/{name}") for name in os.listdir(f"/proc/{guardian}/fd"))
    assert opened[:3] == ["/dev/null"] * 3
    assert len(opened) == 6, opened  # the process, the table, the pipe
    assert is_alive(guardian)
    program.kill()
    wait_dead(guardian, 5)


def test_a_noted_folder_is_removed(start: object) -> None:
    """What killed processes used is removed behind them; what was erased from the table stays."""
    program: Program = start(  # type: ignore[operator]
        """
        from halter.cancel.processes import guardian
        for name in ("temporary", "kept"):
            (home / name / "inner").mkdir(parents=True)
        guardian.watch_folder(str(home / "temporary"))
        guardian.watch_folder(str(home / "kept"))()
        wait_for(0)
        time.sleep(60)
        """
    )
    program.kill()
    wait_dead(program.guardian, 5)
    assert not (program.home / "temporary").exists()
    assert (program.home / "kept").exists()


def test_a_process_without_free_descriptors_does_without_a_guardian() -> None:
    """The guardian needs three descriptors. Without them, a command that ran already was lost: its start had failed."""
    program = """
        import os, resource, subprocess
        from halter.cancel.processes import guardian, registry
        from halter.cancel.processes.tree import ProcessTree
        child = subprocess.Popen(["sleep", "60"])
        opened = os.listdir("/proc/self/fd")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(opened), limits[1]))
        assert guardian.ensure() is None
        tree = ProcessTree([child.pid], reap=child.poll)
        registry.add(tree)
        assert child.pid in registry.roots()
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert os.listdir("/proc/self/fd") == opened
        assert registry.stop(tree, 1.0) == []
        assert child.returncode is not None
        assert guardian.ensure() is not None
    """
    ended = run_python(program, timeout=20)
    assert ended.returncode == 0, ended.stderr


def test_no_process_is_started_before_the_guardian_exists() -> None:
    """On a busy machine the guardian was started after the first process, and a program that was killed in between left
    that process behind.
    """
    program = """
        import os, signal, time
        from halter import run_process_blocking
        from halter.cancel.processes.guardian import Guardian
        from halter.testing import deaf_process
        start = Guardian.start
        def start_late(guardian):
            time.sleep(0.5)
            start(guardian)
        Guardian.start = start_late
        def on_output(piece):
            os.write(1, piece.split()[1])
            os.kill(os.getpid(), signal.SIGKILL)
        run_process_blocking(deaf_process(), on_output=on_output)
    """
    result = run_python(program)
    assert result.returncode == -signal.SIGKILL
    wait_dead(int(result.stdout), 20.0)


def no_descriptor(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_without_a_free_descriptor_processes_run_without_a_guardian(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, nothing waits, and the next call tries again."""
    monkeypatch.setattr(guardian, "_guardian", None)
    monkeypatch.setattr(os, "memfd_create", no_descriptor)
    guardian.wait_until_started()
    asyncio.run(guardian.started())
    guardian.watch_tree(os.getpid(), 1, b"HALTER_TEST_COOKIE", leads_session=False)()
    guardian.watch_folder("/nowhere")()
    assert guardian._guardian is None
    assert "could not start" in caplog.text


def test_a_guardian_that_cannot_be_started_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for it, and its table takes no more than it has room for."""
    monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    unstarted = guardian.Guardian()
    try:
        unstarted.start()
        assert unstarted.started.is_set
        assert "could not be started" in caplog.text
        free = len(unstarted._free)
        unstarted.note(TREE, b"x" * SLOT)()
        assert len(unstarted._free) == free
        unstarted._free.clear()
        unstarted.note(TREE, b"x")()
        assert unstarted._free == []
    finally:
        del os.environ[unstarted.cookie]
        for descriptor in (unstarted._file, unstarted._lifeline, unstarted._write_end):
            os.close(descriptor)
