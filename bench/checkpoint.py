"""What a checkpoint costs in a workspace with many files: beside a bare `git status` in a repository of the same files.

    python bench/checkpoint.py [--files 10000] [--runs 15]

Both take turns within a round, in one run; between two rounds one file changes. The first checkpoint copies everything,
so it is measured on its own.

Goals: at the median under 200 ms with 10,000 files, and under three times `git status`.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import itertools
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


def milliseconds(work):
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    turns = itertools.count()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "workspace"
        make_workspace(root, options.files)
        checkpoints = Checkpoints(root, folder=Path(folder) / "data", timeout=600.0)

        def checkpoint():
            state = checkpoints.before_call("session", str(next(turns)), [])
            assert not state.note, state.note

        def change_and_checkpoint():
            (root / "folder0" / "0.py").write_text(str(time.perf_counter()))
            return milliseconds(checkpoint)

        def status():
            return milliseconds(
                lambda: subprocess.run(["git", "-C", str(root), "status", "--short"], check=True, capture_output=True)
            )

        first = milliseconds(checkpoint)
        checkpoints.end_turn("session", "0")
        taken = interleave(options.runs, {"checkpoint": change_and_checkpoint, "git status": status})
    middle = {name: statistics.median(values) for name, values in taken.items()}
    rows = [[name, f"{value:.0f} ms", f"{min(taken[name]):.0f} ms"] for name, value in middle.items()]
    rows.append(["first checkpoint", f"{first:.0f} ms", ""])
    print_table(f"{options.files:,} files, one of them changed", ["", "median", "least"], rows)
    ratio = middle["checkpoint"] / middle["git status"]
    goals = Goals()
    goals.check(
        f"a checkpoint takes {middle['checkpoint']:.0f} ms (goal: under 200)", is_met=middle["checkpoint"] < 200
    )
    goals.check(f"{ratio:.1f} times `git status` (goal: under 3)", is_met=ratio < 3)
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
