"""A gateway as a program: it serves until a signal, then drains, and is gone in bounded time.

At the first SIGTERM, SIGINT or SIGHUP it takes no message any more (503, and when to try again) and begins no turn.
Turns that run have *patience* seconds to end; then they are stopped and sealed with the reason "shutdown". What was
accepted is in the store, and the next start goes on with it. A second signal leaves at once. The exit code is that of
the signal.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel import ExitGuard
from halter.cancel.token import call_in_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.gateway.app import Gateway

__all__ = ["serve"]

_log = logging.getLogger(__name__)
# Thousands of sessions are many objects that live long: to look through them after every 700 new ones took
# much of the time of a stop.
_GARBAGE: Final = (50_000, 50, 100)
_FOR_CLOSING: Final = 0.6  # of the time that leaving may take


def serve(
    make: Callable[[], Gateway], *, patience: float, leaving: float, on_start: Callable[[Gateway], object]
) -> None:
    """Serve what *make* makes, until a signal; leaves by `SystemExit`. Raises `OSError` if there is no such address."""
    with ExitGuard(patience + leaving) as guard:
        asyncio.run(_run(make, guard, patience, leaving, on_start))


async def _run(
    make: Callable[[], Gateway],
    guard: ExitGuard,
    patience: float,
    leaving: float,
    on_start: Callable[[Gateway], object],
) -> None:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()

    def on_signal(_number: int) -> bool:
        call_in_loop(loop, asked.set)
        return True

    guard.on_signal = on_signal
    gateway = make()
    await gateway.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE)
    try:
        on_start(gateway)
        await asked.wait()
        _log.info("draining")
        with guard.stage("turns to end"):
            left = await gateway.stop(patience, leaving * _FOR_CLOSING)
        _log.info("drained; turns that had to be stopped: %d", left)
    except BaseException:
        await gateway.stop(0.0, leaving * _FOR_CLOSING)
        raise
