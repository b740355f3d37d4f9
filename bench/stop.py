"""How completely a stop ends what resists: deaf threads with children, escaped processes, a whole program.

Backs four figures: eight threads in a plain ``Popen.wait()`` are stopped, and control, threads and
children are back or dead within 50 ms; ``run_process`` on a command that double-forks, calls ``setsid``
and ignores TERM gives control back within 20 ms and leaves nobody alive after its grace plus a second;
a program with 50 wedged threads and 10 wedged children is gone within a second of wanting to exit.
64 such commands that are stopped together are all dead within their grace plus a second as well.
The bare cost of a process is beside them: ``sleep`` killed and waited for, a Python that just exits.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import threading
import time

from bench.measure import Goals, percentile, print_table
from halter import CancellationToken, Cancelled, run_blocking, run_process
from halter.testing import deaf_process

_ROUNDS = 40
_PROCESSES = 200
_TOGETHER = 64
_CROWDS = 3
_EXITS = 5
_GRACE = 0.1


def plain_children(threads: int = 8) -> tuple[float, float, float]:
    """Milliseconds until control is back, until the threads are, and until the children are dead."""
    started: list[int] = []
    returned: list[float] = []
    token = CancellationToken()

    def deaf() -> None:
        process = subprocess.Popen(["sleep", "30"])
        started.append(process.pid)
        process.wait()
        returned.append(time.perf_counter())

    def call() -> None:
        with contextlib.suppress(Cancelled):
            run_blocking(deaf, token=token)

    callers = [threading.Thread(target=call) for _ in range(threads)]
    for caller in callers:
        caller.start()
    _until(lambda: len(started) == threads)
    children = [os.pidfd_open(pid) for pid in started]
    start = time.perf_counter()
    token.cancel("interrupt")
    for caller in callers:
        caller.join()
    control = time.perf_counter() - start
    for child in children:
        select.select([child], [], [])
        os.close(child)
    dead = time.perf_counter() - start
    _until(lambda: len(returned) == threads)
    return control * 1000, (max(returned) - start) * 1000, dead * 1000


async def escaped_process() -> tuple[float, float]:
    """Milliseconds until control is back, and until the process and its escapee are dead."""
    token = CancellationToken()
    ready: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    running = asyncio.ensure_future(
        run_process(
            deaf_process(escape=True),
            token=token,
            grace=_GRACE,
            on_output=lambda piece: ready.set_result([os.pidfd_open(int(word)) for word in piece.split()[1:]]),
        )
    )
    processes = await ready
    await asyncio.sleep(0.001)
    start = time.perf_counter()
    token.cancel("interrupt")
    await running
    control = time.perf_counter() - start
    for process in processes:
        await asyncio.to_thread(select.select, [process], [], [])
        os.close(process)
    return control * 1000, (time.perf_counter() - start) * 1000


async def escaped_processes() -> tuple[float, float]:
    """Milliseconds until control is back from many such commands at once, and until all of them are dead."""
    token = CancellationToken()
    processes: list[int] = []
    are_ready = asyncio.Event()

    def note(piece: bytes) -> None:
        processes.extend(os.pidfd_open(int(word)) for word in piece.split()[1:])
        if len(processes) == 2 * _TOGETHER:
            are_ready.set()

    running = [
        asyncio.ensure_future(run_process(deaf_process(escape=True), token=token, grace=_GRACE, on_output=note))
        for _ in range(_TOGETHER)
    ]
    await are_ready.wait()
    start = time.perf_counter()
    token.cancel("interrupt")
    await asyncio.gather(*running)
    control = time.perf_counter() - start
    await asyncio.to_thread(_wait_for_all, processes)
    return control * 1000, (time.perf_counter() - start) * 1000


def _wait_for_all(processes: list[int]) -> None:
    for process in processes:
        select.select([process], [], [])
        os.close(process)


_WEDGED = """
import asyncio, time
from halter import ExitGuard, run_blocking_async, run_process
from halter.testing import deaf_process

def wedge():
    while True:
        time.sleep(1000)

async def main():
    ready = []
    tasks = [asyncio.create_task(run_blocking_async(wedge)) for _ in range(50)]
    tasks += [asyncio.create_task(run_process(deaf_process(escape=True), on_output=ready.append)) for _ in range(10)]
    while len(ready) < 10:
        await asyncio.sleep(0.01)
    print("ready", *(word.decode() for piece in ready for word in piece.split()[1:]), flush=True)
    await asyncio.sleep(60)

with ExitGuard():
    asyncio.run(main())
"""
_BARE = "import time; print('ready', flush=True); time.sleep(60)"


def exit_of(code: str) -> float:
    """Milliseconds from SIGTERM to the end of the program; every process that it named must be dead then."""
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert program.stdout is not None
    children = [os.pidfd_open(int(word)) for word in program.stdout.readline().split()[1:]]
    start = time.perf_counter()
    program.send_signal(signal.SIGTERM)
    program.wait()
    took = time.perf_counter() - start
    for child in children:
        assert select.select([child], [], [], 0)[0], "a child is alive after the program has ended"
        os.close(child)
    program.stdout.close()
    return took * 1000


def bare_kill() -> float:
    """Milliseconds that eight times TERM and wait take by themselves."""
    processes = [subprocess.Popen(["sleep", "30"]) for _ in range(8)]
    start = time.perf_counter()
    for process in processes:
        process.terminate()
    for process in processes:
        process.wait()
    return (time.perf_counter() - start) * 1000


def _until(condition) -> None:
    while not condition():
        time.sleep(0.0005)


async def _escapes(count: int) -> list[tuple[float, float]]:
    return [await escaped_process() for _ in range(count)]


async def _crowds(count: int) -> list[tuple[float, float]]:
    return [await escaped_processes() for _ in range(count)]


def main() -> int:
    plain = [(*plain_children(), bare_kill()) for _ in range(_ROUNDS)]
    escapes = asyncio.run(_escapes(_PROCESSES))
    crowds = asyncio.run(_crowds(_CROWDS))
    exits = [(exit_of(_WEDGED), exit_of(_BARE)) for _ in range(_EXITS)]
    figures = {
        "8 deaf threads in Popen.wait(): control back": [row[0] for row in plain],
        "8 deaf threads in Popen.wait(): threads back": [row[1] for row in plain],
        "8 deaf threads in Popen.wait(): children dead": [row[2] for row in plain],
        "  floor: TERM and wait for 8 children": [row[3] for row in plain],
        "run_process, deaf and escaped: control back": [row[0] for row in escapes],
        f"run_process, deaf and escaped: all dead (grace {_GRACE * 1000:g} ms)": [row[1] for row in escapes],
        f"{_TOGETHER} such commands together: control back": [row[0] for row in crowds],
        f"{_TOGETHER} such commands together: all dead (grace {_GRACE * 1000:g} ms)": [row[1] for row in crowds],
        "exit with 50 wedged threads, 10 wedged children": [row[0] for row in exits],
        "  floor: a Python that sleeps, and TERM": [row[1] for row in exits],
    }
    rows = [(name, f"{percentile(ms, 50):.1f}", f"{percentile(ms, 99):.1f}") for name, ms in figures.items()]
    print_table(
        f"From the stop, Python {sys.version.split()[0]}: {_ROUNDS}, {_PROCESSES}, {_CROWDS} and {_EXITS} runs",
        ["", "p50, ms", "p99, ms"],
        rows,
    )
    goals = Goals()
    worst = {name: percentile(ms, 99) for name, ms in figures.items()}
    names = list(figures)
    for name in names[:3]:
        goals.at_most(f"{name}, p99", worst[name], 50, " ms")
    goals.at_most(f"{names[4]}, p99", worst[names[4]], 20, " ms")
    goals.at_most(f"{names[5]}, p99", worst[names[5]], (_GRACE + 1) * 1000, " ms")
    goals.at_most(f"{names[7]}, p99", worst[names[7]], (_GRACE + 1) * 1000, " ms")
    goals.at_most(f"{names[8]}, p99", worst[names[8]], 1000, " ms")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
