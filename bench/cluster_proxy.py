"""TCP links that can be broken: what a partition does to the connections of a cluster.

A link that is held passes nothing on and closes nothing, as a network that loses every packet. When it goes on, what
was sent meanwhile arrives late, as TCP sends it again; or the connections are cut first, as after a long silence. The
links are a process of their own, so that a busy benchmark does not delay them:

    python -P bench/cluster_proxy.py

It reads commands, one in a line: `add NAME PORT` answers with the port on which the link listens; `hold`, `cut` and
`go` take names, and answer `ok`.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

_MOST = 65_536  # bytes in one read


class Links:
    """The links, as their user has them. Every call is answered when it is done."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def add(self, name: str, port: int) -> int:
        """Make a link to a port of this machine; gives the port on which it listens."""
        return int(self._say(f"add {name} {port}"))

    def hold(self, names: Iterable[str]) -> None:
        """Pass nothing on, from now on."""
        self._say(f"hold {' '.join(names)}")

    def cut(self, names: Iterable[str]) -> None:
        """Close all connections."""
        self._say(f"cut {' '.join(names)}")

    def go(self, names: Iterable[str]) -> None:
        """Pass on again, also what has come meanwhile."""
        self._say(f"go {' '.join(names)}")

    def _say(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()
        return self._process.stdout.readline().decode().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


class _Link:
    """One link: a port that leads to another one."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._goes = asyncio.Event()
        self._goes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server

    async def listen(self) -> int:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def hold(self) -> None:
        self._goes.clear()

    def go(self) -> None:
        self._goes.set()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        there: asyncio.StreamWriter | None = None
        try:
            await self._goes.wait()
            from_there, there = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(there)
            pumps = [
                asyncio.create_task(self._pump(reader, there)),
                asyncio.create_task(self._pump(from_there, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            pass  # nobody listens there now
        finally:
            for each in (writer, there):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_MOST):
                await self._goes.wait()
                writer.write(data)
                await writer.drain()


async def _serve() -> None:
    links: dict[str, _Link] = {}
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := (await commands.readline()).decode().split():
        command, *names = line
        answer = "ok"
        if command == "add":
            links[names[0]] = _Link(int(names[1]))
            answer = str(await links[names[0]].listen())
        else:
            for name in names:
                getattr(links[name], command)()
        print(answer, flush=True)


if __name__ == "__main__":
    asyncio.run(_serve())
