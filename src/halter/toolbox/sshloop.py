"""An event loop in a thread of its own, for connections that outlast the loops of those who use them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_DRAIN: Final = 0.2


class LoopThread:
    """Started by the first who needs it, ended by `close()`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    @property
    def is_alive(self) -> bool:
        """Whether anybody has needed it yet, and it goes on."""
        return self._thread is not None and self._thread.is_alive()

    def call(self, fn: Callable[[], object]) -> bool:
        """Have a function called in the loop, soon; False if that is closed."""
        with self._lock:
            if self._is_closed:
                return False
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            self._loop.call_soon_threadsafe(fn)
            return True

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Have a coroutine run in the loop; False if that is closed. Nobody waits for it, so it must not raise."""
        return self.call(lambda: self._start(work))

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.ensure_future(work())
        self._tasks.add(task)  # asyncio refers to tasks weakly
        task.add_done_callback(self._tasks.discard)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            with contextlib.suppress(RuntimeError):
                loop.run_until_complete(self._drain())
        finally:
            loop.close()

    async def _drain(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_DRAIN)

    def close(self, timeout: float) -> None:
        """End the loop and its thread, and wait for that."""
        with self._lock:
            self._is_closed = True
            loop, thread = self._loop, self._thread
            if loop is not None and thread is not None and thread.is_alive():
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
