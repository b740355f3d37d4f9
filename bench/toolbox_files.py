"""How long a stop of a tool for files takes: from the token's cancel() to `Batch.run()` having returned.

    python bench/toolbox_files.py [--runs 40] [--files 20000]

The tools are in the middle of their work when the stop comes, at another moment in each round: a search over a big
tree, by a plain text, by an expression and by names; a read far behind in a huge file; a patch; a write. Nothing is to
be left: no open file, no temporary file, no process that runs.

Goal: the 99th percentile under 50 ms.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import gc
import json
import random
import shutil
import tempfile
import threading
import time
from pathlib import Path

from bench.measure import Goals, percentile, print_table
from halter import CancellationToken
from halter.cancel import abandoned
from halter.models import ToolCall
from halter.toolbox.files.files import Files
from halter.tools import collect_tools
from halter.tools.run.batch import Batch, BatchEnvironment

_GOAL = 50.0
_HUGE = 400_000_000
_PATCHED = 3_500_000


def plant(root: Path, count: int) -> None:
    """Make a big tree and a huge file."""
    for number in range(count):
        directory = root / "tree" / f"d{number % 200}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"f{number}.txt").write_text(
            f"file {number}\n" + "some hay\n" * 20 + "needle\n" * (number % 50 == 0)
        )
    block = b"a line of a huge file\n" * 50_000
    with (root / "huge").open("wb") as file:
        for _ in range(_HUGE // len(block)):
            file.write(block)
    (root / "patched").write_text("".join(f"line {number}\n" for number in range(_PATCHED // 12)))


def scenarios() -> dict[str, tuple[str, dict[str, object], float]]:
    """Name: the tool, its arguments, and within how many seconds the stop comes."""
    misses = "".join(f"line {number}x\n" for number in range(40))
    tree = {"path": "tree", "limit": 1000}
    return {
        "search, a text": ("search_files", {"pattern": "needle", **tree}, 0.2),
        "search, an expression": ("search_files", {"pattern": "ne+dle$", **tree}, 0.2),
        "search, names": ("search_files", {"pattern": "*0.txt", "kind": "name", **tree}, 0.1),
        "read, far behind": ("read_file", {"path": "huge", "start": 17_000_000}, 0.15),
        "patch, no such lines": (
            "patch",
            {"path": "patched", "changes": f"<<<<<<< SEARCH\n{misses}=======\n>>>>>>> REPLACE\n"},
            0.2,
        ),
        "write": ("write_file", {"path": "written", "content": "some text\n" * 500_000}, 0.03),
    }


async def once(files: Files, name: str, arguments: dict[str, object], delay: float) -> tuple[float | None, str]:
    """Run one call and stop it after *delay*; None if it had ended by then."""
    token = CancellationToken()
    stopped_at: list[float] = []

    def stop() -> None:
        stopped_at.append(time.perf_counter())
        token.cancel("interrupt")

    timer = threading.Timer(delay, stop)
    call = ToolCall("1", name, json.dumps(arguments))
    timer.start()
    (outcome,) = await Batch([call], BatchEnvironment(collect_tools(files.tools)), token=token).run()
    back = time.perf_counter()
    timer.cancel()
    if not stopped_at or outcome.status in ("completed", "failed"):
        return None, outcome.status
    return (back - stopped_at[0]) * 1000, outcome.status


def wait_for_the_abandoned() -> None:
    end = time.monotonic() + 30
    while len(abandoned) and time.monotonic() < end:
        time.sleep(0.005)


def measure(root: Path, runs: int) -> dict[str, tuple[list[float], dict[str, int]]]:
    files = Files(root)
    chosen = random.Random(7)
    taken: dict[str, tuple[list[float], dict[str, int]]] = {name: ([], {}) for name in scenarios()}
    for _ in range(runs):
        for name, (tool, arguments, within) in scenarios().items():
            gc.collect()
            seconds, status = asyncio.run(once(files, tool, arguments, chosen.uniform(0.002, within)))
            values, statuses = taken[name]
            statuses[status] = statuses.get(status, 0) + 1
            if seconds is not None:
                values.append(seconds)
            wait_for_the_abandoned()
    return taken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--files", type=int, default=20_000)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="halter-bench-"))
    try:
        plant(root, options.files)
        before = {each.name for each in root.iterdir()} | {"written"}
        taken = measure(root, options.runs)
        left = [each.name for each in root.iterdir() if each.name not in before]
    finally:
        shutil.rmtree(root)
    rows = []
    for name, (values, statuses) in taken.items():
        figures = (
            [f"{percentile(values, at):.1f} ms" for at in (50, 99)] + [f"{max(values):.1f} ms"] if values else ["-"] * 3
        )
        rows.append(
            [name, str(len(values)), *figures, ", ".join(f"{each} {n}" for each, n in sorted(statuses.items()))]
        )
    print_table("Control back after a stop", ["", "stopped", "median", "p99", "most", "outcomes"], rows)
    goals = Goals()
    for name, (values, _) in taken.items():
        if values:
            goals.at_most(f"{name}: p99", percentile(values, 99), _GOAL, " ms")
    goals.check(f"no temporary file is left: {left}", is_met=not left)
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
