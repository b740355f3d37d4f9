"""Serves a client on standard input and output until it closes the connection, or a signal comes; then exits.

Exiting is bounded. The exit code is 0 if the client closed the connection, 1 if it did not read what was written, and
that of the signal if one came.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from halter.cancel.registration import call_in_loop
from halter.protocols.line_stream import LineStream

if TYPE_CHECKING:
    from typing import NoReturn

    from halter.cancel import ExitGuard

__all__ = ["ServeClient", "serve_stdio"]

_log = logging.getLogger(__name__)
ServeClient: TypeAlias = Callable[[LineStream, float], Awaitable[None]]
"""Serves one client until it is disconnected, and ends within the seconds that it is given."""
_FOR_ENDING: Final = 0.6  # of the exit timeout
_FOR_FLUSHING: Final = 0.1


def serve_stdio(serve: ServeClient, guard: ExitGuard, exit_timeout: float) -> NoReturn:
    """Serve the client on standard input and output; ends by `SystemExit`."""
    has_overflowed = asyncio.run(_run(serve, guard, exit_timeout))
    sys.exit(1 if has_overflowed else 0)


async def _run(serve: ServeClient, guard: ExitGuard, exit_timeout: float) -> bool:
    loop = asyncio.get_running_loop()
    stream = LineStream.on_stdio()

    def on_signal(number: int) -> bool:
        name = signal.Signals(number).name
        call_in_loop(loop, lambda: stream.token.cancel("shutdown", detail=name))
        return True

    guard.on_signal = on_signal
    await serve(stream, exit_timeout * _FOR_ENDING)
    await stream.flush(exit_timeout * _FOR_FLUSHING)
    if stream.has_overflowed:
        _log.warning("disconnected: %s", stream.token.detail)
    return stream.has_overflowed
