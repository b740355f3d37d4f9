"""How soon control is back from the browser, and how soon it is of use again: bench/toolbox_browser.py [--runs 30]

Three things to be stopped in, in turns: a page that does not answer, a page that never ends, a page whose script never
ends. "Back" is from the stop to the outcome; "usable" is from the stop to the end of the next call, which opens a page.

Goal: control back, 99th percentile, under 250 ms; nothing of the browser's alive after it was closed.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import json
import os
import threading
import time

from bench.measure import Goals, percentile, print_table
from halter import CancellationToken
from halter.models import ToolCall
from halter.toolbox.browser.browser import Browser
from halter.tools import collect_tools
from halter.tools.resources import SessionResources
from halter.tools.run.batch import Batch, BatchEnvironment
from tests.support.web_site import WEDGE, Site

_GOAL = 250.0
_AT_MOST = 30.0


class Bench:
    def __init__(self, site: Site) -> None:
        self.site = site
        self.browser = Browser(allow_private=[site.host])
        self.tools = collect_tools(self.browser.tools)
        self.resources = SessionResources()
        self.back: dict[str, list[float]] = {}
        self.usable: dict[str, list[float]] = {}

    async def call(self, name: str, token: CancellationToken | None = None, **arguments):
        around = BatchEnvironment(self.tools, resources=self.resources)
        calls = [ToolCall("1", f"browser_{name}", json.dumps(arguments))]
        return (await Batch(calls, around, token=CancellationToken() if token is None else token).run())[0]

    async def home(self) -> None:
        outcome = await self.call("navigate", url=self.site.url)
        if outcome.status != "completed":
            message = f"the browser is of no use any more: {outcome}"
            raise SystemExit(message)

    def wait_seen(self, path: str) -> None:
        end = time.monotonic() + _AT_MOST
        while path not in self.site.seen:
            if time.monotonic() > end:
                message = f"{path} was never asked for"
                raise SystemExit(message)
            time.sleep(0.0005)

    async def stop_in(self, what: str) -> None:
        await self.home()
        self.site.seen.clear()
        if what == "/wedged":
            await self.call("console", expression=WEDGE)
            name, arguments = "snapshot", {}
        else:
            name, arguments = "navigate", {"url": f"{self.site.url}{what}"}
        token = CancellationToken(name="turn")
        called_at = 0.0

        def stop() -> None:
            nonlocal called_at
            self.wait_seen(what)
            time.sleep(0.05)  # in which the browser gets the answer, if there is one
            called_at = time.perf_counter()
            token.cancel("interrupt")

        thread = threading.Thread(target=stop)
        thread.start()
        outcome = await self.call(name, token, **arguments)
        back = time.perf_counter()
        thread.join()
        if outcome.reason != "interrupt":
            message = f"it was not stopped: {outcome}"
            raise SystemExit(message)
        await self.home()
        self.back.setdefault(what, []).append((back - called_at) * 1000)
        self.usable.setdefault(what, []).append((time.perf_counter() - called_at) * 1000)


async def measure(bench: Bench, runs: int) -> None:
    await bench.home()
    for _ in range(runs):
        for what in ("/hang", "/endless", "/wedged"):
            await bench.stop_in(what)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    runs = parser.parse_args().runs
    site = Site()
    bench = Bench(site)
    try:
        asyncio.run(measure(bench, runs))
        life = bench.resources.keep(bench.browser._open)._run
        started = time.perf_counter()
    finally:
        bench.resources.close()
        site.close()
    closed = (time.perf_counter() - started) * 1000
    names = {"/hang": "no answer", "/endless": "never ends", "/wedged": "endless script"}
    rows = [
        [
            name,
            str(runs),
            *(f"{percentile(taken[what], at):.1f}" for taken in (bench.back, bench.usable) for at in (50, 99)),
        ]
        for what, name in names.items()
    ]
    print_table(
        f"A stop in the browser, in ms; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        ["", "runs", "back p50", "p99", "usable p50", "p99"],
        rows,
    )
    goals = Goals()
    for what, name in names.items():
        goals.at_most(f"{name}: control back, p99", percentile(bench.back[what], 99), _GOAL, " ms")
    alive = len(life._family.members())
    goals.check(f"{alive} processes alive after closing, which took {closed:.0f} ms; none wanted", is_met=not alive)
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
