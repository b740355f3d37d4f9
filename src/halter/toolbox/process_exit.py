"""Noticing the end of processes in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@contextlib.contextmanager
def watching(pids: Iterable[int], on_death: Callable[[], object]) -> Iterator[None]:
    """Call *on_death*, in the running loop, as soon as one of these processes has ended."""
    loop = asyncio.get_running_loop()
    watched = []
    for pid in pids:
        with contextlib.suppress(OSError):
            watched.append(os.pidfd_open(pid))

    def on_exit(descriptor: int) -> None:
        loop.remove_reader(descriptor)
        on_death()

    for descriptor in watched:
        loop.add_reader(descriptor, on_exit, descriptor)
    try:
        yield
    finally:
        for descriptor in watched:
            loop.remove_reader(descriptor)
            os.close(descriptor)
