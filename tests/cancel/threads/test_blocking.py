"""Blocking functions: control comes back, outcomes are delivered once, threads are kept apart."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from halter import CancellationToken, Cancelled, checkpoint, current_token, run_blocking, run_blocking_async
from halter.cancel import TooManyAbandoned, abandoned
from halter.cancel.threads import blocking, pool
from halter.cancel.threads.blocking import BlockingCall, Late
from halter.testing import DeafTool, assert_cancels_within, interrupt_everywhere
from tests.support.processes import run_python
from tests.support.waiting import wait_until

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
Door = Callable[..., Any]
LateRecords = Callable[[], list[logging.LogRecord]]


def run_in_loop(*args: Any, **kwargs: Any) -> Any:
    return asyncio.run(run_blocking_async(*args, **kwargs))


@pytest.fixture(params=[run_blocking, run_in_loop], ids=["sync", "async"])
def door(request: pytest.FixtureRequest) -> Door:
    """Both ways in: the rules are the same."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def late(caplog: pytest.LogCaptureFixture) -> LateRecords:
    """The log records of what ended late during the test."""
    wait_until(lambda: not blocking.running_calls)  # nothing of earlier tests
    caplog.set_level(logging.INFO)
    return lambda: [record for record in caplog.records if "after it was stopped" in record.message]


@contextlib.contextmanager
def stopped_when(begun: threading.Event) -> Iterator[CancellationToken]:
    """The token of a body that is stopped once its function has begun, however late that is."""
    with assert_cancels_within(5, after=60) as token:
        threading.Thread(target=lambda: begun.wait(30) and token.cancel("stop"), daemon=True).start()
        yield token


def test_the_result_and_the_error_of_the_function_come_back(door: Door) -> None:
    """Arguments go in, the value comes out, and so does the function's own exception."""
    assert door(divmod, 7, 2) == (3, 1)
    assert door(int, "ff", base=16) == 255
    with pytest.raises(ZeroDivisionError):
        door(lambda: 1 / 0)


def test_a_function_that_raised_is_freed_without_a_garbage_collection() -> None:
    """Once its error is handled, the call and its token are gone: nothing in its thread refers to them."""
    freed: queue.SimpleQueue[None] = queue.SimpleQueue()
    tokens: list[weakref.ref[CancellationToken]] = []

    def fail() -> None:
        tokens.append(weakref.ref(current_token(), lambda _: freed.put(None)))
        raise ValueError("on purpose")

    async def main() -> None:  # the error is handled in the task: asyncio.run() itself would make a cycle of it
        with contextlib.suppress(ValueError):
            await run_blocking_async(fail)

    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            run_blocking(fail)
        freed.get(timeout=10)  # the thread of the function may be the last that refers to the call
        asyncio.run(main())
        freed.get(timeout=10)
    finally:
        gc.enable()


def test_a_system_that_refuses_what_a_call_needs_is_an_error_of_that_call(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a filter of system calls: it was logged in the worker thread, and the caller waited for ever."""

    def refuse(*_: object) -> None:
        raise PermissionError("no waitid here")

    monkeypatch.setattr(os, "waitid", refuse)
    with pytest.raises(PermissionError, match="no waitid here"):
        door(lambda: None, token=CancellationToken(timeout=10))


def test_the_function_runs_in_the_callers_context(door: Door) -> None:
    """Context variables are carried over, and the current token is one below the caller's."""
    variable.set("set")
    token = CancellationToken()
    assert door(variable.get) == "set"
    assert door(current_token, token=token)._parents() == (token,)


def test_a_deaf_function_does_not_keep_its_caller(door: Door, late: LateRecords) -> None:
    """Control is back at once, the thread is abandoned, and its late end is logged by name."""
    with DeafTool() as deaf:
        with stopped_when(deaf.started) as token:
            door(deaf, token=token)
        assert len(abandoned) == 1
        deaf.release()
    wait_until(late)
    assert "DeafTool" in late()[0].message
    assert len(abandoned) == 0


def test_the_cancelled_exception_is_of_the_token_that_was_given(door: Door) -> None:
    """The caller can tell its own stop by identity."""
    token = CancellationToken()
    with DeafTool() as deaf, pytest.raises(Cancelled) as caught:
        threading.Timer(0.02, token.cancel, ("interrupt",)).start()
        door(deaf, token=token)
    assert caught.value.token is token


def test_a_failure_after_the_stop_is_a_cancellation(door: Door, late: LateRecords) -> None:
    """abort() makes the function fail with a network error; the caller sees Cancelled, the log the error."""
    broken, reading = threading.Event(), threading.Event()

    def read() -> None:
        reading.set()
        broken.wait(30)
        raise ConnectionResetError("closed by ourselves")

    token = CancellationToken()
    threading.Thread(target=lambda: reading.wait(30) and token.cancel()).start()
    with pytest.raises(Cancelled):
        door(read, token=token, abort=broken.set, grace=10)
    wait_until(late)
    exc_info = late()[0].exc_info
    assert exc_info is not None
    assert exc_info[0] is ConnectionResetError


def test_half_a_result_after_the_stop_is_not_a_result(door: Door, late: LateRecords) -> None:
    """A function that returns because it was aborted has not returned a result."""
    broken, waiting = threading.Event(), threading.Event()
    token = CancellationToken()

    def wait() -> str:
        waiting.set()
        broken.wait(30)
        return "half"

    threading.Thread(target=lambda: waiting.wait(30) and token.cancel()).start()
    with pytest.raises(Cancelled):
        door(wait, token=token, abort=broken.set, grace=10)
    wait_until(late)


def test_abort_is_called_once_before_cancelled_is_raised(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time the caller is back, abort() has been called."""
    monkeypatch.setattr(blocking, "_ABORT_TIMEOUT", 30.0)  # its thread may come late
    calls: list[int] = []
    token = CancellationToken()
    with DeafTool() as deaf, pytest.raises(Cancelled):
        threading.Thread(target=lambda: deaf.started.wait(30) and token.cancel()).start()
        door(deaf, token=token, abort=lambda: calls.append(1))
    assert calls == [1]


def test_an_abort_that_hangs_or_fails_keeps_nobody(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    """abort() is foreign code: its blocking and its errors are not the caller's."""
    with DeafTool() as deaf, DeafTool() as stuck:
        with assert_cancels_within(5) as token:
            door(deaf, token=token, abort=stuck)
    with DeafTool() as deaf, caplog.at_level(logging.ERROR):
        with stopped_when(deaf.started) as token:
            door(deaf, token=token, abort=lambda: 1 / 0)
        wait_until(lambda: "abort()" in caplog.text)


def test_a_function_that_obeys_is_not_abandoned(door: Door, late: LateRecords) -> None:
    """With grace, a function that looks at its token is gone before the caller is back, and reports nothing."""
    begun = threading.Event()

    def obey() -> None:
        begun.set()
        while True:
            checkpoint()
            current_token().sleep(10)

    with stopped_when(begun) as token:
        door(obey, token=token, grace=10)
    assert len(abandoned) == 0
    assert late() == []


def test_grace_is_a_limit_and_not_a_wait(door: Door) -> None:
    """A function that ignores its token has its grace and no more."""
    with DeafTool() as deaf:
        start = time.monotonic()
        token = CancellationToken()
        threading.Thread(target=lambda: (deaf.started.wait(), token.cancel())).start()
        with pytest.raises(Cancelled):
            door(deaf, token=token, grace=0.1)
        assert time.monotonic() - start >= 0.1


def test_nothing_starts_after_the_stop(door: Door) -> None:
    """With a cancelled token the function is not called at all."""
    token = CancellationToken()
    token.cancel()
    deaf = DeafTool()
    with pytest.raises(Cancelled):
        door(deaf, token=token)
    assert deaf.calls == 0


def test_the_function_may_raise_another_tokens_cancelled(door: Door) -> None:
    """Cancelled of a token of its own is the function's exception like any other."""
    other = CancellationToken()
    other.cancel("mine")
    with pytest.raises(Cancelled) as caught:
        door(other.raise_if_cancelled)
    assert caught.value.token is other


def test_a_late_worker_still_sees_its_own_cancelled_token(door: Door) -> None:
    """Long after the caller has gone on, current_token() in the abandoned thread is the one that was stopped."""
    seen: list[CancellationToken] = []
    finished = threading.Event()
    with DeafTool() as deaf:

        def work() -> None:
            deaf()
            seen.append(current_token())
            finished.set()

        with stopped_when(deaf.started) as token:
            door(work, token=token)
        with CancellationToken(name="next turn").bind():
            deaf.release()
            assert finished.wait(10)
    assert seen[0].is_cancelled
    assert seen[0]._parents() == (token,)


def test_a_foreign_cancellation_reaches_the_function() -> None:
    """A timeout around the call raises TimeoutError; abort() is called and the thread's token is cancelled."""
    seen = threading.Event()
    aborted = threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        limit = asyncio.timeout(None)

        def listen() -> None:
            loop.call_soon_threadsafe(limit.reschedule, loop.time())
            current_token().wait(30)
            if current_token().reason == "external":
                seen.set()

        with pytest.raises(TimeoutError):
            async with limit:
                await run_blocking_async(listen, abort=aborted.set)

    asyncio.run(main())
    assert seen.wait(10)
    assert aborted.wait(10)


def test_a_keyboard_interrupt_reaches_the_function() -> None:
    """Ctrl+C in the waiting main thread is raised there, and the function's token is cancelled."""
    program = """
        import os, signal, threading
        from halter import run_blocking, current_token
        heard = threading.Event()
        def listen():
            os.kill(os.getpid(), signal.SIGINT)
            current_token().wait(30)
            heard.set()
        try:
            run_blocking(listen)
        except KeyboardInterrupt:
            raise SystemExit(0 if heard.wait(10) else 1)
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert run_python(program).returncode == 0


def test_an_on_late_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is there to catch its error, so it is in the log, and the thread goes on."""
    token = CancellationToken()
    with DeafTool() as deaf:
        call = BlockingCall(deaf, (), {}, token, on_late=lambda _late: 1 / 0)
        call.start(lambda: None)
        deaf.started.wait(30)
        token.cancel()
        with pytest.raises(Cancelled):
            call.settle()
    wait_until(lambda: "on_late" in caplog.text and "ZeroDivisionError" in caplog.text)


def test_abandoned_threads_have_a_limit_with_a_warning_before(caplog: pytest.LogCaptureFixture) -> None:
    """Near the limit there is a warning that names the culprit; at the limit new calls are refused, not queued."""
    wait_until(lambda: len(abandoned) == 0)  # those of earlier tests may end late
    limit, abandoned.limit = abandoned.limit, 5
    deaf = DeafTool()
    try:
        with caplog.at_level(logging.WARNING):
            for number in range(5):
                assert ("threads are stuck" in caplog.text) == (number >= 4)
                while len(abandoned) == number:  # else it was stopped before its thread had come to it
                    with pytest.raises(Cancelled):
                        run_blocking(deaf, token=CancellationToken(timeout=0.01))
        with pytest.raises(TooManyAbandoned, match=r"5 of at most 5 .*DeafTool"):
            run_blocking(int)
    finally:
        abandoned.limit = limit
        deaf.release()
    wait_until(lambda: len(abandoned) == 0)
    assert run_blocking(int) == 0


def test_abandoned_threads_take_no_slot_from_new_work() -> None:
    """With forty abandoned calls, forty new calls still run in parallel."""
    with DeafTool() as deaf:
        for _ in range(40):
            with pytest.raises(Cancelled):
                run_blocking(deaf, token=CancellationToken(timeout=0.001))
        barrier = threading.Barrier(40, timeout=10)

        async def main() -> None:
            await asyncio.gather(*(run_blocking_async(barrier.wait) for _ in range(40)))

        asyncio.run(main())
    wait_until(lambda: len(abandoned) == 0)


def test_a_function_that_ends_as_it_is_abandoned_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Added to the abandoned and ended in the same moment: it is looked at again and taken out."""
    call = blocking.BlockingCall(int, (), {}, CancellationToken())
    assert call._start_claim.pop()  # its thread has begun it
    add = abandoned.add

    def add_and_end(each: blocking.BlockingCall) -> None:
        add(each)
        each.has_ended = True

    monkeypatch.setattr(abandoned, "add", add_and_end)  # to hit that moment
    assert call.leave() is True
    assert len(abandoned) == 0


def test_a_function_that_has_not_begun_is_not_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stop came before its thread did: it never begins, its end is reported once, and nothing was left behind."""
    late: list[Late] = []
    jobs: list[Callable[[], object]] = []
    deaf = DeafTool()
    token = CancellationToken()
    call = blocking.BlockingCall(deaf, (), {}, token, on_late=late.append)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "submit", jobs.append)  # a thread that comes late
        call.start(lambda: None)
    token.cancel("stop")
    with pytest.raises(Cancelled):
        call.settle()
    assert len(abandoned) == 0
    assert [each.reason for each in late] == ["stop"]
    [job] = jobs
    job()
    assert call.has_ended
    assert deaf.calls == 0
    assert len(late) == 1


def test_a_waiter_that_is_interrupted_after_the_end_cuts_nothing() -> None:
    """The function had ended and settled its outcome when the waiter was broken off."""
    call = blocking.BlockingCall(int, (), {}, CancellationToken())
    assert call._claim.pop()
    call.cancel_and_leave("KeyboardInterrupt while waiting for it")
    assert call.token.reason == "external"
    assert len(abandoned) == 0


def test_threads_are_reused() -> None:
    """One call after the other runs on the same idle thread."""
    idents = {run_blocking(threading.get_ident) for _ in range(50)}
    assert len(idents) < 10


def test_bad_use_gets_a_clear_error(door: Door) -> None:
    """Not a function, a negative grace, an abort that cannot be called."""
    with pytest.raises(TypeError, match="needs a function"):
        door("print")
    with pytest.raises(ValueError, match="grace must be zero or more"):
        door(int, grace=-1)
    with pytest.raises(TypeError, match="abort must be a function"):
        door(int, abort=3)


def blocking_scenario(token: CancellationToken) -> None:
    finished: list[str] = []

    def work() -> str:
        current_token().wait(0.001)
        finished.append("work")
        return "value"

    try:
        assert run_blocking(work, token=token, abort=lambda: None, grace=0.05) == "value"
    except Cancelled:
        assert token.is_cancelled
    else:
        assert finished == ["work"]
    with pytest.raises(ZeroDivisionError):
        run_blocking(lambda: 1 / 0, token=CancellationToken())


async def blocking_scenario_async(token: CancellationToken) -> None:
    try:
        assert await run_blocking_async(lambda: "value", token=token, grace=0.05) == "value"
        await run_blocking_async(lambda: current_token().wait(0.001), token=token)
    except Cancelled:
        assert token.is_cancelled
    await asyncio.sleep(0)


async def blocking_scenario_foreign(token: CancellationToken) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(run_blocking_async(lambda: "value"))
    token.on_cancel(lambda: loop.call_soon_threadsafe(task.cancel))
    await asyncio.wait([task])
    assert task.cancelled() or task.result() == "value"


@pytest.mark.parametrize("scenario", [blocking_scenario, blocking_scenario_async, blocking_scenario_foreign])
def test_a_stop_at_any_point_ends_the_call_in_one_way(scenario: Callable[[CancellationToken], Any]) -> None:
    """Wherever the stop lands: a value, an error or Cancelled, exactly one of them, and no thread is lost."""
    report = interrupt_everywhere(scenario, check=lambda: wait_until(lambda: len(abandoned) == 0))
    assert len(report.points) > 100
    assert len(report.missed) < len(report.points) / 5


def test_without_a_thread_nothing_is_abandoned(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine out of threads: each failed start took one of the places of abandoned threads, for ever."""
    token = CancellationToken()
    pool.retire_threads()
    before = set(blocking.running_calls)  # threads of other tests may end late

    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_more)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            door(int, token=token, abort=lambda: None)
    assert len(abandoned) == 0
    assert set(blocking.running_calls) <= before
    assert token._observers == 0
    assert door(int, token=token) == 0


def test_a_stop_without_a_thread_to_help_is_a_stop(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No thread is left for abort() and for cutting: control is back all the same, and the call is named."""

    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with DeafTool() as deaf, assert_cancels_within(5, after=60) as token:  # stop() below comes first
        pool.retire_threads()

        def stop() -> None:
            deaf.started.wait(30)
            pool.retire_threads()
            monkeypatch.setattr(threading.Thread, "start", no_more)
            token.cancel("stop")

        threading.Thread(target=stop).start()
        try:
            door(deaf, token=token, abort=lambda: pytest.fail("there was no thread for it"))
        finally:
            monkeypatch.undo()
            assert len(abandoned) == 1
    assert "no thread could be started" in caplog.text
    wait_until(lambda: len(abandoned) == 0)


def test_a_hook_of_the_calls_own_is_called_before_its_waiter_goes_on() -> None:
    """The caller saw the end of a stopped call before its late outcome, and took the call for abandoned."""
    started, reporting, returned = threading.Event(), threading.Event(), threading.Event()
    reports: list[Late] = []

    def listen() -> bool:
        started.set()
        return current_token().wait(30)

    def report(late: Late) -> None:
        reporting.set()
        returned.wait(0.2)
        reports.append(late)
        raise SystemExit  # whatever the hook does, the thread is given back

    async def main() -> None:
        token = CancellationToken()
        call = BlockingCall(listen, (), {}, token, on_late=report)
        loop = asyncio.get_running_loop()
        waiter = asyncio.ensure_future(call.run_and_wait(lambda: 30.0))
        await loop.run_in_executor(None, started.wait, 30)
        token.cancel("stop")
        await loop.run_in_executor(None, reporting.wait, 30)
        call._wake()
        await waiter
        returned.set()
        assert [late.value for late in reports] == [True]
        with pytest.raises(Cancelled):
            call.settle()

    asyncio.run(main())
    assert len(abandoned) == 0
    wait_until(lambda: not blocking.running_calls)
