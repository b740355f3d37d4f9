"""Workers that share a port and their sessions, under the load of `bench/gateway.py`.

They are processes as `halter serve --workers` starts them, with a NATS server of their own that answers when a write is
on the disk. Only the model is another one, in the worker itself: a provider over HTTP that says 20,000 words a second
would need a core for itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gateway import Server, cpu_of, stream
from halter.gateway.cluster.nats_server import OwnNATSServer
from halter.gateway.http.connections import BACKLOG, bind

if TYPE_CHECKING:
    import socket
    from types import TracebackType
    from typing import Any, Self

__all__ = ["WAYS", "Workers", "measure_one_process", "measure_workers"]

WAYS = ("requests", "one request")  # how all are stopped: each by a request of its own, or all by one
_TURNS = 10_000
_ROOT = Path(__file__).resolve().parents[1]


class Workers:
    """The workers and their NATS server, in an `async with` block."""

    def __init__(self, folder: Path, count: int) -> None:
        self._count = count
        self._nats = OwnNATSServer(folder)
        self._sockets: list[socket.socket] = []
        self._workers: list[asyncio.subprocess.Process] = []
        self.port = 0

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU so far, of all workers and of the NATS server."""
        assert self._nats._process is not None
        return {"gateway": sum(cpu_of(each.pid) for each in self._workers), "NATS": cpu_of(self._nats._process.pid)}

    async def __aenter__(self) -> Self:
        await self._nats.__aenter__()
        self._sockets = bind("127.0.0.1", 0)
        for each in self._sockets:
            each.listen(BACKLOG)
        self.port = self._sockets[0].getsockname()[1]
        descriptors = [each.fileno() for each in self._sockets]
        for _ in range(self._count):
            worker = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "bench.cluster_workers",
                *map(str, descriptors),
                cwd=_ROOT,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=descriptors,
            )
            self._workers.append(worker)
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(f"{self._nats.url}\n".encode())
            assert await worker.stdout.readline(), "the worker did not start"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGKILL)
            await worker.wait()
        for each in self._sockets:
            each.close()
        await self._nats.__aexit__(kind, error, traceback)


async def measure_workers(folder: Path, count: int, sessions: int, seconds: float) -> list[dict[str, Any]]:
    """What `bench.gateway.stream` measures with so many workers, for each of `WAYS`."""
    async with Workers(folder, count) as workers:
        return [await stream(workers, sessions, seconds, how) for how in WAYS]


async def measure_one_process(folder: Path, sessions: int, seconds: float) -> list[dict[str, Any]]:
    """The same with one process and a SQLite file."""
    server = Server(str(folder), _TURNS, "asyncio")
    try:
        return [await stream(server, sessions, seconds, how) for how in WAYS]
    finally:
        server.end()


def main() -> None:
    """A worker: serves on the sockets with these descriptors; the address of NATS comes on its standard input."""
    import resource
    import socket

    from bench.gateway import serve

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    sockets = [socket.socket(fileno=int(each)) for each in sys.argv[1:]]
    asyncio.run(serve(sys.stdin.readline().strip(), _TURNS, sockets))


if __name__ == "__main__":
    main()
