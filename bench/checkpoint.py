"""What a checkpoint costs in a workspace with many files: beside a bare `git status` in a repository of the same files.

    python bench/checkpoint.py [--files 10000] [--runs 15]

Both take turns within a round, in one run; between two rounds one file changes. The first checkpoint copies everything,
so it is measured on its own. A turn has two: before its first change, which the call waits for, and at its end, in a
thread that only the next turn's change waits for. Processor time is that of this process and of Git together: unlike
the time on the clock it does not depend on what else the machine does.

Goals with 10,000 files, at the median: a checkpoint takes under 200 ms of the processor, and under three times as long
as `git status`; both of a turn take under 200 ms of the processor.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import itertools
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench.measure import Goals, interleave, print_table
from halter.toolbox.files.checkpoints.checkpoints import Checkpoints


def make_workspace(root, files):
    for number in range(files):
        path = root / f"folder{number // 100}" / f"{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# file {number}\n" * 30)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    subprocess.run(["git", "-C", str(root), "add", "-A"], check=True)


def processor_time():
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def milliseconds(work):
    """On the clock, and of the processor."""
    start, used = time.perf_counter(), processor_time()
    work()
    return (time.perf_counter() - start) * 1000, (processor_time() - used) * 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    turns = itertools.count()
    last = [0]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "workspace"
        make_workspace(root, options.files)
        checkpoints = Checkpoints(root, folder=Path(folder) / "data", timeout=600.0)

        def checkpoint():
            last[0] = next(turns)
            state = checkpoints.before_call("session", str(last[0]), [])
            assert not state.note, state.note

        def change_and_checkpoint():
            (root / "folder0" / "0.py").write_text(str(time.perf_counter()))
            return milliseconds(checkpoint)

        def end():
            return milliseconds(lambda: checkpoints.end_turn("session", str(last[0])))

        def status():
            return milliseconds(
                lambda: subprocess.run(["git", "-C", str(root), "status", "--short"], check=True, capture_output=True)
            )

        first, _ = milliseconds(checkpoint)
        checkpoints.end_turn("session", "0")
        taken = interleave(options.runs, {"checkpoint": change_and_checkpoint, "at the end": end, "git status": status})
    clock = {name: statistics.median(value for value, _ in values) for name, values in taken.items()}
    used = {name: statistics.median(value for _, value in values) for name, values in taken.items()}
    rows = [[name, f"{clock[name]:.0f} ms", f"{min(taken[name])[0]:.0f} ms", f"{used[name]:.0f} ms"] for name in taken]
    rows.append(["first checkpoint", f"{first:.0f} ms", "", ""])
    print_table(f"{options.files:,} files, one of them changed", ["", "median", "least", "processor"], rows)
    ratio = clock["checkpoint"] / clock["git status"]
    both = used["checkpoint"] + used["at the end"]
    goals = Goals()
    goals.check(
        f"a checkpoint takes {used['checkpoint']:.0f} ms of the processor (goal: under 200)",
        is_met=used["checkpoint"] < 200,
    )
    goals.check(f"both of a turn take {both:.0f} ms of the processor (goal: under 200)", is_met=both < 200)
    goals.check(f"{ratio:.1f} times `git status` (goal: under 3)", is_met=ratio < 3)
    print(f"\nOn {os.cpu_count()} cores; load {os.getloadavg()[0]:.1f} at the end.")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
