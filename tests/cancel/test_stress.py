"""Races, on purpose: many threads do to one tree what can be done to it, and the sums must be right.

Each test runs a fixed number of rounds, in which the order is left to chance.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from halter import CancellationToken, Cancelled, run_blocking
from halter.cancel import abandoned
from tests.support.processes import run_python
from tests.support.waiting import wait_until


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Threads take turns every few bytecodes, so that races are met and not waited for."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*jobs: Callable[[], object]) -> None:
    """Run jobs in threads that start at the same moment; an error of one is an error of the test."""
    barrier = threading.Barrier(len(jobs))
    errors: list[BaseException] = []

    def run(job: Callable[[], object]) -> None:
        barrier.wait()
        try:
            job()
        except BaseException as exc:
            errors.append(exc)

    workers = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    if errors:
        raise errors[0]


def test_exactly_one_cancel_wins() -> None:
    """Of eight calls at once, one returns True, and its reason is the one that stays, everywhere."""
    for _ in range(200):
        root = CancellationToken()
        leaf = root.child().child()
        won: list[str] = []
        together(*(lambda name=name: root.cancel(name) and won.append(name) for name in "abcdefgh"))
        assert [root.reason] == won
        assert leaf.reason == root.reason


def test_every_callback_runs_once_or_was_unregistered() -> None:
    """Registering, unregistering and cancelling at once: nothing runs twice, nothing is lost."""
    for _ in range(100):
        root = CancellationToken()
        ran: list[int] = []
        prevented: list[int] = []

        def register(start: int) -> None:
            token = root.child()
            for number in range(start, start + 20):
                registration = (token if number % 2 else root).on_cancel(lambda number=number: ran.append(number))
                if number % 3 == 0 and registration():
                    prevented.append(number)

        together(*(lambda start=start: register(start) for start in (0, 100, 200)), root.cancel)
        assert sorted(ran + prevented) == [*range(20), *range(100, 120), *range(200, 220)]


def test_no_child_escapes_a_cancel() -> None:
    """Children made, observed and dropped while the parent is cancelled are all cancelled."""
    for _ in range(100):
        root = CancellationToken()
        made: list[CancellationToken] = []

        def make() -> None:
            for number in range(50):
                child = root.child()
                if number % 2:
                    made.append(child.child())
                if number % 5 == 0:
                    child.on_cancel(lambda: None)

        together(make, make, make, root.cancel)
        assert all(child.is_cancelled for child in made)
        assert root._subs is None


def test_children_that_come_and_go_lose_nobody() -> None:
    """The dict of children is emptied, dropped and made again all the time; a child that exists is cancelled."""
    for _ in range(30):
        root = CancellationToken()
        kept: list[CancellationToken] = []

        def churn() -> None:
            for _ in range(20):
                children = [root.child() for _ in range(30)]
                kept.append(children.pop())
                del children

        together(churn, churn, churn)
        root.cancel()
        assert all(token.is_cancelled for token in kept)


def test_deadlines_and_cancels_race_for_the_reason() -> None:
    """A deadline passes during cancel(): one of the two reasons, in the whole tree, and callbacks run once."""
    for _ in range(50):
        root = CancellationToken(timeout=0.002)
        leaf = root.child()
        ran: list[int] = []
        leaf.on_cancel(lambda: ran.append(1))
        together(lambda: root.wait(random.random() * 0.004), lambda: root.cancel("stop") or root.wait())
        leaf.wait()
        wait_until(lambda: ran)
        assert leaf.reason == root.reason
        assert ran == [1]


def test_waiters_in_threads_and_tasks_all_wake() -> None:
    """Twenty threads and twenty tasks wait on one tree; none sleeps on."""

    async def main() -> None:
        for _ in range(10):
            root = CancellationToken()
            tokens = [root, *(root.child() for _ in range(19))]
            threads = [threading.Thread(target=token.wait) for token in tokens]
            for thread in threads:
                thread.start()
            tasks = [asyncio.create_task(token.wait_async()) for token in tokens]
            await asyncio.sleep(random.random() * 0.002)
            threading.Thread(target=root.cancel).start()
            await asyncio.wait_for(asyncio.gather(*tasks), 30)
            for thread in threads:
                thread.join(30)
                assert not thread.is_alive()

    asyncio.run(main())


def test_a_thousand_scopes_of_one_token_end_together() -> None:
    """Each body is left with Cancelled, exactly once."""

    async def body(token: CancellationToken) -> str:
        try:
            async with token.scope():
                await asyncio.sleep(60)
        except Cancelled:
            return "cancelled"
        return "finished"

    async def main() -> None:
        token = CancellationToken()
        tasks = [asyncio.create_task(body(token)) for _ in range(1000)]
        await asyncio.sleep(0.01)
        threading.Thread(target=token.cancel).start()
        assert await asyncio.wait_for(asyncio.gather(*tasks), 60) == ["cancelled"] * 1000

    asyncio.run(main())


def test_blocking_calls_stopped_at_random_are_settled_once() -> None:
    """A value or Cancelled, never both, and every thread comes back."""
    values = cancelled = 0
    for number in range(300):
        token = CancellationToken()
        stopper = threading.Timer(random.random() * 0.001, token.cancel)
        stopper.start()
        try:
            assert run_blocking(lambda: number, token=token) == number
            values += 1
        except Cancelled:
            cancelled += 1
        stopper.join()
    assert values + cancelled == 300
    wait_until(lambda: len(abandoned) == 0)


def test_a_storm_of_signals_that_cancel_harms_nothing() -> None:
    """Handlers cancel tokens while the main thread makes, registers, unregisters and cancels others."""
    tokens: list[CancellationToken] = []

    def handler(*_: object) -> None:
        if tokens:
            tokens[-1].cancel("signal")

    stop = threading.Event()

    def storm() -> None:
        while not stop.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)
            stop.wait(0.0001)

    old = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=storm)
    thread.start()
    try:
        for _ in range(1500):
            root = CancellationToken()
            tokens.append(root)
            ran: list[int] = []
            registrations = [root.child().on_cancel(lambda: ran.append(1)) for _ in range(5)]
            prevented = sum(registration() for registration in registrations[:2])
            root.cancel("program")
            assert len(ran) + prevented == 5
            assert root.reason in {"signal", "program"}
            tokens.clear()
    finally:
        stop.set()
        thread.join()
        signal.signal(signal.SIGUSR1, old)


def test_forks_in_the_middle_of_everything() -> None:
    """Children of a process whose other threads cancel, register and set deadlines have working tokens."""
    program = """
        import os, threading, warnings
        warnings.simplefilter("ignore")
        from halter import CancellationToken
        stop = threading.Event()
        def churn():
            while not stop.is_set():
                root = CancellationToken(timeout=0.001)
                root.child().on_cancel(lambda: None)
                root.cancel()
        threads = [threading.Thread(target=churn) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                token = CancellationToken(timeout=0.01)
                os._exit(0 if token.child().wait(10) else 1)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
    """
    # Without coverage: it takes a lock of its own in the child, which another thread held when it was forked.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    result = run_python(program, timeout=60, env=environment)
    assert result.returncode == 0, result.stderr
