"""run_process: a stop returns at once with the output so far, and leaves no process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from halter import CancellationToken, Cancelled, ProcessResult, run_process
from halter.cancel.isolation import worker_process
from halter.cancel.processes import guardian, io, registry
from halter.cancel.processes import run as process_run
from halter.cancel.processes.proc_table import children_of_thread
from halter.cancel.scope import ends_on_cancel
from halter.cancel.threads import pool
from halter.testing import assert_cancels_within, deaf_process, interrupt_everywhere
from tests.support.processes import is_alive, open_descriptors, wait_dead
from tests.support.time_limits import call_limited
from tests.support.waiting import wait_until


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    """After each test every process tree is ended; idle workers of other tests do not count."""
    for idle in list(worker_process.shared_workers.workers):
        worker_process.shared_workers.workers.pop(idle)
        idle.end()
    yield
    wait_until(lambda: not registry.roots())


def test_a_command_runs_and_its_output_comes_back() -> None:
    """A list is run as it is, a string by the shell; both streams and the code are returned."""
    assert run(run_process(["echo", "a b"])) == ProcessResult(0, b"a b\n", b"")
    result = run(run_process("echo out; echo err >&2; exit 3"))
    assert (result.returncode, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert (result.cancelled, result.reason) == (False, None)


def test_input_environment_and_directory(tmp_path: Path) -> None:
    """Bytes or text go in; env and cwd are as given; without input the command reads nothing."""
    assert run(run_process("cat", input=b"bytes")).stdout == b"bytes"
    assert run(run_process(["cat"], input="text")).stdout == b"text"
    assert run(run_process("cat")).stdout == b""
    result = run(run_process("pwd; echo $X", cwd=tmp_path, env={"X": "1", "PATH": os.environ["PATH"]}))
    assert result.stdout.decode().split() == [str(tmp_path), "1"]


def test_a_megabyte_goes_both_ways() -> None:
    """Input and output larger than a pipe holds do not block each other."""
    data = os.urandom(1_000_000)
    assert run(run_process(["cat"], input=data)).stdout == data


def test_input_that_nobody_reads_is_no_error() -> None:
    """A command that exits, or closes its input, without reading all of it has simply ended."""
    assert run(run_process("exec 0<&-; sleep 0.1; echo done", input=b"x" * 1_000_000)).stdout == b"done\n"


def test_output_is_handed_over_as_it_comes(tmp_path: Path) -> None:
    """on_output is called in the loop's thread, in order, before the call returns."""
    pieces: list[bytes] = []
    idents: set[int] = set()

    def on_output(piece: bytes) -> None:
        pieces.append(piece)
        idents.add(threading.get_ident())
        (tmp_path / piece.decode().strip()).touch()  # the command goes on when it has been heard

    command = "echo 1; while [ ! -e 1 ]; do sleep 0.01; done; echo 2 >&2; while [ ! -e 2 ]; do sleep 0.01; done; echo 3"
    result = run(run_process(command, cwd=tmp_path, on_output=on_output))
    assert b"".join(pieces) == b"1\n2\n3\n"
    assert len(pieces) == 3
    assert idents == {threading.get_ident()}
    assert result.stdout == b"1\n3\n"


def test_a_callback_that_fails_is_logged_and_the_process_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """The output is not lost because on_output fails."""
    with caplog.at_level(logging.ERROR):
        assert run(run_process("echo 1", on_output=lambda _: 1 / 0)).stdout == b"1\n"
    assert "on_output" in caplog.text


def test_a_command_that_leaves_a_server_behind_has_ended() -> None:
    """What a background child holds open is not waited for; what the command wrote is all there."""
    result = run(run_process("sleep 30 & echo $!"))
    pid = int(result.stdout)
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_a_stop_returns_at_once_with_the_output_so_far() -> None:
    """Deaf, escaped, double-forked: control is back, then all are dead within grace + 1 s."""
    pids: list[int] = []

    async def main() -> ProcessResult:
        token = CancellationToken()

        def on_output(piece: bytes) -> None:
            pids.extend(int(word) for word in piece.split()[1:])
            token.cancel("interrupt")

        result = await run_process(deaf_process(escape=True), token=token, grace=2.0, on_output=on_output)
        assert any(is_alive(pid) for pid in pids)  # we did not wait for that
        return result

    result = run(main())
    assert (result.returncode, result.cancelled, result.reason) == (None, True, "interrupt")
    assert result.stdout.startswith(b"ready")
    assert len(pids) == 2
    for pid in pids:
        wait_dead(pid)


def test_inside_a_scope_the_output_so_far_is_returned_too() -> None:
    """The scope cancels the task that awaits the process; the output is returned all the same, and nothing leaks."""

    async def main() -> None:
        for number in range(20):
            token = CancellationToken()

            def on_output(_piece: bytes, token: CancellationToken = token, number: int = number) -> None:
                if number % 2:
                    token.cancel()
                else:
                    threading.Thread(target=token.cancel).start()

            async with token.scope():
                result = await run_process("echo one; sleep 30", token=token, on_output=on_output)
                assert (result.cancelled, result.stdout) == (True, b"one\n")
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            assert (await run_process("echo two; sleep 30", token=token)).cancelled

    run(main())


@pytest.mark.parametrize("is_same", [True, False], ids=["the same token", "another token"])
def test_a_scope_whose_body_goes_on_after_the_process_stops_it_there(is_same: bool) -> None:
    """The output was kept and the stop was lost: the body went on to its next await and stayed there."""

    async def main() -> None:
        token, other = CancellationToken(), CancellationToken()
        ready = asyncio.Event()
        results: list[ProcessResult] = []

        async def work() -> None:
            async with (token if is_same else other).scope():
                results.append(await run_process("echo one; sleep 30", token=token, on_output=lambda _: ready.set()))
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await ready.wait()
        token.cancel()
        other.cancel()
        with pytest.raises(Cancelled):
            await task
        assert [result.stdout for result in results] == [b"one\n"]

    run(main())


def test_a_scope_does_not_wait_long_for_what_should_end_by_itself() -> None:
    """One turn of the loop, and none if it is another stop."""

    async def main() -> None:
        for with_inner in (False, True):
            inner, outer = CancellationToken(), CancellationToken()

            async def work(inner: CancellationToken = inner, outer: CancellationToken = outer) -> None:
                async with outer.scope():
                    with ends_on_cancel(inner):
                        await asyncio.sleep(60)

            task = asyncio.create_task(work())
            await asyncio.sleep(0)
            if with_inner:
                inner.cancel()
            outer.cancel()
            with pytest.raises(Cancelled):
                await task

    run(main())


def test_a_foreign_cancellation_beside_a_stop_still_wins() -> None:
    """The stop and a foreign cancel() come while a process is awaited in a scope: the foreign one wins."""

    async def main() -> None:
        token = CancellationToken()
        ready = asyncio.Event()

        async def work() -> None:
            async with token.scope():
                await run_process("echo one; sleep 30", token=token, on_output=lambda _: ready.set())

        task = asyncio.create_task(work())
        await ready.wait()
        token.cancel()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(main())


def test_nothing_that_is_written_after_the_stop_is_handed_over() -> None:
    """The last words of a process that is being ended go nowhere."""
    pieces: list[bytes] = []

    async def main() -> None:
        token = CancellationToken()

        def on_output(piece: bytes) -> None:
            pieces.append(piece)
            token.cancel()

        await run_process(
            "trap 'echo bye; exit' TERM; echo hi; while :; do sleep 0.01; done", token=token, on_output=on_output
        )
        await asyncio.to_thread(wait_until, lambda: not registry.roots())
        await asyncio.sleep(0.01)

    run(main())
    assert pieces == [b"hi\n"]


def test_output_that_waits_for_the_loop_when_the_stop_comes_is_not_handed_over(tmp_path: Path) -> None:
    """After the stop the callback is not called again, also not with what was read before it."""
    pieces: list[bytes] = []

    async def main() -> None:
        token = CancellationToken()

        def on_output(piece: bytes) -> None:
            pieces.append(piece)
            (tmp_path / "seen").touch()  # only now the command writes the second piece
            threading.Event().wait(0.2)  # the loop is busy; the second piece is read meanwhile
            token.cancel()

        command = "echo 1; while [ ! -e seen ]; do sleep 0.01; done; echo 2; sleep 30"
        await run_process(command, token=token, cwd=tmp_path, on_output=on_output)
        await asyncio.sleep(0.01)

    run(main())
    assert pieces == [b"1\n"]


def test_what_a_process_wrote_before_it_exited_is_all_read() -> None:
    """More than one read takes is left in the pipe when the exit is seen; none of it is lost."""
    child = subprocess.Popen(["head", "-c", "60000", "/dev/zero"], stdout=subprocess.PIPE, bufsize=0)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert child.stdout is not None
    pieces: list[bytes] = []
    wakeup = io.WakeupPipe()
    assert io.ProcessIO(child, b"", {child.stdout: pieces.append}).run(wakeup)
    wakeup.close()
    child.stdout.close()
    child.wait()
    assert len(b"".join(pieces)) == 60000


def test_the_timeout_is_a_stop_with_reason_timeout() -> None:
    """A command that takes too long is ended, and its output so far is kept."""

    def limited(seconds: float) -> ProcessResult:
        result: ProcessResult = run(run_process("echo early; sleep 30", timeout=seconds))
        return result

    result, _ = call_limited(limited, lambda result: result.stdout)
    assert (result.cancelled, result.reason, result.stdout) == (True, "timeout", b"early\n")


def test_nothing_starts_after_the_stop(tmp_path: Path) -> None:
    """With a cancelled token the command is not run."""
    token = CancellationToken()
    token.cancel("stop")
    result = run(run_process(["touch", str(tmp_path / "file")], token=token))
    assert (result.returncode, result.cancelled) == (None, True)
    assert list(tmp_path.iterdir()) == []


def test_a_stop_between_the_call_and_the_start_starts_nothing(tmp_path: Path) -> None:
    """The thread that is to start the command looks once more before it does."""

    async def main() -> ProcessResult:
        token = CancellationToken()
        asyncio.get_running_loop().call_soon(token.cancel)
        gate = threading.Event()
        original = process_run._ProcessRun._run

        def delayed(self: process_run._ProcessRun) -> None:
            gate.wait(10)
            original(self)

        process_run._ProcessRun._run = delayed  # type: ignore[method-assign]  # only to hold the thread at its start
        try:
            return await run_process(["touch", str(tmp_path / "file")], token=token)
        finally:
            process_run._ProcessRun._run = original  # type: ignore[method-assign]
            gate.set()
            pool.retire_threads()

    assert run(main()).cancelled
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_cancellation_ends_the_process() -> None:
    """wait_for() around the call raises TimeoutError, and the process is ended as by any stop."""
    pids: list[int] = []

    async def main() -> None:
        ready = asyncio.Event()

        def on_output(piece: bytes) -> None:
            pids.append(int(piece))
            ready.set()

        task = asyncio.create_task(run_process("echo $$; sleep 30", on_output=on_output))
        await ready.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    wait_dead(pids[0])


def test_a_command_that_does_not_exist_is_the_callers_error(tmp_path: Path) -> None:
    """Errors of starting are raised; an empty list says what a command is."""
    with pytest.raises(FileNotFoundError):
        run(run_process(["no-such-command-anywhere"]))
    with pytest.raises(FileNotFoundError):
        run(run_process(["true"], cwd=tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="this list is empty"):
        run(run_process([]))
    with pytest.raises(ValueError, match="grace must be"):
        run(run_process(["true"], grace=-1))


def test_an_error_of_starting_after_the_stop_is_a_stop() -> None:
    """A failure after the caller has returned is no error."""

    async def main() -> ProcessResult:
        token = CancellationToken()
        original = process_run._ProcessRun._start_and_watch

        def stopped_meanwhile(self: process_run._ProcessRun) -> None:
            token.cancel("stop")
            original(self)

        process_run._ProcessRun._start_and_watch = stopped_meanwhile  # type: ignore[method-assign]  # to hit that moment
        try:
            return await run_process(["no-such-command-anywhere"], token=token)
        finally:
            process_run._ProcessRun._start_and_watch = original  # type: ignore[method-assign]

    assert run(main()).cancelled


def test_a_system_without_process_groups_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows the error says what to use instead."""
    monkeypatch.delattr(os, "killpg")
    with pytest.raises(OSError, match="use run_blocking"):
        run(run_process(["true"]))


def test_without_pidfd_a_thread_waits_for_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere than on Linux the exit is noticed by a thread that waits for it."""
    monkeypatch.delattr(os, "pidfd_open")
    assert run(run_process("echo hi; exit 2")) == ProcessResult(2, b"hi\n", b"")


def test_a_bell_may_be_rung_at_any_time() -> None:
    """Waking a closed or a full pipe does nothing, and never writes into another file."""
    wakeup = io.WakeupPipe()
    for _ in range(70_000):
        wakeup.wake()
    wakeup.close()
    reader, writer = os.pipe()  # they get the numbers that its descriptors had
    try:
        wakeup.wake()
        os.set_blocking(reader, False)
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
    finally:
        os.close(reader)
        os.close(writer)


@pytest.mark.alone
def test_two_hundred_in_a_row_leak_nothing() -> None:
    """Descriptors, threads and zombies are as many after 200 stopped escapees as before."""

    async def one(number: int) -> None:
        token = CancellationToken()
        result = await run_process(
            deaf_process(escape=number % 10 == 0), token=token, grace=0, on_output=lambda _: token.cancel()
        )
        assert result.cancelled

    async def many(numbers: range) -> None:
        for number in numbers:
            await one(number)

    def children() -> int:
        return sum(len(children_of_thread(int(task))) for task in os.listdir("/proc/self/task"))

    def threads_at_work() -> int:
        # Each stopped process keeps a thread until its tree is dead, and the next one may need another by then. How
        # many are idle afterwards depends on the machine: a higher peak on a busy one was taken for a leak.
        pool.retire_threads()
        return threading.active_count()

    run(many(range(10)))
    wait_until(lambda: not registry.roots())
    descriptors, count, before = open_descriptors(), threads_at_work(), children()
    run(many(range(200)))
    wait_until(lambda: not registry.roots())
    wait_until(lambda: open_descriptors() <= descriptors)
    wait_until(lambda: threads_at_work() <= count)
    assert children() <= before


async def process_scenario(token: CancellationToken) -> None:
    result = await run_process("echo hi", token=token, grace=0.2)
    assert result.stdout == b"hi\n" or result.cancelled
    assert result.cancelled == (result.returncode is None)


def test_a_stop_at_any_point_leaves_no_process() -> None:
    """Wherever the stop comes, there is one result, and no process tree is left."""
    report = interrupt_everywhere(process_scenario, check=lambda: wait_until(lambda: not registry.roots()))
    assert len(report.points) > 200
    assert len(report.missed) < len(report.points) / 5


CGROUPS = Path("/sys/fs/cgroup/unified") if Path("/sys/fs/cgroup/unified").exists() else Path("/sys/fs/cgroup")


@pytest.fixture
def cgroup(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A place in the cgroup tree that we may write to."""
    path = CGROUPS / f"halter-test-{os.getpid()}"
    try:
        path.mkdir()
        (path / "cgroup.procs").read_text()
    except OSError:
        pytest.skip("no cgroup v2 tree that this user may write to")
    monkeypatch.setenv("HALTER_CGROUP", str(path))
    yield path
    wait_until(lambda: not [child for child in path.iterdir() if child.is_dir()])
    path.rmdir()


def test_an_environment_of_ones_own_has_what_the_guardian_looks_for() -> None:
    """From its start: if the program is killed before it has noted the process, nothing else would find it."""
    shown = run(run_process("env", env={"PATH": os.environ["PATH"]})).stdout.decode()
    [(name, value)] = guardian.environment().items()
    assert f"{name}={value}" in shown.splitlines()


def test_in_a_control_group_not_even_an_empty_environment_hides(cgroup: Path) -> None:
    """No cookie, no session, no parent: the control group still knows its own."""
    pids: list[int] = []
    code = deaf_process(escape=True)

    async def main() -> None:
        token = CancellationToken()

        def on_output(piece: bytes) -> None:
            pids.extend(int(word) for word in piece.split()[1:])
            token.cancel()

        await run_process(["env", "-i", *code], token=token, grace=0.5, on_output=on_output)
        assert run_process is not None

    run(main())
    for pid in pids:
        wait_dead(pid)
    assert run(run_process("echo inside")).stdout == b"inside\n"


def test_a_control_group_that_is_not_ours_is_a_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """HALTER_CGROUP that cannot be used says so, with its value."""
    monkeypatch.setenv("HALTER_CGROUP", str(tmp_path / "nowhere"))
    with pytest.raises(OSError, match=r"HALTER_CGROUP=.*nowhere must name"):
        run(run_process(["true"]))


def test_the_current_token_is_the_default() -> None:
    """Bound tokens stop processes too."""

    async def main() -> None:
        async with assert_cancels_within(5) as token:
            with token.bind():
                result = await run_process([sys.executable, "-c", "import time; time.sleep(30)"])
                assert result.cancelled

    run(main())
