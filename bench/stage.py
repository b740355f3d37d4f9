"""Eight tools at once that do not end by themselves, of every kind, and the floors of stopping them.

Commands are `sleep 30`; some ignore TERM. Of those, the ones of `run_process` have a grace of 100 ms and an escaped
grandchild each; the ones of `subprocess` have none, since it would not be found (see `halter.cancel.threads.unblock`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import select
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from halter import checkpoint, current_token, run_process, tool
from halter.testing import deaf_process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from bench.stopper import Stopper
    from halter.tools import Tool, ToolOutcome

TOOLS = 8
SETTLE = 0.005  # seconds in which a tool gets from saying that it is there to its system call
DEAD_WITHIN = 2.0
AT_MOST = 30.0  # for a round, and for a tool that nobody stops
_GRACE = 0.1
_SLEEP = ["sh", "-c", f"echo ready $$; exec sleep {AT_MOST:g}"]  # says its number, as deaf_process() does


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
            current_token().sleep(AT_MOST)

    @tool
    async def coroutine(self) -> None:
        """Sleep in the loop."""
        with self._on_stage():
            await asyncio.sleep(AT_MOST)

    @tool
    def deaf(self) -> None:
        """Never look at the token."""
        with self._on_stage():
            self._gate.wait(AT_MOST)

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
        for _ in range(TOOLS):
            self.processes += [os.pidfd_open(pid) for pid in self._started.get(timeout=AT_MOST)]

    def clear(self) -> None:
        """Let the deaf go, and wait until no thread is left in a tool: none is to burden the next run."""
        self._gate.set()
        for _ in range(TOOLS):
            self._ended.get(timeout=AT_MOST)


def _numbers(line: bytes) -> list[int]:
    """The processes that a command's `ready` line names."""
    return [int(word) for word in line.split()[1:]]


class Took(NamedTuple):
    """Milliseconds from the stop to control being back, and to the end of the last process."""

    back: float
    dead: float = 0.0
    alive: int = 0  # processes that were still there after DEAD_WITHIN
    stop_steps: tuple[str, ...] = ()  # how each tool was stopped


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


def stop_steps_of(outcomes: Sequence[ToolOutcome]) -> tuple[str, ...]:
    for outcome in outcomes:
        if outcome.reason != "interrupt" or outcome.started_at is None:
            message = f"this call was not stopped: {outcome}"
            raise SystemExit(message)
    return tuple(" + ".join(outcome.stop_steps) for outcome in outcomes)


async def stop_bare_tasks(stopper: Stopper) -> Took:
    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(asyncio.sleep(AT_MOST)) for _ in range(TOOLS)]

    def cancel_all() -> None:
        for task in tasks:
            task.cancel()

    is_sleeping = threading.Event()
    loop.call_soon(is_sleeping.set)  # behind the first step of each
    stopper.ask(lambda: loop.call_soon_threadsafe(cancel_all), is_sleeping.wait)
    await asyncio.wait(tasks)
    return Took((time.monotonic() - stopper.at) * 1000)


def end_bare_processes() -> Took:
    """What TERM and eight ends take by themselves."""
    processes = [subprocess.Popen(_SLEEP, stdout=subprocess.PIPE) for _ in range(TOOLS)]
    descriptors = [os.pidfd_open(each.pid) for each in processes]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    time.sleep(SETTLE)
    start = time.monotonic()
    for process in processes:
        process.terminate()
    alive = wait_dead(descriptors, start + DEAD_WITHIN)
    dead = time.monotonic()
    for process in processes:
        process.communicate()
    return Took(0.0, (dead - start) * 1000, alive)


def wait_dead(processes: list[int], end: float) -> int:
    """Wait until all have ended or it is *end*, and return how many had not; those are killed."""
    alive = 0
    for process in processes:
        if not select.select([process], [], [], max(0.0, end - time.monotonic()))[0]:
            alive += 1
            signal.pidfd_send_signal(process, signal.SIGKILL)
        os.close(process)
    return alive
