"""Functions in worker processes: the same semantics, and really killed."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halter import CancellationToken, Cancelled, checkpoint, run_isolated, run_isolated_async
from halter.cancel import WorkerCrashed
from halter.cancel.isolation import worker_main, worker_process
from halter.cancel.isolation.api import IsolatedCall, Workers
from halter.cancel.processes import guardian
from halter.cancel.threads import blocking
from halter.cancel.threads.blocking import BlockingCall, Late
from halter.testing import assert_cancels_within
from tests.support import isolated_functions as functions
from tests.support.processes import is_alive, run_python, wait_dead
from tests.support.waiting import wait_until

Door = Callable[..., Any]


def run_in_loop(*args: Any, **kwargs: Any) -> Any:
    return asyncio.run(run_isolated_async(*args, **kwargs))


@pytest.fixture(params=[run_isolated, run_in_loop], ids=["sync", "async"])
def door(request: pytest.FixtureRequest) -> Door:
    """Both ways in: the rules are the same."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    """A file that a function writes its process numbers to."""
    return tmp_path / "ready"


def numbers(ready: Path) -> list[int]:
    wait_until(lambda: ready.exists() and ready.read_text())
    return [int(word) for word in ready.read_text().split()]


def cancel_when(ready: Path, token: CancellationToken) -> None:
    threading.Thread(target=lambda: (numbers(ready), token.cancel("interrupt", detail="typed"))).start()


def test_values_and_exceptions_cross_over(door: Door) -> None:
    """Arguments and result travel; an exception keeps its type and tells where it was raised."""
    assert door(functions.add, 2, b=3) == 5
    with pytest.raises(KeyError, match="missing") as caught:
        door(functions.fail)
    assert "in fail" in caught.value.__notes__[0]
    with pytest.raises(RuntimeError, match="Stubborn: 1 and 2"):
        door(functions.fail_stubbornly)


def test_a_worker_is_kept_warm_and_used_again(door: Door) -> None:
    """Calls in a row run in one process, which is not ours."""
    pids = {door(functions.pid) for _ in range(3)}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_a_function_that_ignores_its_token_is_killed(door: Door, ready: Path) -> None:
    """A loop that never lets go: control is back at once, then the process is dead."""
    token = CancellationToken()
    cancel_when(ready, token)
    with pytest.raises(Cancelled) as caught:
        door(functions.spin, str(ready), token=token)
    assert caught.value.token is token
    wait_dead(numbers(ready)[0])


def test_what_the_function_started_is_killed_with_it(door: Door, ready: Path) -> None:
    """A child in another session goes too."""
    token = CancellationToken()
    cancel_when(ready, token)
    with pytest.raises(Cancelled):
        door(functions.deaf_with_child, str(ready), token=token)
    for pid in numbers(ready):
        wait_dead(pid)


def test_a_function_that_obeys_keeps_its_process(door: Door, ready: Path) -> None:
    """The worker's token gets reason and detail. A function that ends in time is not killed; its process is reused."""
    token = CancellationToken()
    cancel_when(ready, token)
    with pytest.raises(Cancelled):
        door(functions.obey, str(ready), token=token, grace=10)
    pid = numbers(ready)[0]
    wait_until(lambda: worker_process.shared_workers.workers)
    assert is_alive(pid)
    assert door(functions.pid) == pid


def test_what_a_stopped_function_returns_is_late(ready: Path) -> None:
    """It is reported as late, with what the worker saw of the token, and goes nowhere else."""
    token = CancellationToken()
    reports: list[Late] = []
    cancel_when(ready, token)
    isolated = IsolatedCall(functions.obey_with, (str(ready), "partial "), {}, 10)
    call = BlockingCall(isolated.run, (), {}, token, abort=isolated.stop, on_late=reports.append)
    asyncio.run(call.run_and_wait(lambda: 10))
    with pytest.raises(Cancelled):
        call.settle()
    assert [late.value for late in reports] == ["partial interrupttyped"]


def test_the_deadline_crosses_over(door: Door) -> None:
    """The worker's token has the deadline of the caller's."""
    assert door(functions.deadline) is None
    token = CancellationToken(timeout=100)
    assert door(functions.deadline, token=token) == pytest.approx(token.deadline, abs=5)


@pytest.mark.parametrize(
    ("function", "argument", "how"),
    [(functions.leave, 3, "ended with code 3"), (functions.die_by_signal, signal.SIGSEGV, "was killed by SIGSEGV")],
)
def test_a_crash_is_an_error_of_that_call_only(door: Door, function: Any, argument: int, how: str) -> None:
    """The error says how the process ended, and the next call gets another one."""
    with pytest.raises(WorkerCrashed, match=f"{how} while it ran"):
        door(function, argument)
    assert door(functions.add, 1) == 2


def test_a_worker_that_died_while_idle_is_replaced(door: Door) -> None:
    """Nobody notices, since nothing had started."""
    pid = door(functions.pid)
    os.kill(pid, signal.SIGKILL)
    wait_dead(pid)
    assert door(functions.pid) != pid


def test_what_cannot_travel_is_a_clear_error(door: Door) -> None:
    """A lambda is refused before anything starts; a result that cannot be pickled is an error of the call."""
    with pytest.raises(TypeError, match="imported by its name"):
        door(lambda: None)
    with pytest.raises((AttributeError, TypeError, RuntimeError), match=r"lambda|pickle"):
        door(functions.lambda_back)


def test_nothing_starts_after_the_stop(door: Door, ready: Path) -> None:
    """With a cancelled token no worker is asked."""
    token = CancellationToken()
    token.cancel()
    with pytest.raises(Cancelled):
        door(functions.spin, str(ready), token=token)
    assert not ready.exists()


def test_a_stop_while_the_worker_starts_is_not_lost(ready: Path) -> None:
    """The stop comes before there is a process; the function is cancelled or killed once there is."""
    for idle in list(worker_process.shared_workers.workers):
        worker_process.shared_workers.workers.pop(idle)
        idle.end()
    with assert_cancels_within(5, after=0.001) as token:
        run_isolated(functions.spin, str(ready), token=token)
    wait_until(lambda: not ready.exists() or not is_alive(numbers(ready)[0]))


def test_a_stop_before_there_is_a_worker_reaches_it_once_it_is_there(
    ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop comes in the very moment in which the worker has been taken."""
    token = CancellationToken()
    original = worker_process.WorkerProcess.take

    def take_and_stop(*args: Any) -> worker_process.WorkerProcess:
        process = original(*args)
        token.cancel("stop")
        return process

    monkeypatch.setattr(worker_process.WorkerProcess, "take", take_and_stop)
    with pytest.raises(Cancelled):
        run_isolated(functions.spin, str(ready), token=token)
    wait_until(lambda: not blocking.running_calls)
    assert not ready.exists() or not is_alive(numbers(ready)[0])


def test_a_foreign_cancellation_kills_too(ready: Path) -> None:
    """wait_for() around the call raises TimeoutError, and the process dies."""

    async def main() -> None:
        task = asyncio.create_task(run_isolated_async(functions.spin, str(ready)))
        await asyncio.to_thread(numbers, ready)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    wait_dead(numbers(ready)[0])


def test_only_a_few_idle_workers_are_kept() -> None:
    """Eight at once, four kept."""

    async def main() -> None:
        await asyncio.gather(*(run_isolated_async(time.sleep, 0.2) for _ in range(8)))

    asyncio.run(main())
    assert len(worker_process.shared_workers.workers) == 4


def test_a_late_kill_does_not_hit_the_next_call() -> None:
    """A process that was released cannot be killed by its last call."""
    run_isolated(functions.pid)
    process = next(iter(worker_process.shared_workers.workers))
    process.kill(object())
    assert run_isolated(functions.add, 1) == 2


def test_a_late_stop_does_not_hit_the_next_call(ready: Path) -> None:
    """A call that ends just as it is stopped: its stop comes when another call runs in the same process."""
    idle = worker_process.IdleWorkers(1)
    first = IsolatedCall(functions.pid, (), {}, 0.0, idle)
    next_one = IsolatedCall(functions.obey_with, (str(ready), "stopped by "), {}, 30.0, idle)
    tokens = [CancellationToken(), CancellationToken()]

    def stop_both() -> None:
        for call, token, reason in zip((first, next_one), tokens, ("late", "itself"), strict=True):
            token.cancel(reason)
            call._cancel_and_kill()

    try:
        with tokens[0].bind():
            pid = first.run()
        stopper = threading.Thread(target=lambda: (numbers(ready), stop_both()))
        stopper.start()
        with tokens[1].bind():
            assert next_one.run() == "stopped by itself"
        stopper.join()
        assert numbers(ready) == [pid]
    finally:
        idle.close()


def test_a_worker_that_was_doomed_while_it_answered_is_not_kept() -> None:
    """The answer counts; the process, which is being killed, is not used again."""
    run_isolated(functions.pid)
    process, _ = worker_process.shared_workers.workers.popitem()
    owner = object()
    process._owner = owner
    process.kill(owner)
    process.release()
    assert process not in worker_process.shared_workers.workers
    process._owner = owner
    process.cancel(owner, CancellationToken(), 0.01)  # the pipe is closed: nothing happens


def test_what_the_function_prints_is_printed() -> None:
    """The worker writes to our own output, also when it has closed its own."""
    program = """
        from halter import run_isolated
        from tests.support import isolated_functions as functions
        run_isolated(functions.say)
        run_isolated(functions.close_output)
        run_isolated(functions.pid)
    """
    result = run_python(program, cwd=Path(__file__).parents[3])
    assert result.stdout == "said in the worker\n", result.stderr


def test_a_message_for_an_earlier_call_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that arrives late must not hit the next function of the same process."""
    monkeypatch.setattr(worker_process, "KILL_TIMEOUT", 30.0)  # it may end late, and is not killed meanwhile
    pid = run_isolated(functions.pid)
    process = next(process for process in worker_process.shared_workers.workers if process._process.pid == pid)
    for number in (process._number, 0):
        process._requests.write(("cancel", number, "stop", "late"))
    assert run_isolated(functions.pid) == pid
    worker_process.shared_workers.workers.pop(process)
    assert process.end() == "ended with code 0"


def test_a_worker_that_cannot_read_a_request_ends_and_is_replaced() -> None:
    """It stayed without the thread that reads, and the next call in it was never begun: its caller waited for ever."""
    pid = run_isolated(functions.pid)
    process = next(process for process in worker_process.shared_workers.workers if process._process.pid == pid)
    process._requests.write(("cancel", process._number, None, ""))  # a token is not cancelled without a reason
    wait_dead(pid)
    assert run_isolated(functions.pid) != pid


def call_of(fn: object, *args: object, main: str | None = None) -> worker_main.WorkerCall:
    return worker_main.WorkerCall(1, pickle.dumps((fn, args, {})), main, None)


def test_the_inside_of_a_worker_answers_for_everything() -> None:
    """A value, an error, one that cannot travel, and obedience: each is an answer."""
    assert call_of(functions.add, 1).run() == ("value", pickle.dumps(2))
    assert call_of(functions.fail).run()[0] == "error"
    _, body = call_of(functions.fail_stubbornly).run()
    assert isinstance(pickle.loads(body), RuntimeError)
    stopped = call_of(checkpoint)
    stopped.token.cancel()
    assert stopped.run() == ("cancelled", b"")


def test_names_of_the_main_program_are_looked_up_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is run once as a module, and not at all when the names are there."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    script = tmp_path / "program.py"
    script.write_text("def double(x): return 2 * x\nassert __name__ != '__main__'\n")
    payload = b"c__main__\ndouble\n(I4\ntp0\n}p1\n"  # the names alone: the function exists only in the file
    payload = b"(" + payload + b"t."
    for _ in range(2):
        assert worker_main.WorkerCall(1, payload, str(script), None).run() == ("value", pickle.dumps(8))
        script.write_text("raise SystemExit('run twice')")
    main.__dict__.clear()
    assert worker_main.WorkerCall(1, payload, None, None).run()[0] == "error"


def test_a_worker_that_does_not_end_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that survives even KILL cannot be buried properly; it is said."""
    run_isolated(functions.pid)
    process, _ = worker_process.shared_workers.workers.popitem()
    monkeypatch.setattr(process._process, "poll", lambda: None)  # nothing that we may start resists KILL
    assert process.end() == "did not end"


MAIN = """
import sys
from halter import run_isolated

def double(x):
    return 2 * x

if __name__ == "__main__":
    print(run_isolated(double, 21), run_isolated(double, 4))
"""


def test_functions_of_the_main_program_are_found(tmp_path: Path) -> None:
    """A script may isolate its own functions; its main part is not run again in the worker."""
    script = tmp_path / "script.py"
    script.write_text(MAIN)
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False)
    assert result.stdout == "42 8\n", result.stderr


def test_functions_of_an_interactive_session_are_a_clear_error() -> None:
    """Without a file there is nothing to import them from."""
    program = """
        from halter import run_isolated
        def f(): pass
        try:
            run_isolated(f)
        except AttributeError as error:
            print(error)
    """
    assert "f" in run_python(program).stdout


def test_a_worker_that_cannot_start_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No endless starting of processes that die at once; and no descriptor lost when there is no interpreter."""
    for idle in list(worker_process.shared_workers.workers):
        worker_process.shared_workers.workers.pop(idle)
        idle.end()
    monkeypatch.setattr(worker_process, "_START", "raise SystemExit(9)")
    with pytest.raises(WorkerCrashed, match="ended with code 9 before it could start"):
        run_isolated(functions.pid)
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        run_isolated(functions.pid)


def test_workers_die_with_their_parent(ready: Path) -> None:
    """Kill -9 of the parent, and the spinning worker is gone."""
    code = (
        "import sys; from halter import run_isolated; from tests.support import isolated_functions as f; "
        "run_isolated(f.spin, sys.argv[1])"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(ready)], cwd=Path(__file__).parents[3])
    pid = numbers(ready)[0]
    parent.kill()
    parent.wait()
    wait_dead(pid)


def test_workers_of_ones_own_are_kept_between_calls_and_end_when_closed() -> None:
    """What was loaded there is there for the next call; closing ends the process, and later calls are cancelled."""

    async def main() -> None:
        workers = Workers()
        one = await workers.run(functions.pid)
        assert await workers.run(functions.pid) == one
        assert await run_isolated_async(functions.pid) != one  # it is not shared
        workers.close()
        workers.close()
        await asyncio.to_thread(wait_dead, one)
        with pytest.raises(Cancelled) as caught:
            await workers.run(functions.pid, token=CancellationToken())
        assert caught.value.reason == "shutdown"

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_worker_that_comes_back_to_a_closed_pool_ends() -> None:
    """Whoever closes the pool while a function runs does not wait for it, and its process does not stay."""

    async def main() -> None:
        workers = Workers(max_idle=0)
        gone = await workers.run(functions.pid)
        await asyncio.to_thread(wait_dead, gone)  # there is room for none

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_worker_that_never_begins_is_killed_by_the_stop() -> None:
    """An idle worker that something had frozen could not be killed: the call was abandoned, and the worker lived on."""
    frozen = run_isolated(functions.pid)
    os.kill(frozen, signal.SIGSTOP)
    token = CancellationToken(timeout=0.2)
    with pytest.raises(Cancelled):
        run_isolated(functions.add, 1, token=token)
    wait_dead(frozen)
    wait_until(lambda: not blocking.running_calls)
    assert run_isolated(functions.add, 1) == 2


def test_a_worker_that_gets_no_second_pipe_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one pipe to go, each call that failed kept that one open."""
    guardian.wait_until_started()
    make_pipe, pipes = os.pipe, list[tuple[int, int]]()

    def make_one() -> tuple[int, int]:
        if pipes:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        pipes.append(make_pipe())
        return pipes[0]

    monkeypatch.setattr(os, "pipe", make_one)
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        worker_process.WorkerProcess()
    for descriptor in pipes[0]:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            os.fstat(descriptor)
