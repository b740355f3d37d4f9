"""``halter demo``: one stop across everything that an agent has running, with the times measured.

Seven cases run at once under one tree of tokens. After a second and a half another thread cancels the
token they have in common, and a table says how each case ended, and when. ``cases.py`` is worth reading:
each case is a few lines, and together they use most of ``halter.cancel``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

from halter.cancel import CancellationToken, Cancelled
from halter.demo.cases import CASES
from halter.demo.measurement import Clock, DemoCase, ProcessFinder, TrickleServer
from halter.demo.table import Paint, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

_RUN_SECONDS: Final = 1.5
_START_TIMEOUT: Final = 30.0
_END_TIMEOUT: Final = 10.0

_BEFORE: Final = """
An agent at work: a model streams its answer over HTTP, two tools block in threads, two commands
ignore SIGTERM, a third tool loops for ever, and three subtasks run. All of them belong to one tree of
tokens. In {seconds} s somebody presses stop, which is one call from another thread:

    turn.cancel("interrupt", detail="somebody pressed stop")
"""
_AFTER: Final = """
"Control back" is when the code that awaited it could continue: it does not wait for work that ignores
the stop. "Gone" is when the work itself had ended, as seen from outside: by the server or the kernel.
"""
_ABANDONED: Final = """
Abandoned: {titles}. Python cannot kill a thread, and Halter does not pretend to: its late
result is ignored, and it does not keep the program from exiting, which happens now.
"""


def run(process: CancellationToken) -> int:
    """Run the demo under *process*; the exit code is 0 if everything was stopped as promised."""
    return asyncio.run(_run(process.child("session").child("turn")))


async def _run(turn: CancellationToken) -> int:
    paint = Paint(sys.stdout)
    print(paint.bold("One stop, everywhere"))
    print(_BEFORE.format(seconds=_RUN_SECONDS))
    finder = ProcessFinder()
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="halter-demo-") as folder:
        async with TrickleServer() as server:
            cases = [DemoCase(title, Path(folder), server, clock) for title in CASES]
            async with asyncio.TaskGroup() as group:
                for case in cases:
                    group.create_task(_run_case(case, turn))
                await _wait_for_all([case.started for case in cases], _START_TIMEOUT)
                group.create_task(_show_progress(cases, turn))
                _press_stop_later(turn, clock)
            await _wait_for_all([case.gone for case in cases if not case.is_abandoned], _END_TIMEOUT)
    print(f"\n{paint.bold('Stopped')}: {turn.reason}, because {turn.detail}.\n")
    print_table(cases, paint)
    print(_AFTER)
    return _conclude(cases, finder, paint)


def _press_stop_later(turn: CancellationToken, clock: Clock) -> None:
    """Cancel the turn from another thread, as a key press or an HTTP request would."""

    def press() -> None:
        clock.start()
        turn.cancel("interrupt", detail="somebody pressed stop")

    timer = threading.Timer(_RUN_SECONDS, press)
    timer.daemon = True
    timer.start()


async def _run_case(case: DemoCase, turn: CancellationToken) -> None:
    """Run one case under a token of its own, and record when control was back.

    The token is made here, handed down, and never used again. ``Cancelled`` is caught here because
    this is where the token was made, and only if it is this token's.
    """
    token = turn.child(case.title)
    with token.bind():
        try:
            await CASES[case.title](case)
        except Cancelled as stop:
            if not stop.belongs_to(token):
                raise
    case.record_control_back()


async def _show_progress(cases: Sequence[DemoCase], turn: CancellationToken) -> None:
    """Show the progress of all, until the stop."""
    try:
        async with turn.child("progress").scope():
            while True:
                await asyncio.sleep(_RUN_SECONDS / 5)
                progress = ", ".join(f"{case.title} {case.progress} {case.unit}" for case in cases if case.unit)
                print(f"    at work: {progress}", flush=True)
    except Cancelled:
        return


async def _wait_for_all(events: Sequence[asyncio.Event], seconds: float) -> None:
    """Wait for all of them, at most *seconds*: the table shows which were not set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for event in events:
                await event.wait()


def _conclude(cases: Sequence[DemoCase], finder: ProcessFinder, paint: Paint) -> int:
    """Say what is left, and whether that is what was promised."""
    alive = finder.survivors()
    late = [case.title for case in cases if not case.gone.is_set() and not case.is_abandoned]
    if alive is None:
        print("Leftover processes can be checked on Linux only.")
    elif alive:
        print(paint.red(f"Still alive: {alive}. This is a bug in Halter."))
    else:
        print(paint.green("No process that was started here is still alive, nor any of their children."))
    if late:
        print(paint.red(f"Not gone after {_END_TIMEOUT:g} s: {', '.join(late)}."))
    early = [case.title for case in cases if case.back_ms is None]
    if early:
        print(paint.red(f"Ended before the stop, so this shows nothing: {', '.join(early)}."))
    abandoned = [case.title for case in cases if case.is_abandoned]
    print(_ABANDONED.format(titles=", ".join(abandoned)).strip("\n"), flush=True)
    return int(bool(alive or late or early))
