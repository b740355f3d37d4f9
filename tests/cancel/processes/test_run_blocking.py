"""run_process_blocking: the same as run_process, for code that is not async."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from threading import get_ident

import pytest

from halter import CancellationToken, ProcessResult, run_process_blocking
from halter.cancel.processes import guardian, registry
from halter.testing import deaf_process, interrupt_everywhere
from tests.support.processes import is_alive, run_python, wait_dead
from tests.support.waiting import wait_until


def test_a_command_runs_and_its_output_comes_back(tmp_path: Path) -> None:
    """A list is run as it is, a string by the shell; code, streams, input, cwd and env are as with run_process."""
    assert run_process_blocking(["echo", "a b"]) == ProcessResult(0, b"a b\n", b"")
    result = run_process_blocking("cat; pwd; echo $X >&2; exit 3", cwd=tmp_path, env={"X": "1"}, input="in\n")
    assert result == ProcessResult(3, b"in\n%b\n" % bytes(tmp_path), b"1\n")


def test_output_is_handed_over_in_the_calling_thread() -> None:
    """on_output is called in order, before the call returns, by the thread that waits."""
    pieces: list[tuple[int, bytes]] = []
    run_process_blocking("echo 1; echo 2 >&2; echo 3", on_output=lambda piece: pieces.append((get_ident(), piece)))
    assert sorted(b"".join(piece for _, piece in pieces).split()) == [b"1", b"2", b"3"]
    assert {ident for ident, _ in pieces} == {get_ident()}


def test_a_stop_returns_at_once_and_nobody_is_left() -> None:
    """A command that ignores TERM, with an escaped child: returns at once with the output; all are dead in time."""
    token = CancellationToken()
    pids: set[int] = set()

    def on_output(_piece: bytes) -> None:
        pids.update(*(tree.members() for tree in registry._live))
        token.cancel("interrupt")

    started = time.monotonic()
    result = run_process_blocking(deaf_process(escape=True), token=token, grace=0.1, on_output=on_output)
    assert time.monotonic() - started < 10
    assert (result.cancelled, result.reason, result.returncode) == (True, "interrupt", None)
    assert pids
    for pid in pids:
        wait_dead(pid)


def test_the_current_token_is_the_default() -> None:
    """Inside a bound block the block's token stops the command, from any thread."""
    token = CancellationToken()
    with token.bind():
        result = run_process_blocking("echo hi; exec sleep 60", on_output=lambda _: token.cancel("steer"))
    assert (result.stdout, result.reason) == (b"hi\n", "steer")


def test_the_timeout_is_a_stop_with_reason_timeout() -> None:
    """After its time the output so far is returned."""
    result = run_process_blocking(["sleep", "60"], timeout=0.05)
    assert (result.cancelled, result.reason) == (True, "timeout")


def test_nothing_starts_after_the_stop(tmp_path: Path) -> None:
    """With a token that is cancelled already the command is not run."""
    token = CancellationToken()
    token.cancel("stop")
    result = run_process_blocking(["touch", str(tmp_path / "file")], token=token)
    assert result == ProcessResult(None, b"", b"", cancelled=True, reason="stop")
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_does_not_exist_is_the_callers_error() -> None:
    """The error of subprocess comes out as it is."""
    with pytest.raises(FileNotFoundError):
        run_process_blocking(["no-such-command-anywhere"])


def test_what_on_output_raises_to_stop_the_call_ends_the_command() -> None:
    """An Exception of the callback is logged; a KeyboardInterrupt comes out, and the command is ended."""
    pids: list[int] = []

    def on_output(piece: bytes) -> None:
        pids.append(int(piece))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_process_blocking("echo $$; exec sleep 60", grace=0, on_output=on_output)
    wait_dead(pids[0])


def test_ctrl_c_ends_the_command_and_raises(tmp_path: Path) -> None:
    """A signal that lands in the wait is raised there, and the command does not survive it."""
    program = f"""
        import os, signal
        from halter import run_process_blocking
        from halter.cancel.processes import registry
        def on_output(piece):
            open({str(tmp_path / "pid")!r}, "wb").write(piece)
            os.kill(os.getpid(), signal.SIGINT)
        try:
            run_process_blocking("echo $$; exec sleep 60", on_output=on_output, grace=0)
        except KeyboardInterrupt:
            raise SystemExit(7)
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert run_python(program).returncode == 7
    assert not is_alive(int((tmp_path / "pid").read_text()))


def blocking_scenario(token: CancellationToken) -> None:
    result = run_process_blocking("echo hi", token=token, grace=0.2)
    assert result.stdout == b"hi\n" or result.cancelled


def test_a_stop_at_any_point_leaves_no_process() -> None:
    """Stopped at each line of ours, it returns a result and leaves no process behind."""
    interrupt_everywhere(blocking_scenario, check=lambda: wait_until(lambda: not registry.roots()), repeat=1)


def test_ctrl_c_while_the_process_is_being_started_is_not_lost() -> None:
    """A signal that comes then may not end the main thread's wait: it is looked at when the process has started.

    Without an `ExitGuard`, the first Ctrl+C did nothing until the command had ended.
    """
    program = """
        import signal, sys, threading
        from halter.cancel import run_process_blocking

        def state(thread):
            with open(f"/proc/self/task/{thread.native_id}/stat") as file:
                return file.read().rpartition(")")[2].split()[0]

        def interrupt(event, args, main=threading.main_thread()):
            '''In the thread that is about to start the process, when the main thread waits for it.'''
            if event == "subprocess.Popen" and "sleep" in args[1]:
                while sys._current_frames()[main.ident].f_code.co_name != "run_process_blocking" or state(main) != "S":
                    pass
                signal.pthread_kill(threading.get_ident(), signal.SIGINT)

        sys.addaudithook(interrupt)
        try:
            run_process_blocking(["sleep", "60"])
        except KeyboardInterrupt:
            raise SystemExit(7)
    """
    result = run_python(program)
    assert result.returncode == 7, result.stderr


def test_a_command_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last descriptors used up just after the start, the caller got the error and the command ran on."""
    started: list[int] = []

    def refuse(pid: int) -> int:
        monkeypatch.undo()  # for the stop
        started.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    guardian.wait_until_started()
    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        run_process_blocking("trap '' PIPE; sleep 60")
    wait_dead(started[0])
