"""The process table: callers share scans, and no process is missed."""

from __future__ import annotations

import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from halter.cancel.processes import proc_table
from halter.cancel.processes.proc_table import scan
from tests.support.processes import run_python
from tests.support.waiting import wait_until

MARK = "HALTER_TEST_MARK"


@contextmanager
def sleeper(*, mark: str = MARK) -> Iterator[int]:
    """A process with a mark in its environment."""
    with subprocess.Popen(["sleep", "30"], env={mark: "1"}) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_process_is_found_by_its_parent_its_session_and_its_mark() -> None:
    """The three ways in which process trees find their members."""
    with sleeper() as pid:
        seen = scan()
        assert pid in seen.children[os.getpid()]
        assert pid in seen.sessions[os.getsid(0)]
        assert seen.marked[MARK.encode()] == [pid]
        assert seen.descendants([os.getpid()]) >= {os.getpid(), pid}
    assert pid not in scan().processes


def test_a_mark_that_comes_with_another_program_is_seen() -> None:
    """What is remembered of an environment holds for one program; the same process may become another one."""
    code = f"import os; input(); os.execve('/bin/sh', ['sh', '-c', 'echo; read x'], {{'{MARK}': '1'}})"
    with subprocess.Popen(
        [sys.executable, "-c", code], env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert MARK.encode() not in scan().marked
        assert process.pid in scan()._cookies
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert scan().marked[MARK.encode()] == [process.pid]
        process.kill()


def test_an_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot change without an exec, and reading it is half the cost of a scan."""
    read: list[int] = []
    original = proc_table._environment

    def noting(pid: int) -> bytes | None:
        read.append(pid)
        return original(pid)

    monkeypatch.setattr(proc_table, "_environment", noting)
    with sleeper() as pid:
        assert scan().marked[MARK.encode()] == [pid]
        assert pid in read
        read.clear()  # a scan that finds it in the middle of an exec reads more than once
        assert scan().marked[MARK.encode()] == [pid]
        assert scan().marked[MARK.encode()] == [pid]
    assert pid not in read


def test_those_who_wait_share_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty callers during a scan share one scan, and it is not the one that had begun before."""
    begun: list[int] = []
    may_go_on = threading.Event()
    original = proc_table._listed

    def slow() -> set[int]:
        if threading.current_thread() is first:
            begun.append(proc_table._scanner._begun)
            may_go_on.wait(30)
        return original()

    monkeypatch.setattr(proc_table, "_listed", slow)
    first = threading.Thread(target=scan)
    first.start()
    wait_until(lambda: begun)
    asking: list[int] = []
    answers: list[int] = []

    def ask() -> None:
        asking.append(1)
        answers.append(scan().number)

    others = [threading.Thread(target=ask) for _ in range(20)]
    for other in others:
        other.start()
    wait_until(lambda: len(asking) == 20)
    may_go_on.set()
    for thread in (first, *others):
        thread.join(30)
    assert len(answers) == 20
    assert min(answers) > begun[0]
    assert len(set(answers)) < 20


def test_a_look_that_fails_is_made_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl+C in the middle of a scan does not affect later callers."""
    with monkeypatch.context() as patch:

        def interrupted() -> set[int]:
            raise KeyboardInterrupt

        patch.setattr(proc_table, "_listed", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scan()
    assert os.getpid() in scan().processes


def test_one_that_is_born_during_the_look_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts another and exits between being listed and being read does not hide it."""
    original = proc_table._listed
    born: list[subprocess.Popen[bytes]] = []

    def listed() -> set[int]:
        result = original()
        if not born:
            born.append(subprocess.Popen(["sleep", "30"], env={MARK: "1"}))
        return result

    monkeypatch.setattr(proc_table, "_listed", listed)
    seen = scan()
    with born[0] as process:
        process.kill()
    assert seen.marked[MARK.encode()] == [process.pid]


def test_one_that_becomes_another_program_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment it has no environment, and then it has its mark."""
    original = proc_table._environment
    emptied: list[int] = []

    def environment(pid: int) -> bytes | None:
        if pid == process and not emptied:
            emptied.append(pid)
            return b""
        return original(pid)

    monkeypatch.setattr(proc_table, "_SCAN_TIMEOUT", 30.0)  # on a busy machine, one round of the scan takes longer
    with sleeper() as process:
        monkeypatch.setattr(proc_table, "_environment", environment)
        assert scan().marked[MARK.encode()] == [process]
        assert emptied


def test_one_that_becomes_another_program_all_the_time_is_always_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """It left its session and its parent, and a scan in the middle of its exec took the tree for ended."""
    monkeypatch.setattr(proc_table, "_SCAN_TIMEOUT", 30.0)  # on a busy machine, one round of the scan takes longer
    code = f"import os, sys; os.execve(sys.executable, [sys.executable, '-S', *sys.orig_argv[2:]], {{'{MARK}': '1'}})"
    with subprocess.Popen([sys.executable, "-S", "-c", code], env={MARK: "1"}) as process:
        try:
            scans = [scan().marked.get(MARK.encode()) for _ in range(300)]
        finally:
            process.kill()
    assert scans == [[process.pid]] * 300


def test_one_that_never_becomes_another_program_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk may not answer. The scan is bounded, and finds the process without its cookie."""
    monkeypatch.setattr(proc_table, "_SCAN_TIMEOUT", 0.02)
    with sleeper() as process:
        monkeypatch.setattr(proc_table, "_environment", lambda pid: b"" if pid == process else None)
        seen = scan()
        assert process in seen.processes
        assert MARK.encode() not in seen.marked


def test_one_that_ends_instead_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was seen on its way into another program, and was killed there."""
    with sleeper() as process:

        def environment(pid: int) -> bytes | None:
            if pid != process:
                return None
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return b""

        monkeypatch.setattr(proc_table, "_SCAN_TIMEOUT", 30.0)  # on a busy machine, one round of the scan takes longer
        monkeypatch.setattr(proc_table, "_environment", environment)
        assert process not in scan().processes


def test_a_process_without_any_environment_is_settled() -> None:
    """It has none because it was given none, and is not read again and again."""
    with subprocess.Popen(["sleep", "30"], env={}) as process:
        wait_until(lambda: process.pid in scan()._cookies)
        assert scan()._cookies[process.pid] == frozenset()
        process.kill()


def test_listing_ends_where_somebody_is_born_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan is bounded, however busy the machine is."""
    numbers = itertools.count(2**22 + 1)
    monkeypatch.setattr(proc_table, "_SCAN_TIMEOUT", 0.02)
    monkeypatch.setattr(proc_table, "_listed", lambda: {next(numbers)})
    assert scan().processes == {}
    assert next(numbers) > 2**22 + 2


def test_files_of_proc_that_cannot_be_read_are_empty() -> None:
    """A process that has ended is not in the table."""
    assert proc_table.read("/proc/self/no-such-file") == b""
    assert proc_table.read("/proc/self/mem") == b""
    assert proc_table.children_of_process(2**22 + 1) == []
    assert proc_table.status_of(2**22 + 1) is None


def test_a_forked_child_scans_for_itself() -> None:
    """A scan that was running in the parent never ends in the child, and is not waited for there."""
    program = """
        import os
        from halter.cancel.processes import proc_table
        with proc_table._scanner._lock:
            pid = os.fork()
            if pid == 0:
                os._exit(0 if os.getpid() in proc_table.scan().processes else 1)
        assert os.waitpid(pid, 0)[1] == 0
    """
    result = run_python(program)
    assert result.returncode == 0, result.stderr


def test_without_a_free_descriptor_a_process_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it runs is not known then; a file that is only read for more says nothing."""

    def no_descriptor(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        proc_table.status_of(os.getpid())
    assert proc_table.read("/proc/self/stat") == b""
