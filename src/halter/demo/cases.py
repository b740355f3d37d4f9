"""The cases of the demo: what an agent has running when somebody presses stop.

Each runs under a token of its own, which is the ``current_token()`` here, and reports what was seen
of it to its ``DemoCase``. None of them is told about the stop by any other means than that token.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Final

from halter.cancel import current_token, run_blocking_async, run_isolated_async, run_process

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from halter.demo.measurement import DemoCase

_LONG: Final = 30  # seconds; nothing here would end by itself while you watch
_GRACE: Final = 0.4
_ABANDONED: Final = "abandoned: a thread cannot be killed"


async def stream(case: DemoCase) -> None:
    """A model's answer. The scope cancels its body with the token, and the body closes the connection."""
    case.server.on_hang_up = case.record_gone
    case.unit = "words"
    async with current_token().scope():
        reader, writer = await asyncio.open_connection("127.0.0.1", case.server.port)
        try:
            writer.write(b"GET /answer HTTP/1.1\r\nHost: demo\r\n\r\n")
            async for line in reader:
                case.progress += line.startswith(b"data: ")
                case.started.set()
        finally:
            writer.close()
            case.ending = f"closed after {case.progress} words, as the server saw it"


async def thread_in_a_command(case: DemoCase) -> None:
    """A tool that waits for a command and never looks up. What it waits for is ended, so it comes back."""
    loop = asyncio.get_running_loop()
    case.ending = _ABANDONED

    def tool() -> None:
        loop.call_soon_threadsafe(case.started.set)
        subprocess.run(["sleep", str(_LONG)], check=False)
        if current_token().is_cancelled:
            case.ending = "returned when its command was killed"
        loop.call_soon_threadsafe(case.record_gone)

    case.is_abandoned = sys.platform != "linux"  # only there can a thread's children be told from the others
    await run_blocking_async(tool)


async def thread_asleep(case: DemoCase) -> None:
    """A tool that cannot be reached at all. Control comes back; the thread is abandoned, and counted."""
    case.ending, case.is_abandoned = _ABANDONED, True
    case.started.set()
    await run_blocking_async(time.sleep, _LONG)


async def stubborn_process(case: DemoCase) -> None:
    """A command that ignores TERM. Control comes back with its output so far; it is killed after its grace."""
    script = """
        trap '' TERM
        exec 9> "$0"
        echo >&9
        while :; do echo working; sleep 0.1; done
    """

    case.unit = "lines"

    def count(piece: bytes) -> None:
        case.progress += piece.count(b"\n")

    result = await run_process(["/bin/sh", "-c", script, case.lifeline()], grace=_GRACE, on_output=count)
    lines = result.stdout.count(b"\n")
    case.ending = f"killed after {_GRACE} s of grace; {lines} lines kept"


async def runaway_process(case: DemoCase) -> None:
    """A command that leaves its parent, its group and its session, and ignores TERM. It is found and killed."""
    script = """if True:
        import os, signal, sys
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        lifeline = os.open(sys.argv[1], os.O_WRONLY)
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            os.write(lifeline, b"out")
        signal.pause()
    """
    await run_process([sys.executable, "-c", script, case.lifeline()], grace=_GRACE)
    case.ending = "found, and killed with its command"


async def spinning_tool(case: DemoCase) -> None:
    """Code that only a kill can stop runs in a process of its own, where it can be killed."""
    case.ending = "its worker process was killed"
    await run_isolated_async(spin, case.lifeline())


def spin(lifeline: str) -> None:
    os.write(os.open(lifeline, os.O_WRONLY), b"spinning")
    while True:
        pass


async def subtasks(case: DemoCase) -> None:
    """Three subtasks in a plain TaskGroup. One scope around it is enough: they end before it is left."""
    ended = 0

    async def work() -> None:
        nonlocal ended
        try:
            while True:
                await asyncio.sleep(0.05)
                case.progress += 1
        finally:
            ended += 1

    case.unit = "steps"
    case.started.set()
    try:
        async with current_token().scope(), asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(work())
    finally:
        case.ending = f"{ended} of 3 cancelled and awaited"
        case.record_gone()


CASES: Final[dict[str, Callable[[DemoCase], Awaitable[None]]]] = {
    "HTTP stream": stream,
    "thread in subprocess.run": thread_in_a_command,
    "thread in time.sleep": thread_asleep,
    "process ignoring TERM": stubborn_process,
    "double-forked process": runaway_process,
    "isolated endless loop": spinning_tool,
    "three subtasks": subtasks,
}
