"""How soon a stop is felt: from ``cancel()`` in another thread to the asyncio body, or the thread, going on.

Backs the wake-up figures: p50 and p99 over 10,000 stops each, beside the least that Python needs for
the same, a bare ``call_soon_threadsafe(task.cancel)`` and a bare lock. The waiter is asleep each time
before the clock starts. Exits with 1 if the p50 is more than 1.5 times its floor.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import asyncio
import gc
import queue
import threading
import time
from typing import TYPE_CHECKING

from bench.measure import Goals, percentile, print_table
from halter.cancel import CancellationToken, Cancelled

if TYPE_CHECKING:
    from collections.abc import Callable

_STOPS = 10_000
_WARM_UP = 200
_ASLEEP_AFTER = 0.0001  # seconds in which a waiter gets from asking for the stop to its system call


class Stopper:
    """The other thread: calls what it is given, a little later, and notes when."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.called_at = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ask(self, call: Callable[[], object] | None) -> None:
        self._calls.put(call)

    def seconds_since(self) -> float:
        return time.perf_counter() - self.called_at

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            time.sleep(_ASLEEP_AFTER)
            self.called_at = time.perf_counter()
            call()


async def scope(stopper: Stopper) -> float:
    token = CancellationToken()
    forever = asyncio.get_running_loop().create_future()
    try:
        async with token.scope():
            stopper.ask(token.cancel)
            await forever
    except Cancelled:
        return stopper.seconds_since()
    raise AssertionError


async def bare_task(stopper: Stopper) -> float:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    cancel = task.cancel
    forever = loop.create_future()
    try:
        stopper.ask(lambda: loop.call_soon_threadsafe(cancel))
        await forever
    except asyncio.CancelledError:
        seconds = stopper.seconds_since()
        task.uncancel()
        return seconds
    raise AssertionError


def wait(stopper: Stopper) -> float:
    token = CancellationToken()
    stopper.ask(token.cancel)
    token.wait()
    return stopper.seconds_since()


def bare_lock(stopper: Stopper) -> float:
    lock = threading.Lock()
    lock.acquire()
    stopper.ask(lock.release)
    lock.acquire()
    return stopper.seconds_since()


async def measure(stopper: Stopper) -> dict[str, list[float]]:
    """Take all four in turns; the threads' two block this loop, which has nothing else to do."""
    taken: dict[str, list[float]] = {"scope": [], "bare task": [], "wait": [], "bare lock": []}
    for at in range(_WARM_UP + _STOPS):
        stop = {
            "scope": await scope(stopper),
            "bare task": await bare_task(stopper),
            "wait": wait(stopper),
            "bare lock": bare_lock(stopper),
        }
        if at >= _WARM_UP:
            for name, seconds in stop.items():
                taken[name].append(seconds)
    return taken


def main() -> int:
    stopper = Stopper()
    gc.disable()  # a collection would fall to one of the four by chance
    taken = asyncio.run(measure(stopper))
    stopper.ask(None)
    p50 = {name: percentile(values, 50) * 1e6 for name, values in taken.items()}
    p99 = {name: percentile(values, 99) * 1e6 for name, values in taken.items()}
    labels = {
        "scope": "asyncio: token.cancel() to the scope left",
        "bare task": "  floor: call_soon_threadsafe(task.cancel)",
        "wait": "thread: token.cancel() to token.wait() returned",
        "bare lock": "  floor: lock.release() to lock.acquire() returned",
    }
    print_table(
        f"Wake-up from another thread, Python {sys.version.split()[0]}: {_STOPS:,} stops each, interleaved",
        ["", "p50, µs", "p99, µs"],
        [[label, f"{p50[name]:.1f}", f"{p99[name]:.1f}"] for name, label in labels.items()],
    )
    goals = Goals()
    for name, floor in (("scope", "bare task"), ("wait", "bare lock")):
        goals.at_most(
            f"{name} p50, against its floor (p99: {p99[name] / p99[floor]:.2f}x)", p50[name] / p50[floor], 1.5
        )
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
