"""What a blocking call costs on our threads, and what being able to cut it costs those who never do.

Backs three figures: a round trip of ``run_blocking`` beside the standard pools; the price of knowing
which child processes a call has started (one system call); and the price of ``cut_sockets()`` on
operations that have nothing to do with sockets, which is why that one is opt-in. No goals: the
figures say what is paid.

The round trips are taken on one core. On several, the scheduler settles the two threads on the same
core or on two, for seconds at a time, and that choice (25 or 90 µs) would be all that one sees.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import asyncio
import contextlib
import json
import os
import subprocess
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from unittest import mock

from bench.measure import best, median, print_table
from halter.cancel import CancellationToken, run_blocking, run_blocking_async
from halter.cancel.threads import blocking
from halter.cancel.threads.unblock import ThreadWaits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

_CALLS = 200
_ROUNDS = 60
_PROCESSES = 8

# Run in a process of its own, since an audit hook can not be taken out again.
_AUDITED = """
import json, sys, timeit
import colorsys
from halter.cancel import cut_sockets
if sys.argv[1] == "hook":
    cut_sockets()
statements = {
    "open() and close": ("open('/dev/null').close()", 2000),
    "import of a small module": ("del sys.modules['colorsys']; import colorsys", 200),
    "compile('1')": ("compile('1', '', 'eval')", 5000),
    "sys.audit('x')": ("sys.audit('x')", 50000),
    "calling a function": ("f()", 50000),
}
names = {"sys": sys, "f": lambda: None}
print(json.dumps({
    name: min(timeit.repeat(code, globals=names, number=n, repeat=7)) / n for name, (code, n) in statements.items()
}))
"""


class NoWaits:
    """Stands in for ThreadWaits: a call that could not be cut."""

    def can_unblock(self, _stopped_at: float) -> bool:
        return False

    def cut(self) -> None:
        pass

    def children(self) -> set[int]:
        return set()


def nothing() -> None:
    pass


def per_call(call: Callable[[], object]) -> float:
    return timeit.timeit(call, number=_CALLS) / _CALLS


def per_await(loop: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[object]]) -> float:
    async def calls() -> float:
        start = time.perf_counter()
        for _ in range(_CALLS):
            await call()
        return (time.perf_counter() - start) / _CALLS

    return loop.run_until_complete(calls())


def without_waits() -> float:
    with mock.patch.object(blocking, "ThreadWaits", NoWaits):
        return per_call(lambda: run_blocking(nothing))


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})  # the threads started from now on inherit it
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def round_trips() -> None:
    token = CancellationToken()
    with one_core(), ThreadPoolExecutor(1) as pool, asyncio.Runner() as runner:
        loop = runner.get_loop()
        took = median(
            _ROUNDS,
            {
                "run_blocking": lambda: per_call(lambda: run_blocking(nothing)),
                "run_blocking, with a token": lambda: per_call(lambda: run_blocking(nothing, token=token)),
                "run_blocking, not cuttable": without_waits,
                "ThreadPoolExecutor: submit().result()": lambda: per_call(lambda: pool.submit(nothing).result()),
                "run_blocking_async": lambda: per_await(loop, lambda: run_blocking_async(nothing)),
                "asyncio.to_thread": lambda: per_await(loop, lambda: asyncio.to_thread(nothing)),
            },
        )
    floors = {"run_blocking_async": "asyncio.to_thread"}
    rows = []
    for name, seconds in took.items():
        floor = floors.get(name, "ThreadPoolExecutor: submit().result()" if "run" in name else name)
        rows.append([name, f"{seconds * 1e6:.1f}", f"{seconds / took[floor]:.2f}x"])
    version = sys.version.split()[0]
    print_table(
        f"Round trip of an empty function, Python {version}: medians of {_ROUNDS} interleaved rounds of {_CALLS}",
        ["", "µs", "of the standard one"],
        rows,
    )
    alone = best(9, {"waits": lambda: timeit.timeit(ThreadWaits, number=5_000) / 5_000})["waits"]
    difference = took["run_blocking"] - took["run_blocking, not cuttable"]
    print(
        f"  Being cuttable: {difference * 1e6:+.1f} µs of the round trip; the bookkeeping alone: {alone * 1e6:.2f} µs"
    )
    print()


def audit_hook() -> None:
    runs: dict[str, list[dict[str, float]]] = {"bare": [], "hook": []}
    for _ in range(_PROCESSES):
        for kind, figures in runs.items():
            command = [sys.executable, "-c", _AUDITED, kind]
            figures.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))
    rows = []
    for name in runs["bare"][0]:
        bare, hook = (min(figures[name] for figures in runs[kind]) * 1e9 for kind in ("bare", "hook"))
        rows.append([name, f"{bare:,.0f}", f"{hook:,.0f}", f"{hook - bare:+,.0f}", f"{hook / bare:.2f}x"])
    print_table(
        f"The audit hook of cut_sockets() on what is not a socket: best of {_PROCESSES} interleaved processes each",
        ["", "without, ns", "with, ns", "difference", ""],
        rows,
    )


if __name__ == "__main__":
    round_trips()
    audit_hook()
