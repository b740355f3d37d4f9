"""What a sandbox costs: the time of `true` from start to exit, without one, with Landlock alone, and with namespaces.

Where `bwrap` is installed, it is measured too, doing what the namespaces do: docs/security.md says why it is not used.

    python bench/sandbox.py [--runs 300] [--write]     --write: to bench/results/sandbox.json, for the docs

All take turns within a round, in one run. The difference of two is the median of the differences of their rounds. The
first process of a sandbox, which makes its namespaces, is measured on its own.

Goals: at the median, under 0.5 ms more with Landlock, and under 5 ms more with namespaces.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import shutil
import statistics
import subprocess
import tempfile
import time
from functools import partial

from bench.measure import Goals, interleave, print_table
from bench.results import write_results
from halter.toolbox.sandbox import sandbox as module
from halter.toolbox.sandbox.namespaces import Namespaces, NamespacesUnavailable
from halter.toolbox.sandbox.sandbox import Sandbox


def with_landlock_alone(folder):
    """A sandbox as on a system that allows no namespaces."""

    def refuse(_):
        raise NamespacesUnavailable("not measured")

    module.Namespaces = refuse
    try:
        sandbox = Sandbox(folder)
        sandbox.prepare()
    finally:
        module.Namespaces = Namespaces
    return sandbox


def with_bubblewrap(policy):
    """A way to start processes that has bubblewrap make the namespaces of a policy, anew for each process."""
    options = ["--dev-bind", "/", "/", "--unshare-user", "--unshare-ipc", "--unshare-net"]
    for path in policy.read_only:
        options += ["--ro-bind", str(path), str(path)]
    for path in policy.hidden:
        options += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]

    def popen(argv, **others):
        return subprocess.Popen(["bwrap", *options, "--", *argv], **others)

    return popen


def milliseconds(popen, folder):
    start = time.perf_counter()
    code = popen(["true"], cwd=folder, stdin=subprocess.DEVNULL).wait()
    taken = (time.perf_counter() - start) * 1000
    assert code == 0
    return taken


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    runs = options.runs
    with tempfile.TemporaryDirectory() as folder:
        landlock, full = with_landlock_alone(folder), Sandbox(folder)
        start = time.perf_counter()
        full.prepare()
        first = (time.perf_counter() - start) * 1000
        ways = {"off": subprocess.Popen, "landlock": landlock.popen, "namespaces": full.popen}
        if shutil.which("bwrap"):
            ways["bubblewrap"] = with_bubblewrap(full.policy)
        taken = interleave(runs, {name: partial(milliseconds, popen, folder) for name, popen in ways.items()})
        landlock.close()
        full.close()
    rows, more = [], {}
    off = taken["off"]
    for name, times in taken.items():
        more[name] = statistics.median(time - base for time, base in zip(times, off, strict=True))
        ratio = statistics.median(times) / statistics.median(off)
        rows.append(
            (name, f"{min(times):.2f}", f"{statistics.median(times):.2f}", f"{more[name]:+.2f}", f"{ratio:.2f}")
        )
    print_table("`true`, from start to exit", ("sandbox", "least ms", "median ms", "more ms", "ratio"), rows)
    print(f"making the namespaces, once for each session: {first:.0f} ms\n")
    if options.write:
        write_results("sandbox", {f"{name}_ms": round(value, 2) for name, value in more.items() if name != "off"})
    goals = Goals()
    goals.at_most("more with Landlock", more["landlock"], 0.5, " ms")
    goals.at_most("more with namespaces", more["namespaces"], 5, " ms")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
