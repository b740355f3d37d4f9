"""How long a stop of eight tools takes: from the token's cancel() in another thread to `Batch.run()` having returned.

    python bench/batch.py [--runs 200]

Backs the figures for tool batches: threads that wait on their token, coroutines, threads that hear nothing, commands of
`run_process` and commands of plain `subprocess`. The floor is eight bare asyncio tasks that one `call_soon_threadsafe`
cancels, measured in the same run, turn about. Every tool is blocked before the clock starts.

Commands are `sleep 30`; every tenth round adds some that ignore TERM. Of those, the ones of `run_process` have a grace
of 100 ms and an escaped grandchild each; the ones of `subprocess` have none, since it would not be found (see
`halter.cancel.cut`). Processes are looked at as soon as control is back, so "dead" is never less than "back".
Garbage is collected between rounds and not within them.

Goals: the 99th percentile under 10 ms, with processes under 20 ms, and no process alive 2 s after the stop.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import collections
import contextlib
import gc
import os
import queue
import select
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.measure import Goals, percentile, print_table
from halter import CancellationToken, checkpoint, current_token, run_process, tool
from halter.models import ToolCall
from halter.testing import deaf_process
from halter.tools import collect_tools
from halter.tools.batch import Batch, Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from halter.tools import Tool, ToolOutcome

_TOOLS = 8
_WARM_UP = 3
_DEAF_EVERY = 10
_SETTLE = 0.005  # seconds in which a tool gets from saying that it is there to its system call
_GRACE = 0.1
_DEAD_WITHIN = 2.0
_AT_MOST = 30.0  # for a round, and for a tool that nobody stops
_SLEEP = ["sh", "-c", f"echo ready $$; exec sleep {_AT_MOST:g}"]  # says its number, as deaf_process() does


class Stage:
    """What the eight tools of one run share. Each says when it is about to block, and when it has ended."""

    def __init__(self, command: list[str], grace: float) -> None:
        self._command = command
        self._grace = grace
        self._started: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._gate = threading.Event()
        self.processes: list[int] = []  # a descriptor of each

    @tool
    def cooperative(self) -> None:
        """Wait on the token."""
        checkpoint()
        with self._on_stage():
            current_token().sleep(_AT_MOST)

    @tool
    async def coroutine(self) -> None:
        """Sleep in the loop."""
        with self._on_stage():
            await asyncio.sleep(_AT_MOST)

    @tool
    def deaf(self) -> None:
        """Never look at the token."""
        with self._on_stage():
            self._gate.wait(_AT_MOST)

    @tool
    async def ours(self) -> None:
        """Run a command with run_process."""
        with self._ending():
            await run_process(
                self._command, grace=self._grace, on_output=lambda piece: self._started.put(_numbers(piece))
            )

    @tool
    def plain(self) -> None:
        """Run a command with subprocess, and wait for it."""
        with self._ending(), subprocess.Popen(self._command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            self._started.put(_numbers(process.stdout.readline()))
            process.wait()

    @contextlib.contextmanager
    def _on_stage(self) -> Iterator[None]:
        with self._ending():
            self._started.put([])
            yield

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._ended.put(None)

    def wait_started(self) -> None:
        for _ in range(_TOOLS):
            self.processes += [os.pidfd_open(pid) for pid in self._started.get(timeout=_AT_MOST)]

    def clear(self) -> None:
        """Let the deaf go, and wait until no thread is left in a tool: none is to burden the next run."""
        self._gate.set()
        for _ in range(_TOOLS):
            self._ended.get(timeout=_AT_MOST)


def _numbers(line: bytes) -> list[int]:
    """The processes that a command's `ready` line names."""
    return [int(word) for word in line.split()[1:]]


class Stopper:
    """The other thread: waits until all are there and blocked, stops them, and notes when."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[tuple[Callable[[], object], Callable[[], object]] | None] = queue.SimpleQueue()
        self.called_at = 0.0
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, wait_started: Callable[[], object], stop: Callable[[], object]) -> None:
        self._orders.put((wait_started, stop))

    def close(self) -> None:
        self._orders.put(None)

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            wait_started, stop = order
            wait_started()
            time.sleep(_SETTLE)
            self.called_at = time.perf_counter()
            stop()


class Took(NamedTuple):
    """Milliseconds from the stop to control being back, and to the end of the last process."""

    back: float
    dead: float = 0.0
    alive: int = 0  # processes that were still there after _DEAD_WITHIN
    rungs: tuple[str, ...] = ()  # how each tool was stopped


class Scenario(NamedTuple):
    """What eight tools do, and how soon control must be back."""

    tool: Callable[[Stage], Tool[..., Any]]
    goal: float  # milliseconds
    command: list[str] = []  # noqa: RUF012  (never written)
    grace: float = 1.0
    is_deaf: bool = False


SCENARIOS = {
    "cooperative threads": Scenario(lambda stage: stage.cooperative, 10),
    "coroutines": Scenario(lambda stage: stage.coroutine, 10),
    "deaf threads": Scenario(lambda stage: stage.deaf, 10),
    "run_process": Scenario(lambda stage: stage.ours, 20, _SLEEP),
    "subprocess": Scenario(lambda stage: stage.plain, 20, _SLEEP),
    "run_process, deaf and escaped": Scenario(
        lambda stage: stage.ours, 20, deaf_process(escape=True), _GRACE, is_deaf=True
    ),
    "subprocess, deaf": Scenario(lambda stage: stage.plain, 20, deaf_process(), is_deaf=True),
}
FLOOR = "floor: bare tasks, cancelled"
KILL_FLOOR = "floor: bare processes, TERM"


async def stop_batch(stopper: Stopper, scenario: Scenario) -> Took:
    stage = Stage(scenario.command, scenario.grace)
    tools = collect_tools([scenario.tool(stage)])
    token = CancellationToken(name="turn")
    calls = [ToolCall(f"call_{number}", name, "{}") for number in range(_TOOLS) for name in tools]
    batch = Batch(calls, Surroundings(tools, listener=lambda _event: None), token=token, step=token.child("step"))
    stopper.ask(stage.wait_started, lambda: token.cancel("interrupt"))
    outcomes = await batch.run()
    back = time.perf_counter()
    alive = wait_dead(stage.processes, stopper.called_at + _DEAD_WITHIN)
    dead = time.perf_counter()
    stage.clear()
    start = stopper.called_at
    return Took((back - start) * 1000, (dead - start) * 1000, alive, _rungs(outcomes))


def _rungs(outcomes: list[ToolOutcome]) -> tuple[str, ...]:
    for outcome in outcomes:
        if outcome.reason != "interrupt" or outcome.started_at is None:
            message = f"this call was not stopped: {outcome}"
            raise SystemExit(message)
    return tuple(" + ".join(outcome.rungs) for outcome in outcomes)


async def stop_bare_tasks(stopper: Stopper) -> Took:
    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(asyncio.sleep(_AT_MOST)) for _ in range(_TOOLS)]

    def cancel_all() -> None:
        for task in tasks:
            task.cancel()

    is_sleeping = threading.Event()
    loop.call_soon(is_sleeping.set)  # behind the first step of each
    stopper.ask(is_sleeping.wait, lambda: loop.call_soon_threadsafe(cancel_all))
    await asyncio.wait(tasks)
    return Took((time.perf_counter() - stopper.called_at) * 1000)


def end_bare_processes() -> Took:
    """What TERM and eight ends take by themselves."""
    processes = [subprocess.Popen(_SLEEP, stdout=subprocess.PIPE) for _ in range(_TOOLS)]
    descriptors = [os.pidfd_open(each.pid) for each in processes]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    time.sleep(_SETTLE)
    start = time.perf_counter()
    for process in processes:
        process.terminate()
    alive = wait_dead(descriptors, start + _DEAD_WITHIN)
    dead = time.perf_counter()
    for process in processes:
        process.communicate()
    return Took(0.0, (dead - start) * 1000, alive)


def wait_dead(processes: list[int], end: float) -> int:
    """Wait until all have ended or it is *end*, and return how many had not; those are killed."""
    alive = 0
    for process in processes:
        if not select.select([process], [], [], max(0.0, end - time.perf_counter()))[0]:
            alive += 1
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)
    return alive


async def measure(runs: int) -> dict[str, list[Took]]:
    """Take all in turns; each round begins with another one."""
    stopper = Stopper()
    taken: dict[str, list[Took]] = {name: [] for name in (FLOOR, *SCENARIOS, KILL_FLOOR)}
    names = list(taken)
    for number in range(-_WARM_UP, runs):
        gc.collect()
        for name in names[number % len(names) :] + names[: number % len(names)]:
            scenario = SCENARIOS.get(name)
            if scenario is not None and scenario.is_deaf and number % _DEAF_EVERY:
                continue
            async with asyncio.timeout(_AT_MOST):
                if scenario is not None:
                    took = await stop_batch(stopper, scenario)
                else:
                    took = await stop_bare_tasks(stopper) if name == FLOOR else end_bare_processes()
            if number >= 0:
                taken[name].append(took)
    stopper.close()
    return taken


def print_figures(taken: dict[str, list[Took]]) -> None:
    floor = percentile([took.back for took in taken[FLOOR]], 50)
    rows = []
    for name, all_took in taken.items():
        back = [took.back for took in all_took]
        dead = [took.dead for took in all_took]
        has_processes = name == KILL_FLOOR or SCENARIOS.get(name, SCENARIOS["coroutines"]).command
        rungs = collections.Counter(rung for took in all_took for rung in took.rungs)
        rows.append(
            [
                name,
                str(len(all_took)),
                *((f"{percentile(back, at):.2f}" for at in (50, 99)) if name != KILL_FLOOR else ("", "")),
                f"{percentile(back, 50) / floor:.1f}x" if name != KILL_FLOOR else "",
                *((f"{percentile(dead, at):.1f}" for at in (50, 99)) if has_processes else ("", "")),
                ", ".join(f"{count} {rung}" for rung, count in rungs.most_common()),
            ]
        )
    print_table(
        f"{_TOOLS} tools at once, from the stop, in ms; Python {sys.version.split()[0]}, interleaved",
        ["", "runs", "back p50", "p99", "to floor", "dead p50", "p99", "how they were stopped"],
        rows,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    gc.disable()
    start = time.perf_counter()
    taken = asyncio.run(measure(options.runs))
    print_figures(taken)
    goals = Goals()
    for name, scenario in SCENARIOS.items():
        all_took = taken[name]
        goals.at_most(
            f"{name}: control back, p99", percentile([took.back for took in all_took], 99), scenario.goal, " ms"
        )
        if scenario.command:
            alive = sum(took.alive for took in all_took)
            goals.check(f"{name}: {alive} processes alive after {_DEAD_WITHIN:g} s, none wanted", is_met=not alive)
    print(
        f"\nIn {time.perf_counter() - start:.0f} s, on {os.cpu_count()} cores; "
        f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after."
    )
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
