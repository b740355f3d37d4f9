"""Worker threads: daemon threads that run one job after another and are never joined.

The standard pools are not used: their exit hooks and ``with`` blocks join every thread, so one job that never returns
would block the exit for ever. Here a stuck thread is just not idle. New work takes an idle thread or starts a new one,
so stuck threads take no place from new work.

``submit`` claims an idle thread by ``dict.popitem``, and a thread that was idle for too long removes itself by
``dict.pop``. Both are atomic, so either the thread gets a job or it ends, never both.
"""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from typing import TYPE_CHECKING, Final

from halter.cancel.fork import after_fork

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)
_IDLE_SECONDS: Final = 10.0  # then an idle thread ends
_numbers = itertools.count(1)
_generation = 0  # see retire_threads()
idle_threads: dict[WorkerThread, bool] = {}


class WorkerThread:
    """One thread and its queue of jobs."""

    def __init__(self) -> None:
        self.generation = _generation
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"halter-worker-{next(_numbers)}", daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], object] | None) -> None:
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                if idle_threads.pop(self, False):
                    return
                job = self._jobs.get()  # submit() has just claimed this thread: the job is on its way
            if job is None:
                return
            _run_job(job)
            del job  # keep nothing alive while idle
            idle_threads[self] = True


def _run_job(job: Callable[[], object]) -> None:
    """Run one job. A boundary: jobs report their own errors, so one that raises is a defect of ours."""
    try:
        job()
    except BaseException:  # noqa: BLE001  (a boundary)
        _log.exception("a job in a Halter thread raised an exception")


def submit(job: Callable[[], object]) -> None:
    """Run *job* on a worker thread, at once. The job must not raise."""
    while True:
        try:
            worker, _ = idle_threads.popitem()
        except KeyError:
            worker = WorkerThread()
        if worker.generation == _generation:
            worker.put(job)
            return
        worker.put(None)


def retire_threads() -> None:
    """End the idle threads and give those that are busy no other job: the next jobs run on new threads."""
    global _generation  # noqa: PLW0603  (of this process, as the threads are)
    _generation += 1
    while True:
        try:
            worker, _ = idle_threads.popitem()
        except KeyError:
            return
        worker.put(None)


after_fork(idle_threads.clear)  # the child has none of these threads
