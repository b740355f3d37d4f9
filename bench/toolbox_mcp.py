"""How soon control is back from a tool of an MCP server, and the server has heard: bench/toolbox_mcp.py [--runs 100]

One slow tool of a real server, over stdio and over HTTP, in turns; it is stopped from another thread in the middle of
its work. The server notes when it was cancelled, in a file; "heard" is when that file is there.

Goal: control back, 99th percentile, under 50 ms; every server has heard of every stop, and has answered after the last.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import contextlib
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from bench.measure import Goals, percentile, print_table
from halter import CancellationToken
from halter.models import ToolCall
from halter.toolbox.mcp.mcp import MCP
from halter.tools import collect_tools
from halter.tools.run.batch import Batch, BatchEnvironment

_SERVER = str(Path(__file__).parents[1] / "tests" / "toolbox" / "mcp" / "mcp_server.py")
_GOAL = 50.0
_AT_MOST = 30.0


def wait_for(path: Path) -> None:
    end = time.monotonic() + _AT_MOST
    while not path.exists():
        if time.monotonic() > end:
            message = f"{path.name} never came"
            raise SystemExit(message)
        time.sleep(0.0005)


class Contender:
    def __init__(self, name: str, server: MCP, notes: Path) -> None:
        self.name = name
        self.notes = notes
        self.server = server
        self.tools = collect_tools(server.tools())
        self.back: list[float] = []
        self.heard: list[float] = []

    async def stop_once(self, number: int) -> None:
        token = CancellationToken(name="turn")
        called_at = 0.0

        def stop() -> None:
            nonlocal called_at
            wait_for(self.notes / f"{number}-begun")
            time.sleep(0.005)
            called_at = time.perf_counter()
            token.cancel("interrupt")

        thread = threading.Thread(target=stop)
        thread.start()
        outcome = await self.call("slow", f'{{"name": "{number}"}}', token)
        back = time.perf_counter()
        thread.join()
        await asyncio.to_thread(wait_for, self.notes / f"{number}-cancelled")
        heard = time.perf_counter()
        if outcome.status != "cancelled":
            message = f"it was not stopped: {outcome}"
            raise SystemExit(message)
        self.back.append((back - called_at) * 1000)
        self.heard.append((heard - called_at) * 1000)

    async def call(self, name: str, arguments: str, token: CancellationToken):
        return (await Batch([ToolCall("1", name, arguments)], BatchEnvironment(self.tools), token=token).run())[0]


async def measure(contenders: list[Contender], runs: int) -> bool:
    for number in range(runs):
        for contender in contenders:
            await contender.stop_once(number)
    answers = [await each.call("add", '{"a": 1, "b": 2}', CancellationToken()) for each in contenders]
    return all(answer.content == "3" for answer in answers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    runs = parser.parse_args().runs
    with contextlib.ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2)]
        web = subprocess.Popen([sys.executable, _SERVER, "http", str(folders[1])], stderr=subprocess.DEVNULL)
        stack.callback(web.wait)
        stack.callback(web.kill)
        wait_for(folders[1] / "port")
        port = (folders[1] / "port").read_text()
        servers = [
            stack.enter_context(MCP.stdio(sys.executable, [_SERVER, "stdio", str(folders[0])])),
            stack.enter_context(MCP.http(f"http://127.0.0.1:{port}/mcp")),
        ]
        contenders = [Contender(*each) for each in zip(("stdio", "http"), servers, folders, strict=True)]
        has_answered = asyncio.run(measure(contenders, runs))
    rows = [
        [
            each.name,
            str(runs),
            *(f"{percentile(taken, at):.2f}" for taken in (each.back, each.heard) for at in (50, 99)),
        ]
        for each in contenders
    ]
    print_table(
        f"A stop in a tool of an MCP server, in ms; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        ["", "runs", "back p50", "p99", "heard p50", "p99"],
        rows,
    )
    goals = Goals()
    for each in contenders:
        goals.at_most(f"{each.name}: control back, p99", percentile(each.back, 99), _GOAL, " ms")
    goals.check("the servers answer after all the stops", is_met=has_answered)
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
