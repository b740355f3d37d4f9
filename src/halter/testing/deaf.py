"""A function, a coroutine and a process that ignore every stop, for tests."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Final, Self

# Seconds. Nothing here outlives a test by more than this, even if the test fails.
_MAX_SECONDS: Final = 60.0


class DeafTool:
    """A blocking function that never checks its token; it returns when the test releases it."""

    def __init__(self, value: object = "late") -> None:
        self.started = threading.Event()
        self.returned = threading.Event()
        self.calls = 0
        self._value = value
        self._gate = threading.Event()

    def __call__(self) -> object:
        self.calls += 1
        self.started.set()
        self._gate.wait(_MAX_SECONDS)
        self.returned.set()
        return self._value

    def release(self) -> None:
        self._gate.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class DeafCoroutine:
    """A coroutine function that swallows every cancellation; it returns when the test releases it."""

    def __init__(self, value: object = "late") -> None:
        self.started = threading.Event()
        self.swallowed = 0
        self._value = value
        self._gate: asyncio.Event | None = None

    async def __call__(self) -> object:
        self._gate = asyncio.Event()
        self.started.set()
        while not self._gate.is_set():
            try:
                async with asyncio.timeout(_MAX_SECONDS):
                    await self._gate.wait()
            except asyncio.CancelledError:
                self.swallowed += 1
        return self._value

    def release(self) -> None:
        """Let it return. Call this in its event loop."""
        if self._gate is not None:
            self._gate.set()


_DEAF_PROCESS: Final = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
reader, writer = os.pipe()
if "escape" in sys.argv and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(writer, str(os.getpid()).encode())
        os.close(writer)
        time.sleep({at_most})
    os._exit(0)
os.close(writer)
escapee = os.read(reader, 100).decode()
os.write(1, f"ready {{os.getpid()}} {{escapee}}\\n".encode())  # in one piece, whatever the buffering
time.sleep({at_most})
"""


def deaf_process(*, escape: bool = False) -> list[str]:
    """The command of a process that ignores TERM, INT and HUP, and prints ``ready`` and its process id.

    With *escape* it has a grandchild that ignores them too, has left its session and has lost its parent. Then it also
    prints the grandchild's process id.
    """
    code = _DEAF_PROCESS.format(at_most=_MAX_SECONDS)
    return [sys.executable, "-c", code, *(["escape"] if escape else [])]
