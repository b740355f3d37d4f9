"""Law 7: each row of the table in docs/explanation/laws.md as a program, without `ExitGuard` and with it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from halter import Agent
from halter.events import TurnFinished
from halter.stores import SQLiteStore
from halter.testing import ScriptedModel
from tests.support.processes import is_alive, wait_dead

PAGE = Path(__file__).parents[2] / "docs/explanation/laws.md"
TIMEOUT = 2.0  # of programs that are to reach it
FORCED = 70

BEFORE = """
import atexit, contextlib, os, signal, sys, threading, time
from halter.cancel import ExitGuard, run_blocking, run_process_blocking

def say(*words):
    print(*words, flush=True)

def wedge():
    while True:
        time.sleep(1000)

def in_thread(work, *args, daemon=True):
    threading.Thread(target=work, args=args, daemon=daemon, name="careless").start()

def start_deaf_process():
    '''Start one that ignores TERM and has a child in a session of its own; print the numbers of both.'''
    from halter.testing.deaf import deaf_process
    known, pids = threading.Event(), []
    def on_output(piece):
        pids.extend(piece.split()[1:])
        if len(pids) == 2:
            known.set()
    in_thread(lambda: run_process_blocking(deaf_process(escape=True), on_output=on_output))
    known.wait()
    say(*(pid.decode() for pid in pids))

def run_turn(path):
    '''Run a turn that streams for ever, in a thread; return once it streams.'''
    from halter import Agent
    from halter.stores import SQLiteStore
    from halter.testing import Gate, ScriptedModel
    gate = Gate()
    session = Agent(ScriptedModel(["so far", gate])).session("one", SQLiteStore(path))
    in_thread(session.run, "Go on.")
    gate.wait_reached()
    return session

guard = ExitGuard(float(sys.argv[1])) if sys.argv[1] else contextlib.nullcontext()
"""


class Program:
    """A program that runs *body*, in an `ExitGuard` or not."""

    def __init__(self, body: str, guarded: bool, *args: str, before: str = "", timeout: float = 20.0) -> None:
        code = BEFORE + textwrap.dedent(before) + "with guard:\n" + textwrap.indent(textwrap.dedent(body), "    ")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(timeout) if guarded else "", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""

    def line(self) -> str:
        """Wait for a line of its output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, *numbers: int) -> int:
        """Send the signals, wait for the end, and return the exit code."""
        for number in numbers:
            self.process.send_signal(number)
        try:
            _, self.said = self.process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode

    def has_ended_within(self, seconds: float) -> bool:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def stuck_calls(guarded: bool, folder: Path) -> None:
    """Threads of Halter are daemons: nobody waits for them, and they are nothing that is left behind."""
    program = Program(
        """
        ready = threading.Barrier(21)
        for _ in range(20):
            in_thread(lambda: run_blocking(lambda: (ready.wait(), wedge())))
        ready.wait()
        sys.exit(3)
        """,
        guarded,
    )
    assert program.end() == 3, program.said


def own_threads(guarded: bool, folder: Path) -> None:
    """Python waits for threads that are not daemons; the guard does so until its deadline, and names them."""
    program = Program("in_thread(wedge, daemon=False)\nsay('done')", guarded, timeout=TIMEOUT)
    assert program.line() == "done"
    if guarded:
        assert program.end() == FORCED
        assert "still waiting for thread careless" in program.said
    else:
        assert not program.has_ended_within(TIMEOUT + 1.0)
        assert program.end(signal.SIGKILL) == -signal.SIGKILL


def atexit_handlers(guarded: bool, folder: Path) -> None:
    """Python waits for them, too."""
    program = Program("say('done')", guarded, before="atexit.register(wedge)\n", timeout=TIMEOUT)
    assert program.line() == "done"
    if guarded:
        assert program.end() == FORCED
    else:
        assert not program.has_ended_within(TIMEOUT + 1.0)
        assert program.end(signal.SIGKILL) == -signal.SIGKILL


def turns(guarded: bool, folder: Path) -> None:
    """A turn that runs when the program ends is stopped and sealed."""
    path = folder / "turns.db"
    program = Program("run_turn(sys.argv[2])", guarded, str(path))
    assert program.end() == 0, program.said
    assert _end_of_turn(path) == ("interrupted", "shutdown")


def turns_that_cannot_be_sealed(guarded: bool, folder: Path) -> None:
    """Somebody else has locked the database, so that the end of the turn cannot be written."""
    path = folder / "locked.db"
    program = Program(
        """
        import sqlite3
        run_turn(sys.argv[2])
        other = sqlite3.connect(sys.argv[2])
        other.execute("BEGIN IMMEDIATE")
        """,
        guarded,
        str(path),
        timeout=6.0,  # half of it is for the turn, and what is left must do on a busy machine
    )
    assert program.end() == (FORCED if guarded else 0), program.said
    if guarded:
        assert "Left behind: a turn whose end was not written." in program.said
    with SQLiteStore(path) as store, Agent(ScriptedModel("x")).session("one", store):
        pass  # which seals it
    assert _end_of_turn(path) == ("interrupted", "crash")


def processes(guarded: bool, folder: Path) -> None:
    """A process that ignores TERM is killed, and so is its child that left for a session of its own."""
    program = Program("start_deaf_process()", guarded)
    pids = [int(word) for word in program.line().split()]
    assert program.end() == 0, program.said
    assert not any(is_alive(pid) for pid in pids)


def processes_that_cannot_be_killed(guarded: bool, folder: Path) -> None:
    """As with `sudo`: a program without rights has started one that belongs to root."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("needs root and setpriv, to make a process that another user may not kill")
    with tempfile.TemporaryDirectory() as place:  # pytest's own is closed to other users
        os.chmod(place, 0o755)
        to_root = shutil.copy(setpriv, place)
        os.chmod(to_root, 0o4755)
        program = Program(
            """
            to_root = [sys.argv[2], "--reuid", "0", "--regid", "0", "--clear-groups"]
            command = [*to_root, "sh", "-c", "echo $$; exec sleep 60"]
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            in_thread(lambda: run_process_blocking(command, on_output=lambda piece: say(piece.decode().strip())))
            sys.stdin.readline()
            sys.exit(3)
            """,
            guarded,
            to_root,
            before="run_process_blocking  # imported now: the other user may not be able to read it\n",
        )
        pid = int(program.line())
        try:
            code = program.end()
            assert is_alive(pid)
        finally:
            os.kill(pid, signal.SIGKILL)
    assert code == (FORCED if guarded else 3), program.said
    assert f"these processes are still running after SIGKILL: [{pid}]" in program.said
    assert (f"Left behind: process {pid}." in program.said) == guarded


WAITING = """
try:
    start_deaf_process()
    say("ready")
    threading.Event().wait(60)
finally:
    say("cleaned up")
"""


def sigint(guarded: bool, folder: Path) -> None:
    """KeyboardInterrupt, or the guard's shutdown: both run the program's clean-up, and end the processes."""
    program = Program(WAITING, guarded)
    pids = [int(word) for word in program.line().split()]
    assert program.line() == "ready"
    program.process.send_signal(signal.SIGINT)
    assert program.line() == "cleaned up"
    assert program.end() == (130 if guarded else -signal.SIGINT), program.said
    assert ("KeyboardInterrupt" in program.said) != guarded
    assert not any(is_alive(pid) for pid in pids)


def sigterm(guarded: bool, folder: Path) -> None:
    """Without a guard the system ends the program where it is; the processes end in both cases."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        program = Program(WAITING, guarded)
        pids = [int(word) for word in program.line().split()]
        assert program.line() == "ready"
        program.process.send_signal(number)
        assert program.line() == ("cleaned up" if guarded else "")
        assert program.end() == (128 + number if guarded else -number), program.said
        for pid in pids:
            wait_dead(pid)


def second_signal(guarded: bool, folder: Path) -> None:
    """It breaks off the clean-up: by a second KeyboardInterrupt, or by the guard."""
    program = Program(
        """
        try:
            say("ready")
            threading.Event().wait(60)
        finally:
            say("cleaning up")
            threading.Event().wait(60)
        """,
        guarded,
    )
    assert program.line() == "ready"
    program.process.send_signal(signal.SIGINT)
    assert program.line() == "cleaning up"
    assert program.end(signal.SIGINT) == (FORCED if guarded else -signal.SIGINT)


def killed(guarded: bool, folder: Path) -> None:
    """The guardian ends the processes."""
    for how in ("os.kill(os.getpid(), signal.SIGKILL)", "os._exit(5)", "import ctypes; ctypes.string_at(0)"):
        program = Program(f"start_deaf_process()\nsys.stdin = None\n{how}", guarded)
        pids = [int(word) for word in program.line().split()]
        assert program.end() in (-signal.SIGKILL, 5, -signal.SIGSEGV)
        for pid in pids:
            wait_dead(pid)


def exit_codes(guarded: bool, folder: Path) -> None:
    """What the program asks for is what it gets, if nothing is left behind."""
    for ending, code in (("pass", 0), ("sys.exit(4)", 4), ("sys.exit('no')", 1), ("raise ValueError('no')", 1)):
        program = Program(ending, guarded)
        assert program.end() == code
        assert ("no" in program.said) == ("no" in ending)


ROWS: dict[str, Callable[[bool, Path], None]] = {
    "threads of Halter that are stuck in a call": stuck_calls,
    "your threads that are not daemons": own_threads,
    "your `atexit` handlers": atexit_handlers,
    "turns of `run()`": turns,
    "turns whose end cannot be written": turns_that_cannot_be_sealed,
    "processes that Halter or its tools started": processes,
    "processes that we may not kill": processes_that_cannot_be_killed,
    "SIGINT": sigint,
    "SIGTERM, SIGHUP": sigterm,
    "a second SIGINT": second_signal,
    "`kill -9`, `os._exit()`, a crash of the interpreter": killed,
    "exit code": exit_codes,
}


@pytest.mark.parametrize("guarded", [False, True], ids=["without", "with"])
@pytest.mark.parametrize("row", ROWS)
def test_a_program_gets_what_the_table_says(row: str, guarded: bool, tmp_path: Path) -> None:
    """A program ends as docs/explanation/laws.md promises, without `ExitGuard` and with it."""
    ROWS[row](guarded, tmp_path)


def test_the_table_has_a_test_for_each_row() -> None:
    """A row that is added to the table without being tried, or is tried and not in it, is found here."""
    law = PAGE.read_text(encoding="utf-8").partition("## 7. ")[2]
    assert re.findall(r"^\| (.+?) \|", law, re.MULTILINE)[1:] == list(ROWS)


def _end_of_turn(path: Path) -> tuple[str, str]:
    """How the last turn in a store has ended, and why."""
    with SQLiteStore(path) as store:
        *_, end = (event.data for event in store.read("one") if isinstance(event.data, TurnFinished))
    return end.status, end.reason
