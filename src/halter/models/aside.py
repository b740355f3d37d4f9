"""Blocking work of the models' own (an import, a name to look up, a child to start), beside the event loop.

The threads are daemons of their own and not the loop's default executor: that one is joined when the loop ends, so a
name server which does not answer would hold up the exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["on_thread"]

_T = TypeVar("_T")


async def on_thread(work: Callable[[], _T]) -> _T:
    """Run `work` on a daemon thread of its own. A cancelled wait leaves it behind, and its result goes nowhere."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def succeed(result: _T) -> None:
        if not done.done():
            done.set_result(result)

    def fail(error: Exception) -> None:
        if not done.done():
            done.set_exception(error)

    def run_to_the_boundary() -> None:
        # The loop may have been closed in the meantime: then nobody waits any more.
        with contextlib.suppress(RuntimeError):
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - handed to whoever waits
                loop.call_soon_threadsafe(fail, error)
            else:
                loop.call_soon_threadsafe(succeed, result)

    threading.Thread(target=run_to_the_boundary, name="halter-aside", daemon=True).start()
    return await done
