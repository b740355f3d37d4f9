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
import threading

from bench.measure import Goals, percentile, print_table
from bench.stopper import Stopper
from halter.cancel import CancellationToken, Cancelled

_STOPS = 10_000
_WARM_UP = 200
_ASLEEP_AFTER = 0.0001  # seconds in which a waiter gets from asking for the stop to its system call


async def scope(stopper: Stopper) -> float:
    token = CancellationToken()
    forever = asyncio.get_running_loop().create_future()
    try:
        async with token.scope():
            stopper.ask(token.cancel)
            await forever
    except Cancelled:
        return stopper.since()
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
        seconds = stopper.since()
        task.uncancel()
        return seconds
    raise AssertionError


def wait(stopper: Stopper) -> float:
    token = CancellationToken()
    stopper.ask(token.cancel)
    token.wait()
    return stopper.since()


def bare_lock(stopper: Stopper) -> float:
    lock = threading.Lock()
    lock.acquire()
    stopper.ask(lock.release)
    lock.acquire()
    return stopper.since()


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
    stopper = Stopper(_ASLEEP_AFTER)
    gc.disable()  # a collection would fall to one of the four by chance
    taken = asyncio.run(measure(stopper))
    stopper.close()
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
