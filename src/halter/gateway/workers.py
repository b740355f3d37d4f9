"""Several gateway processes on one machine, which share a port and their sessions.

The parent opens the listening sockets and passes them on, so all workers accept from the same queue: a worker that ends
takes no waiting connection with it, which it would if each had a socket of its own (`SO_REUSEPORT`). A worker that dies
is started again. At a signal the workers drain, and the NATS server, if it is ours, ends after them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from halter._own_keys import with_taken
from halter.cancel import ExitGuard
from halter.cancel.processes import guardian
from halter.cancel.registration import call_in_loop
from halter.errors import HalterError
from halter.gateway.cluster.nats_server import OwnNATSServer
from halter.gateway.http.connections import BACKLOG, bind
from halter.models.backoff import UNTIL_IT_WORKS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from socket import socket

__all__ = ["READY", "Worker", "WorkerFailed", "run_workers"]

_log = logging.getLogger(__name__)
READY: Final = "ready"
_START: Final = 60.0  # seconds for a worker to start
_LONG: Final = 30.0  # seconds after which a failure is a new one
_KILL: Final = 1.0  # seconds more than a worker needs to drain
_SERVER: Final = 6.0  # seconds for the NATS server to end


class WorkerFailed(HalterError):
    """A worker did not start. It has said why."""


class Worker(NamedTuple):
    """What a worker is told: its number, its sockets and the servers."""

    number: int
    sockets: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Worker:
        """Read it from the command line."""
        number, _, sockets = text.partition(":")
        return cls(int(number), tuple(map(int, sockets.split(","))))

    def __str__(self) -> str:
        return f"{self.number}:{','.join(map(str, self.sockets))}"


def run_workers(  # noqa: PLR0913  (what `halter serve` was told)
    count: int,
    arguments: Sequence[str],
    *,
    host: str,
    port: int,
    cluster: str,
    folder: Path,
    patience: float,
    leaving: float,
    on_start: Callable[[str], object],
) -> None:
    """Run `halter serve ARGUMENTS` *count* times until a signal; ends by `SystemExit`.

    *cluster* has the addresses of NATS servers; if it is empty, one is started that keeps its files in *folder*.
    Raises `CannotListen`, `StoreError` or `WorkerFailed`.
    """
    sockets = bind(host, port)
    try:
        with ExitGuard(patience + leaving + _KILL + _SERVER) as guard:
            parent = _Parent(count, arguments, sockets, patience + leaving + _KILL)
            asyncio.run(parent.run(guard, cluster, folder, on_start))
    finally:
        for each in sockets:
            each.close()


class _Parent:
    def __init__(self, count: int, arguments: Sequence[str], sockets: list[socket], patience: float) -> None:
        self._count = count
        self._arguments = arguments
        self._sockets = sockets
        self._patience = patience
        self._is_ending = False
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._served: set[int] = set()  # workers that have served, now or earlier

    async def run(self, guard: ExitGuard, cluster: str, folder: Path, on_start: Callable[[str], object]) -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        def on_signal(_number: int) -> bool:
            call_in_loop(loop, asked.set)
            return True

        guard.on_signal = on_signal
        for each in self._sockets:
            each.listen(BACKLOG)
        async with contextlib.AsyncExitStack() as stack:
            ends: list[asyncio.Task[object]] = [asyncio.create_task(asked.wait())]
            if not cluster:
                server = await stack.enter_async_context(OwnNATSServer(folder))
                cluster = server.url
                ends.append(asyncio.create_task(server.ended()))
            workers = [asyncio.create_task(self._keep(number, cluster, on_start)) for number in range(self._count)]
            try:
                done, _ = await asyncio.wait([*ends, *workers], return_when=asyncio.FIRST_COMPLETED)
                with guard.stage("workers to end"):
                    await self._end(workers)
                for task in done:
                    task.result()
                if not asked.is_set():
                    raise WorkerFailed("the NATS server has ended; see the log")
            finally:
                for task in (*ends, *workers):
                    task.cancel()

    async def _keep(self, number: int, cluster: str, on_start: Callable[[str], object]) -> None:
        """Run a worker, and start it again when it dies. Raises `WorkerFailed` if it cannot start at first."""
        failures = 0
        while not self._is_ending:
            began = time.monotonic()
            if await self._start(number, cluster) and number not in self._served:
                self._served.add(number)
                if len(self._served) == self._count:
                    address = self._sockets[0].getsockname()
                    host = f"[{address[0]}]" if ":" in address[0] else address[0]
                    on_start(f"http://{host}:{address[1]}")
            code = await self._running[number].wait()
            del self._running[number]
            if self._is_ending:
                return
            if number not in self._served:
                raise WorkerFailed(f"worker {number} did not start (exit code {code})")
            _log.error("worker %d has ended with code %d; starting it again", number, code)
            failures = 0 if time.monotonic() - began > _LONG else failures + 1
            await asyncio.sleep(UNTIL_IT_WORKS.delay(failures))

    async def _start(self, number: int, cluster: str) -> bool:
        """Start a worker, and wait until it serves; False if it ends before."""
        sockets = tuple(each.fileno() for each in self._sockets)
        guardian.ensure()
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "halter",
            *self._arguments,
            "--worker",
            str(Worker(number, sockets)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=with_taken(),
            pass_fds=sockets,
            start_new_session=True,  # Ctrl+C is for the parent, which tells the workers
        )
        self._running[number] = process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{cluster}\n".encode())  # not an argument: others can read those
        try:
            async with asyncio.timeout(_START):
                return (await process.stdout.readline()).decode().strip() == READY
        except TimeoutError:
            process.kill()
            return False

    async def _end(self, workers: list[asyncio.Task[None]]) -> None:
        """Have all workers drain, and kill those that do not end."""
        self._is_ending = True
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        _, late = await asyncio.wait(workers, timeout=self._patience)
        for process in list(self._running.values()) if late else ():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if late:
            await asyncio.wait(late, timeout=_KILL)
