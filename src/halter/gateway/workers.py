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

__all__ = ["READY", "WorkerArguments", "WorkerFailed", "run_workers"]

_log = logging.getLogger(__name__)
READY: Final = "ready"
_START_TIMEOUT: Final = 60.0  # seconds for a worker to start
_STABLE_AFTER: Final = 30.0  # seconds of service after which the back-off starts anew
_KILL_MARGIN: Final = 1.0  # seconds more than a worker needs to drain
_SERVER_TIMEOUT: Final = 6.0  # seconds for the NATS server to end


class WorkerFailed(HalterError):
    """A worker did not start; its own output says why."""


class WorkerArguments(NamedTuple):
    """The argument of `--worker`: the number of a worker, and the descriptors of its sockets."""

    number: int
    sockets: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> WorkerArguments:
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
    drain_timeout: float,
    exit_timeout: float,
    on_start: Callable[[str], object],
) -> None:
    """Run `halter serve ARGUMENTS` *count* times until a signal; ends by `SystemExit`.

    *cluster* has the addresses of NATS servers; if it is empty, one is started that keeps its files in *folder*.
    Raises `CannotListen`, `StoreError` or `WorkerFailed`.
    """
    sockets = bind(host, port)
    try:
        with ExitGuard(drain_timeout + exit_timeout + _KILL_MARGIN + _SERVER_TIMEOUT) as guard:
            parent = _Parent(count, arguments, sockets, drain_timeout + exit_timeout + _KILL_MARGIN)
            asyncio.run(parent.run(guard, cluster, folder, on_start))
    finally:
        for each in sockets:
            each.close()


class _Parent:
    def __init__(self, count: int, arguments: Sequence[str], sockets: list[socket], timeout: float) -> None:
        self._count = count
        self._arguments = arguments
        self._sockets = sockets
        self._timeout = timeout
        self._ending = asyncio.Event()
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._served: set[int] = set()  # workers that have served, now or earlier

    async def run(self, guard: ExitGuard, cluster: str, folder: Path, on_start: Callable[[str], object]) -> None:
        loop, stop_requested = asyncio.get_running_loop(), asyncio.Event()

        def on_signal(_number: int) -> bool:
            call_in_loop(loop, stop_requested.set)
            return True

        guard.on_signal = on_signal
        for each in self._sockets:
            each.listen(BACKLOG)
        async with contextlib.AsyncExitStack() as stack:
            ends: list[asyncio.Task[object]] = [asyncio.create_task(stop_requested.wait())]
            if not cluster:
                server = await stack.enter_async_context(OwnNATSServer(folder))
                cluster = server.url
                ends.append(asyncio.create_task(server.ended()))
            workers = [
                asyncio.create_task(self._run_worker(number, cluster, on_start)) for number in range(self._count)
            ]
            try:
                done, _ = await asyncio.wait([*ends, *workers], return_when=asyncio.FIRST_COMPLETED)
                with guard.stage("workers to end"):
                    await self._end(workers)
                for task in done:
                    task.result()
                if not stop_requested.is_set():
                    raise WorkerFailed("the NATS server has ended; see the log")
            finally:
                for task in (*ends, *workers):
                    task.cancel()

    async def _run_worker(self, number: int, cluster: str, on_start: Callable[[str], object]) -> None:
        """Run a worker, and start it again when it dies. Raises `WorkerFailed` if it cannot start at first."""
        failures = 0
        while not self._ending.is_set():
            began = time.monotonic()
            if await self._start(number, cluster) and number not in self._served:
                self._served.add(number)
                if len(self._served) == self._count:
                    address = self._sockets[0].getsockname()
                    host = f"[{address[0]}]" if ":" in address[0] else address[0]
                    on_start(f"http://{host}:{address[1]}")
            code = await self._running[number].wait()
            del self._running[number]
            if self._ending.is_set():
                return
            if number not in self._served:
                raise WorkerFailed(f"worker {number} did not start (exit code {code})")
            _log.error("worker %d has ended with code %d; starting it again", number, code)
            failures = 0 if time.monotonic() - began > _STABLE_AFTER else failures + 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UNTIL_IT_WORKS.delay(failures)):
                    await self._ending.wait()

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
            str(WorkerArguments(number, sockets)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=with_taken(),
            pass_fds=sockets,
            start_new_session=True,  # Ctrl+C goes to the parent, which signals the workers
        )
        self._running[number] = process
        if self._ending.is_set():  # set while it was being started, so nobody has signalled it
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{cluster}\n".encode())  # not an argument: others can read those
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                return (await process.stdout.readline()).decode().strip() == READY
        except TimeoutError:
            process.kill()
            return False

    async def _end(self, workers: list[asyncio.Task[None]]) -> None:
        """Drain all workers, and kill those that do not end."""
        self._ending.set()
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        _, late = await asyncio.wait(workers, timeout=self._timeout)
        for process in list(self._running.values()) if late else ():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if late:
            await asyncio.wait(late, timeout=_KILL_MARGIN)
