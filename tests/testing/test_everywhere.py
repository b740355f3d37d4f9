"""interrupt_everywhere finds what breaks, says where, and can do it again."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import threading

import pytest

from halter import CancellationToken, Cancelled, run_blocking
from halter.cancel.threads import pool
from halter.cancel.threads.pool import retire_threads
from halter.testing import InterruptFailure, everywhere, interrupt_everywhere
from halter.testing.everywhere import points_of
from tests.support.waiting import wait_until


def test_every_line_of_the_scenario_is_a_point() -> None:
    """Each line is tried once, a loop's lines as often as asked for, in the order they are passed."""
    stops: list[str] = []

    def scenario(token: CancellationToken) -> None:
        count = 0
        for _ in range(5):
            count += 1
        assert count == 5
        stops.append(token.detail)

    report = interrupt_everywhere(scenario, repeat=2)
    lines = [point for point in report.points if "test_everywhere.py" in point.place]
    assert report.missed == []
    assert len(lines) == len(set(lines)) == len(report.points)
    assert max(point.nth for point in lines) == 2
    tried = {stop.removeprefix("at ") for stop in stops if stop}
    assert tried >= {str(point) for point in lines[:-1]}


def test_the_point_that_breaks_is_named_and_can_be_tried_alone() -> None:
    """A race that shows in a single place is found, and found again by its name."""

    def scenario(token: CancellationToken) -> None:
        accepted = not token.is_cancelled
        message = "hello"  # a stop here is lost
        if accepted:
            assert not token.is_cancelled, message

    with pytest.raises(InterruptFailure, match=r"when stopped at .*test_everywhere.py:\d+ in .*scenario#1") as caught:
        interrupt_everywhere(scenario)
    assert isinstance(caught.value.__cause__, AssertionError)
    name = str(caught.value).partition('at="')[2].partition('"')[0]
    with pytest.raises(InterruptFailure):
        interrupt_everywhere(scenario, at=name)


def test_a_thread_that_is_busy_between_two_runs_is_watched_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a call used a thread that had ended its last one late, and none of its lines was a point."""
    runs: list[CancellationToken] = []
    is_between, has_passed_lines, may_end = threading.Event(), threading.Event(), threading.Event()

    def end_late() -> None:
        is_between.wait(30)
        CancellationToken()
        has_passed_lines.set()
        may_end.wait(30)

    def between_runs() -> None:
        if len(runs) == 1:
            is_between.set()
            has_passed_lines.wait(30)
        retire_threads()

    def scenario(token: CancellationToken) -> None:
        runs.append(token)
        if len(runs) == 1:
            pool.submit(end_late)
            return
        if len(runs) == 2:
            may_end.set()
            wait_until(lambda: len(pool.idle_threads) == 1)
        run_blocking(in_the_thread, token=token)

    def in_the_thread() -> None:
        assert runs

    monkeypatch.setattr(everywhere, "retire_threads", between_runs)
    report = interrupt_everywhere(scenario, only=lambda place: "in_the_thread" in place)
    assert report.points


def test_a_thread_that_was_started_before_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that ends its job in the middle of a run: it is not traced, so none of its lines were points."""
    is_busy, may_end = threading.Event(), threading.Event()

    def start_busy_thread() -> None:
        """Before each run: one thread that has not ended its last job."""
        is_busy.clear()
        may_end.clear()
        trace = threading.gettrace()
        threading.settrace(lambda *_: None)  # as before the exploration
        pool.submit(lambda: (is_busy.set(), may_end.wait(30)))
        is_busy.wait(30)
        threading.settrace(trace)
        retire_threads()

    def scenario(token: CancellationToken) -> None:
        may_end.set()
        wait_until(lambda: pool.idle_threads)
        run_blocking(in_the_thread, token=token)

    def in_the_thread() -> None:
        assert may_end.is_set()

    monkeypatch.setattr(everywhere, "retire_threads", start_busy_thread)
    report = interrupt_everywhere(scenario, only=lambda place: "in_the_thread" in place)
    assert report.points
    assert not report.missed


def test_steps_of_the_event_loop_are_points() -> None:
    """A stop between a result and the task that gets it is tried, too: a loss there is found."""
    delivered: list[str] = []

    async def scenario(token: CancellationToken) -> None:
        delivered.clear()
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_soon(future.set_result, "message")
        async with token.scope():
            delivered.append(await future)

    def check() -> None:
        assert delivered == ["message"]

    resuming = [p for p in interrupt_everywhere(scenario).points if "resuming test_everywhere.py" in p.place]
    assert resuming
    with pytest.raises(InterruptFailure, match=r"loop step, resuming test_everywhere\.py"):
        for point in resuming:
            interrupt_everywhere(scenario, check=check, at=str(point))


def test_lines_in_worker_threads_are_points() -> None:
    """The stop also lands in the threads that the scenario uses."""
    where: set[str] = set()

    def scenario(token: CancellationToken) -> None:
        token.on_cancel(lambda: where.add(threading.current_thread().name.partition("-")[0]))
        with contextlib.suppress(Cancelled):
            run_blocking(lambda: None, token=token)

    interrupt_everywhere(scenario, repeat=1)
    assert "halter" in where


def test_a_scenario_that_fails_without_a_stop_says_so() -> None:
    """The scenario itself must be right first."""

    def scenario(token: CancellationToken) -> None:
        raise ValueError("wrong from the start")

    with pytest.raises(InterruptFailure, match="without any stop"):
        interrupt_everywhere(scenario)


def test_cancelled_of_a_stranger_is_a_failure() -> None:
    """Only the scenario's own token may end it."""

    def scenario(token: CancellationToken) -> None:
        other = CancellationToken()
        other.cancel()
        other.raise_if_cancelled()

    with pytest.raises(InterruptFailure):
        interrupt_everywhere(scenario)


def test_a_scenario_that_hangs_is_reported_with_its_stack() -> None:
    """A stop that leads to a deadlock is a finding, not a test run that never ends."""
    release = threading.Event()

    def scenario(token: CancellationToken) -> None:
        if token.is_cancelled:
            release.wait(30)

    try:
        with pytest.raises(InterruptFailure, match=r"hangs when stopped at(.|\n)*release.wait(.|\n)*has not ended"):
            interrupt_everywhere(scenario, timeout=0.2)
    finally:
        release.set()


def test_a_scenario_that_is_only_slow_is_reported_as_that() -> None:
    """It is a failure too, but not a deadlock: the report says that it ended."""
    release = threading.Event()

    class ReportedTask(asyncio.Task[bool]):
        """A task whose stack is asked for once the time is over."""

        def print_stack(self, **_: object) -> None:
            release.set()

    async def scenario(_: CancellationToken) -> None:
        task = ReportedTask(asyncio.Event().wait(), loop=asyncio.get_running_loop())
        release.wait(30)
        task.cancel()

    with pytest.raises(InterruptFailure, match=r"hangs without any stop; after 2 s(.|\n)*ended since: it is slow"):
        points_of(scenario, timeout=2.0)


def test_a_time_in_which_everything_stood_still_does_not_count() -> None:
    """A machine that is suspended, or code that keeps the interpreter to itself, is not a scenario that hangs."""

    def scenario(_: CancellationToken) -> None:
        threading.Event().wait(0.2)  # the kit waits now
        ctypes.PyDLL(None).sleep(3)  # without giving the interpreter lock to another thread
        threading.Event().wait(0.2)  # the kit runs again, and finds the scenario still at work

    assert points_of(scenario, timeout=2.0)


def test_a_finalizer_that_runs_while_a_point_is_counted_is_a_point_too() -> None:
    """A garbage collection may come at any allocation, also inside the kit: it hung there, waiting for its own lock."""
    finalized = 0

    class Garbage:
        """Its finalizer is traced, as Halter's own are, and leaves new garbage."""

        def __init__(self) -> None:
            self.myself = self

        def __del__(self) -> None:
            nonlocal finalized
            finalized += 1
            if finalized < 2000:
                Garbage()

    async def scenario(_: CancellationToken) -> None:
        gc.set_threshold(1)
        for _step in range(200):
            Garbage()  # in each step: one that outlives three collections is not looked at again for long
            await asyncio.sleep(0)

    before = gc.get_threshold()
    try:
        points = points_of(scenario, timeout=10)
    finally:
        gc.set_threshold(*before)
    assert any("Garbage.__del__" in point.place for point in points)
    assert finalized > 100


def test_a_broken_invariant_is_a_failure_of_its_point() -> None:
    """check() is called after each run, and what it raises is reported."""
    runs: list[int] = []

    def check() -> None:
        runs.append(1)
        assert len(runs) < 4

    def scenario(token: CancellationToken) -> None:
        assert token is not None
        assert token.name

    with pytest.raises(InterruptFailure, match="when stopped at"):
        interrupt_everywhere(scenario, check=check)
    assert len(runs) == 4
