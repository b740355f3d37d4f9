"""Lines over standard input and output, both bounded.

Reads and writes block in worker threads, so any kind of file works, and no file is switched to non-blocking mode for
the processes that share it. A client that does not read delays nothing: what is written to it is queued, and when
too much is queued, it is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from typing import TYPE_CHECKING, Final, TypeVar

from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.registration import call_in_loop
from halter.cancel.token import CancellationToken, Cancelled

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

__all__ = ["MAX_LINE", "LineStream", "LineTooLong"]

MAX_LINE: Final = 32 * 1024 * 1024  # bytes; images are sent inside lines
_MAX_QUEUED: Final = 32 * 1024 * 1024  # bytes that wait for the client to read
_HIGH: Final = 1024 * 1024  # bytes at which `drain()` waits
_PIECE: Final = 256 * 1024
_EOF: Final = "the client closed the connection"
_STDIN, _STDOUT, _STDERR = 0, 1, 2
T = TypeVar("T")


class LineTooLong(ValueError):
    """A line has more than `MAX_LINE` bytes. It was skipped."""


class LineStream:
    """A client at the other end of two descriptors.

    `token` is cancelled with reason "disconnect" when the client is gone, or does not read. Whoever wants to end the
    connection cancels it as well.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self.token = CancellationToken(name="client")
        self.has_overflowed = False  # the client did not read what was written
        self._reading = reading
        self._writing = writing
        self._queued = bytearray()
        self._under_way = 0  # bytes that are being written
        self._changed = asyncio.Event()  # something was queued, everything was written, or the client is gone
        self._giving_up = CancellationToken(name="output")
        loop = asyncio.get_running_loop()
        self.token.on_cancel(lambda: call_in_loop(loop, self._changed.set))
        self._writer = asyncio.create_task(self._write_queued())

    @classmethod
    def on_stdio(cls) -> LineStream:
        """Take standard input and output. From now on, what else is printed goes to standard error.

        Nothing else in this process, and no process that it starts, can read a line of ours or write into one.
        """
        reading, writing = os.dup(_STDIN), os.dup(_STDOUT)
        for file in (reading, writing):
            if not os.get_blocking(file):
                os.set_blocking(file, True)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, _STDIN)
        os.close(nothing)
        os.dup2(_STDERR, _STDOUT)
        return cls(reading, writing)

    async def lines(self) -> AsyncGenerator[bytes | LineTooLong, None]:
        """The lines of the client, without their ends, until it is disconnected."""
        line = bytearray()
        is_skipping = False
        try:
            while data := await _in_thread(lambda: os.read(self._reading, _PIECE), self.token):
                first, *others = data.split(b"\n")
                line += first
                for rest in others:
                    yield LineTooLong() if is_skipping else bytes(line)
                    line, is_skipping = bytearray(rest), False
                if is_skipping or len(line) > MAX_LINE:
                    line, is_skipping = bytearray(), True
            if line:
                yield bytes(line)
            self.token.cancel("disconnect", detail=_EOF)
        except OSError as error:
            self.token.cancel("disconnect", detail=f"cannot read from the client: {error.strerror}")
        except Cancelled as stop:
            if not stop.belongs_to(self.token):
                raise

    def write(self, line: bytes) -> None:
        """Queue one line, without its end. Never waits. A client that is gone gets nothing."""
        if self._giving_up.is_cancelled:
            return
        self._queued += line
        self._queued += b"\n"
        self._changed.set()
        if len(self._queued) > _MAX_QUEUED:
            self.has_overflowed = True
            self._give_up(f"the client did not read {len(self._queued):,} bytes")

    async def drain(self) -> None:
        """Wait while much is queued, until the client has read it or is disconnected."""
        while len(self._queued) + self._under_way > _HIGH and not self.token.is_cancelled:
            await self._written()

    async def flush(self, seconds: float) -> None:
        """Wait until the client has read everything, *seconds* at most. Nothing can be written afterwards."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (self._queued or self._under_way) and not self._giving_up.is_cancelled:
                    await self._written()
        self._giving_up.cancel("shutdown")
        self._changed.set()
        await asyncio.wait({self._writer})

    async def _written(self) -> None:
        """Wait until the queue has changed, or the client is given up."""
        self._changed.clear()
        await self._changed.wait()

    def _give_up(self, why: str) -> None:
        self._queued.clear()
        self._giving_up.cancel("disconnect", detail=why)
        self.token.cancel("disconnect", detail=why)
        self._changed.set()

    async def _write_queued(self) -> None:
        """Write what is queued, until the client is given up."""
        try:
            while not self._giving_up.is_cancelled:
                if not self._queued:
                    await self._written()
                    continue
                data, self._queued = bytes(self._queued), bytearray()
                self._under_way = len(data)
                await _in_thread(functools.partial(_write_all, self._writing, data), self._giving_up)
                self._under_way = 0
                self._changed.set()
        except OSError as error:
            self._give_up(f"cannot write to the client: {error.strerror}")
        except Cancelled as stop:
            if not stop.belongs_to(self._giving_up):
                raise


async def _in_thread(work: Callable[[], T], token: CancellationToken) -> T:
    """Run a read or a write in a thread, and wait for it until the token is cancelled.

    Not `run_blocking_async()`: it refuses once too many tools are stuck, and the client must be able to stop them.
    """
    async with token.scope():
        return await run_in_thread(work)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
