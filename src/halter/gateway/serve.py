"""Runs a gateway until a signal, then drains it and exits in bounded time.

On the first SIGTERM, SIGINT or SIGHUP it refuses messages (503 with Retry-After) and starts no turn. Running turns have
*drain_timeout* seconds to end; then they are stopped with the reason "shutdown". Accepted messages are stored, and
the next start resumes them. A second signal exits at once. The exit code is that of the signal.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import TYPE_CHECKING, Final

from halter.cancel import ExitGuard
from halter.cancel.registration import call_in_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.gateway.server import Gateway

__all__ = ["serve"]

_log = logging.getLogger(__name__)
# Thousands of sessions are many long-lived objects: collecting every 700 allocations took much of the time of a stop.
_GC_THRESHOLDS: Final = (50_000, 50, 100)
# The store's writer gives up the interpreter lock several times for each commit. A busy event loop hands it back only
# after this long, 5 ms by default, and every stop waits for a commit.
_SWITCH_INTERVAL: Final = 0.0002
_CLOSE_SHARE: Final = 0.6  # of the exit timeout


def serve(
    make: Callable[[], Gateway], *, drain_timeout: float, exit_timeout: float, on_start: Callable[[Gateway], object]
) -> None:
    """Serve the gateway of *make* until a signal; ends by `SystemExit`. Raises `OSError` if it cannot listen."""
    with ExitGuard(drain_timeout + exit_timeout) as guard:
        asyncio.run(_run(make, guard, drain_timeout, exit_timeout, on_start))


async def _run(
    make: Callable[[], Gateway],
    guard: ExitGuard,
    drain_timeout: float,
    exit_timeout: float,
    on_start: Callable[[Gateway], object],
) -> None:
    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()

    def on_signal(_number: int) -> bool:
        call_in_loop(loop, stop_requested.set)
        return True

    guard.on_signal = on_signal
    gateway = make()
    await gateway.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        on_start(gateway)
        await stop_requested.wait()
        _log.info("draining")
        with guard.stage("turns to end"):
            left = await gateway.stop(drain_timeout, exit_timeout * _CLOSE_SHARE)
        _log.info("drained; stopped turns: %d", left)
    except BaseException:
        await gateway.stop(0.0, exit_timeout * _CLOSE_SHARE)
        raise
