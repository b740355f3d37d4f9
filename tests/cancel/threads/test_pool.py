"""Our own worker threads."""

from __future__ import annotations

import logging
import threading

import pytest

from halter.cancel.threads import pool
from tests.support.processes import run_python
from tests.support.waiting import wait_until


def test_an_idle_thread_is_used_again_and_ends_when_nobody_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that was idle for long enough ends by itself, or takes the job that came in the last moment."""
    pool.retire_threads()
    monkeypatch.setattr(pool, "_IDLE_SECONDS", 0.02)
    seen: list[threading.Thread] = []
    pool.submit(lambda: seen.append(threading.current_thread()))
    wait_until(lambda: seen)
    seen[0].join(30)
    assert not seen[0].is_alive()
    assert pool.idle_threads == {}


def test_a_thread_that_is_claimed_as_it_gives_up_takes_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claimed by a submitter just before it times out: the job is run, not lost."""
    monkeypatch.setattr(pool, "_IDLE_SECONDS", 0.02)
    ran = threading.Event()
    worker = pool.WorkerThread()  # not among the idle ones, as one that submit() has claimed
    threading.Event().wait(0.1)  # it times out meanwhile
    worker.put(ran.set)
    assert ran.wait(30)


def test_a_job_that_raises_is_logged_and_its_thread_lives(caplog: pytest.LogCaptureFixture) -> None:
    """Jobs must not raise; one that does costs no thread."""
    ran = threading.Event()
    with caplog.at_level(logging.ERROR):
        pool.submit(lambda: 1 / 0)
        wait_until(lambda: "ZeroDivisionError" in caplog.text)
    pool.submit(ran.set)
    assert ran.wait(30)


def test_a_retired_thread_ends_its_job_and_gets_no_other() -> None:
    """What waits for work is gone; what works goes on, and ends once it is idle and would be used again."""
    pool.retire_threads()
    gate = threading.Event()
    threads: list[threading.Thread] = []

    def note_thread() -> None:
        threads.append(threading.current_thread())

    pool.submit(lambda: (note_thread(), gate.wait(30)))
    wait_until(lambda: threads)
    pool.submit(lambda: None)
    wait_until(lambda: pool.idle_threads)
    pool.retire_threads()
    assert pool.idle_threads == {}
    gate.set()
    wait_until(lambda: pool.idle_threads)
    pool.submit(note_thread)
    wait_until(lambda: len(threads) == 2)
    assert threads[0] is not threads[1]
    threads[0].join(30)
    assert not threads[0].is_alive()


def test_a_forked_child_starts_threads_of_its_own() -> None:
    """The child of a fork has no idle threads to wait for."""
    program = """
        import os
        from halter import run_blocking
        run_blocking(int)
        pid = os.fork()
        if pid == 0:
            os._exit(run_blocking(int))
        raise SystemExit(os.waitpid(pid, 0)[1])
    """
    assert run_python(program).returncode == 0
