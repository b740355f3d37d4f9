"""``halter demo``: one stop across everything that an agent has running, with the times measured.

Seven acts run at once under one tree of tokens. After a second and a half another thread cancels the
token they have in common, and a table says how each act ended, and when. ``acts.py`` is worth reading:
each act is a few lines, and together they use most of ``halter.cancel``.
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
from halter.demo.acts import ACTS
from halter.demo.backstage import Act, Clock, TrickleServer, Witness
from halter.demo.table import Paint, print_table

if TYPE_CHECKING:
    from collections.abc import Sequence

_PLAY_SECONDS: Final = 1.5
_PATIENCE: Final = 3.0

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
    """Play the demo under *process*; the exit code is 0 if everything was stopped as promised."""
    return asyncio.run(_play(process.child("session").child("turn")))


async def _play(turn: CancellationToken) -> int:
    paint = Paint(sys.stdout)
    print(paint.bold("One stop, everywhere"))
    print(_BEFORE.format(seconds=_PLAY_SECONDS))
    witness = Witness()
    clock = Clock()
    with tempfile.TemporaryDirectory(prefix="halter-demo-") as folder:
        async with TrickleServer() as server:
            acts = [Act(title, Path(folder), server, clock) for title in ACTS]
            async with asyncio.TaskGroup() as group:
                for act in acts:
                    group.create_task(_perform(act, turn))
                await _all([act.started for act in acts])
                group.create_task(_show_progress(acts, turn))
                _press_stop_later(turn, clock)
            await _all([act.gone for act in acts if not act.is_abandoned])
    print(f"\n{paint.bold('Stopped')}: {turn.reason}, because {turn.detail}.\n")
    print_table(acts, paint)
    print(_AFTER)
    return _conclude(acts, witness, paint)


def _press_stop_later(turn: CancellationToken, clock: Clock) -> None:
    """Have another thread cancel the turn, as a key press or an HTTP request would."""

    def press() -> None:
        clock.start()
        turn.cancel("interrupt", detail="somebody pressed stop")

    person = threading.Timer(_PLAY_SECONDS, press)
    person.daemon = True
    person.start()


async def _perform(act: Act, turn: CancellationToken) -> None:
    """Run one act under a token of its own, and note when control was back.

    The token is made here, handed down, and never used again. ``Cancelled`` is caught here because
    this is where the token was made, and only if it is this token's.
    """
    token = turn.child(act.title)
    with token.bind():
        try:
            await ACTS[act.title](act)
        except Cancelled as stop:
            if not stop.belongs_to(token):
                raise
    act.note_control_back()


async def _show_progress(acts: Sequence[Act], turn: CancellationToken) -> None:
    """Show that they are all at work, until they are not."""
    try:
        async with turn.child("progress").scope():
            while True:
                await asyncio.sleep(_PLAY_SECONDS / 5)
                progress = ", ".join(f"{act.title} {act.progress} {act.unit}" for act in acts if act.unit)
                print(f"    at work: {progress}", flush=True)
    except Cancelled:
        return


async def _all(events: Sequence[asyncio.Event]) -> None:
    """Wait for all of them, but not for ever: the table tells which did not come."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            for event in events:
                await event.wait()


def _conclude(acts: Sequence[Act], witness: Witness, paint: Paint) -> int:
    """Say what is left, and whether that is what was promised."""
    alive = witness.survivors()
    late = [act.title for act in acts if not act.gone.is_set() and not act.is_abandoned]
    if alive is None:
        print("Leftover processes can be checked on Linux only.")
    elif alive:
        print(paint.red(f"Still alive: {alive}. This is a bug in Halter."))
    else:
        print(paint.green("No process that was started here is still alive, nor any of their children."))
    if late:
        print(paint.red(f"Not gone after {_PATIENCE:g} s: {', '.join(late)}."))
    early = [act.title for act in acts if act.back_ms is None]
    if early:
        print(paint.red(f"Ended before the stop, so this shows nothing: {', '.join(early)}."))
    abandoned = [act.title for act in acts if act.is_abandoned]
    print(_ABANDONED.format(titles=", ".join(abandoned)).strip("\n"), flush=True)
    return int(bool(alive or late or early))
