"""The acts of the demo: what an agent has running when somebody presses stop.

Each runs under a token of its own, which is the ``current_token()`` here, and reports what was seen
of it to its ``Act``. None of them is told about the stop by any other means than that token.
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

    from halter.demo.backstage import Act

_LONG: Final = 30  # seconds; nothing here would end by itself while you watch
_GRACE: Final = 0.4
_ABANDONED: Final = "abandoned: a thread cannot be killed"


async def stream(act: Act) -> None:
    """A model's answer. The scope cancels its body with the token, and the body closes the connection."""
    act.server.on_hang_up = act.note_gone
    act.unit = "words"
    async with current_token().scope():
        reader, writer = await asyncio.open_connection("127.0.0.1", act.server.port)
        try:
            writer.write(b"GET /answer HTTP/1.1\r\nHost: demo\r\n\r\n")
            async for line in reader:
                act.progress += line.startswith(b"data: ")
                act.started.set()
        finally:
            writer.close()
            act.ending = f"closed after {act.progress} words, as the server saw it"


async def thread_in_a_command(act: Act) -> None:
    """A tool that waits for a command and never looks up. What it waits for is ended, so it comes back."""
    loop = asyncio.get_running_loop()
    act.ending = _ABANDONED

    def tool() -> None:
        loop.call_soon_threadsafe(act.started.set)
        subprocess.run(["sleep", str(_LONG)], check=False)
        if current_token().is_cancelled:
            act.ending = "returned when its command was killed"
        loop.call_soon_threadsafe(act.note_gone)

    act.is_abandoned = sys.platform != "linux"  # only there can a thread's children be told from the others
    await run_blocking_async(tool)


async def thread_asleep(act: Act) -> None:
    """A tool that cannot be reached at all. Control comes back; the thread is abandoned, and counted."""
    act.ending, act.is_abandoned = _ABANDONED, True
    act.started.set()
    await run_blocking_async(time.sleep, _LONG)


async def stubborn_process(act: Act) -> None:
    """A command that ignores TERM. Control comes back with its output so far; it is killed after its grace."""
    script = """
        trap '' TERM
        exec 9> "$0"
        echo >&9
        while :; do echo working; sleep 0.1; done
    """

    act.unit = "lines"

    def count(piece: bytes) -> None:
        act.progress += piece.count(b"\n")

    result = await run_process(["/bin/sh", "-c", script, act.lifeline()], grace=_GRACE, on_output=count)
    lines = result.stdout.count(b"\n")
    act.ending = f"killed after {_GRACE} s of grace; {lines} lines kept"


async def runaway_process(act: Act) -> None:
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
    await run_process([sys.executable, "-c", script, act.lifeline()], grace=_GRACE)
    act.ending = "found, and killed with its command"


async def spinning_tool(act: Act) -> None:
    """Code that only a kill can stop runs in a process of its own, where it can be killed."""
    act.ending = "its worker process was killed"
    await run_isolated_async(spin, act.lifeline())


def spin(lifeline: str) -> None:
    os.write(os.open(lifeline, os.O_WRONLY), b"spinning")
    while True:
        pass


async def sub_tasks(act: Act) -> None:
    """Three sub-tasks in a plain TaskGroup. One scope around it is enough: they end before it is left."""
    ended = 0

    async def work() -> None:
        nonlocal ended
        try:
            while True:
                await asyncio.sleep(0.05)
                act.progress += 1
        finally:
            ended += 1

    act.unit = "steps"
    act.started.set()
    try:
        async with current_token().scope(), asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(work())
    finally:
        act.ending = f"{ended} of 3 cancelled and awaited"
        act.note_gone()


ACTS: Final[dict[str, Callable[[Act], Awaitable[None]]]] = {
    "HTTP stream": stream,
    "thread in subprocess.run": thread_in_a_command,
    "thread in time.sleep": thread_asleep,
    "process ignoring TERM": stubborn_process,
    "double-forked process": runaway_process,
    "isolated endless loop": spinning_tool,
    "three sub-tasks": sub_tasks,
}
