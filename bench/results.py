"""Files of results: what a benchmark measured, with the date, the machine and the commit, for the figures in the docs.

`bench/results/NAME.json` has `date`, `machine`, `commit` and `values`. A page refers to a value by a comment, and
`tests/test_figures.py` compares the two.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
from pathlib import Path

__all__ = ["RESULTS", "commit", "today", "write_results"]

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, object]:
    """What the figures depend on. Nothing here names the machine or its user."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {"cores": os.cpu_count(), "cpu": model or platform.machine(), "python": platform.python_version()}


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def today() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")


def write_results(name: str, values: dict[str, object]) -> Path:
    """Write what was measured, and return the file."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    found = {"date": today(), "machine": machine(), "commit": commit(), "values": values}
    path.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return path
