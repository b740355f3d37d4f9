"""Which server for the gateway: server-sent events for each second of the server's CPU, in one run, as a ratio.

    python bench/servers.py [--clients 50] [--events 2000]

Each contender runs in a process of its own and sends the same events to the same number of clients, each event by a
write of its own, as a gateway does that tells of each thing when it happens. Between two of them the other streams get
their turn. Counted is the CPU time of the server's processes, so that the clients beside it do not matter. The first
request of each client is not counted: it is there to have everything loaded.

"aiohttp, to the transport" writes its chunks as the gateway's event streams do, without `StreamResponse.write()`.

Contenders that are not installed are left out: `pip install -e '.[bench]'` brings them.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import interleave, print_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_EVENT = b'id: 1234\nevent: text.delta\ndata: {"seq":1234,"time":1.5,"session":"a","data":{"text":"some words "}}\n\n'
_END = b": end\n\n"
_NEEDS = {
    "aiohttp": ["aiohttp"],
    "aiohttp, to the transport": ["aiohttp"],
    "aiohttp, uvloop": ["aiohttp", "uvloop"],
    "starlette + uvicorn": ["starlette", "uvicorn", "httptools"],
    "starlette + uvicorn, uvloop": ["starlette", "uvicorn", "httptools", "uvloop"],
    "litestar + uvicorn": ["litestar", "uvicorn", "httptools"],
    "starlette + granian": ["starlette", "granian"],
}


async def pieces(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        await asyncio.sleep(0)
        yield _EVENT
    yield _END


# -- the servers -----------------------------------------------------------------------------------------------------


def starlette_app():
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def events(request):
        return StreamingResponse(pieces(int(request.query_params["n"])), media_type="text/event-stream")

    return Starlette(routes=[Route("/events", events)])


def litestar_app():
    from litestar import Litestar, get
    from litestar.response import Stream

    async def events(n):
        return Stream(pieces(n), media_type="text/event-stream")

    events.__annotations__ = {"n": int, "return": Stream}  # it reads them when it runs, and they are local names
    return Litestar([get("/events")(events)])


async def serve_aiohttp(port: int, *, to_transport: bool) -> None:
    from aiohttp import web

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        async for piece in pieces(int(request.query["n"])):
            if to_transport:
                request.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            else:
                await response.write(piece)
        return response

    app = web.Application()
    app.router.add_get("/events", events)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


def child(name: str, port: int) -> None:
    """Be one of the servers."""
    if name.startswith("aiohttp"):
        serving = serve_aiohttp(port, to_transport="transport" in name)
        if "uvloop" in name:
            import uvloop

            uvloop.run(serving)
        else:
            asyncio.run(serving)
    elif "granian" in name:
        from granian import Granian

        Granian("bench.servers:starlette_app", port=port, interface="asgi", factory=True, log_enabled=False).serve()
    else:
        import uvicorn

        app = litestar_app() if "litestar" in name else starlette_app()
        loop = "uvloop" if "uvloop" in name else "asyncio"
        uvicorn.run(app, port=port, loop=loop, http="httptools", log_level="error", access_log=False)


# -- measuring -------------------------------------------------------------------------------------------------------


class Server:
    """A contender at work in processes of its own."""

    def __init__(self, name: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        root = Path(__file__).resolve().parents[1]
        argv = [sys.executable, "-m", "bench.servers", "--child", name, str(self.port)]
        self.process = subprocess.Popen(argv, cwd=root, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                return

    def cpu(self) -> float:
        """CPU seconds of the process, and of those that it has started."""
        total = 0
        for pid in (self.process.pid, *_children(self.process.pid)):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")

    def rate(self, clients: int, events: int) -> float:
        """Events for each second of the server's CPU."""
        asyncio.run(read_all(self.port, clients, 5))
        before = self.cpu()
        asyncio.run(read_all(self.port, clients, events))
        return clients * events / (self.cpu() - before)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def _children(pid: int) -> list[int]:
    return [
        int(each) for path in Path(f"/proc/{pid}/task").iterdir() for each in (path / "children").read_text().split()
    ]


async def read_all(port: int, clients: int, events: int) -> None:
    await asyncio.gather(*(read_one(port, events) for _ in range(clients)))


async def read_one(port: int, events: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(f"GET /events?n={events} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    tail = b""
    seen = 0
    while _END not in tail:
        piece = await reader.read(1 << 16)
        if not piece:
            msg = "the server has ended the stream too soon"
            raise SystemExit(msg)
        seen += piece.count(b"id: 1234")
        tail = (tail + piece)[-40:]
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--events", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child[0], int(options.child[1]))
        return 0
    names = [name for name, modules in _NEEDS.items() if all(find_spec(each) for each in modules)]
    servers: dict[str, Server] = {}
    try:
        for name in names:
            servers[name] = Server(name)
        taken = interleave(
            options.rounds,
            {
                name: lambda server=server: server.rate(options.clients, options.events)
                for name, server in servers.items()
            },
        )
    finally:
        for server in servers.values():
            server.end()
    rates = {name: statistics.median(values) for name, values in taken.items()}
    base = rates["aiohttp"]
    print_table(
        f"Server-sent events for each second of CPU, {options.clients} clients, Python {sys.version.split()[0]}",
        ["", "events/s", "aiohttp = 1"],
        [[name, f"{rate:,.0f}", f"{rate / base:.2f}"] for name, rate in rates.items()],
    )
    left_out = sorted(set(_NEEDS) - set(names))
    if left_out:
        print(f"  NOT RUN, as they are not installed: {'; '.join(left_out)}")
    print(f"On {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at the end.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
