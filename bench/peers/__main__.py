"""Measure Halter beside other agents: `python -m bench.peers`. Run it on a quiet machine.

    python -m bench.peers                          all systems, all scenarios; writes bench/results/peers.json,
                                                   docs/explanation/peers.md and docs/peers.svg
    python -m bench.peers --system halter          only this one; the stored results of the others stay
    python -m bench.peers --system halter --scenario slow     prints what was measured, and writes nothing
    python -m bench.peers --list                   the systems and scenarios

Each system has an environment of its own below `--environments` (a folder in the user's cache unless it is given).
Each scenario runs one driver (`bench/peers/drivers/`) against one fake provider in another process. A driver stops its
system in the way that the system's own documentation recommends, and says in its docstring what that is.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from bench.peers.environments import NotInstalled, import_seconds, install, installed
from bench.peers.plot import write_plot
from bench.peers.processes import Provider
from bench.peers.scenarios import COSTS, SCENARIOS, STREAM_TAGS, Bench, NotStarted, Scenario
from bench.peers.systems import SYSTEMS, System
from bench.peers.table import write_page
from bench.results import RESULTS, commit, today, write_results

STORED = RESULTS / "peers.json"
ROUNDS_UNTIL = 110.0  # seconds of one system after which it gets no more rounds: all ten take less than 30 minutes
CACHE = Path("~/.cache/halter-peers").expanduser()


def measure(system: System, scenarios: list[Scenario], folder: Path, logs: Path, rounds: int) -> dict:
    found: dict = {"stop": system.stop, "message": system.message, "store": system.store}
    try:
        python = install(system, folder)
    except NotInstalled as exc:
        print(f"{system.name}: could not be installed: {exc}", flush=True)
        return found | {"not_installed": _without_paths(str(exc))}
    found |= installed(system, python)
    print(f"{system.name}: {found['versions']}, {found['packages']} packages", flush=True)
    found["import_cpu"] = _import_seconds(system, python) if COSTS in scenarios else None
    found["scenarios"] = {}
    begun = time.monotonic()
    provider = Provider()
    try:
        for scenario in scenarios:
            found["scenarios"][scenario.tag] = [_run(Bench(system, python, provider, logs), scenario)]
            if scenario is scenarios[0] and found["scenarios"][scenario.tag][0].get("not_started"):
                # Nor would it for the others, and each would take as long.
                (result,) = found.pop("scenarios")[scenario.tag]
                return found | {"not_installed": result["broken"]}
        for scenario in [each for each in scenarios if each.tag in STREAM_TAGS] * (rounds - 1):
            taken = found["scenarios"][scenario.tag]
            # What lasts until a limit is not measured twice: it would be the same, and take long.
            if taken[-1].get("control") is not None and time.monotonic() - begun < ROUNDS_UNTIL:
                taken.append(_run(Bench(system, python, provider, logs), scenario))
    finally:
        provider.close()
    return found


def _import_seconds(system: System, python: Path) -> float | None:
    try:
        return import_seconds(system, python)
    except subprocess.SubprocessError as exc:
        print(f"  the import failed: {exc}", flush=True)
        return None


def _run(bench: Bench, scenario: Scenario) -> dict:
    start = time.monotonic()
    try:
        result = bench.run(scenario)
    except Exception as exc:  # noqa: BLE001  (a boundary: one broken driver must not end the run)
        result = {"broken": f"{type(exc).__name__}: {exc}"[:300], "not_started": isinstance(exc, NotStarted)}
    result = {key: _without_paths(value) if isinstance(value, str) else value for key, value in result.items()}
    print(f"  {scenario.name}: {json.dumps(_short(result))}  ({time.monotonic() - start:.1f} s)", flush=True)
    return result


def _without_paths(text: str) -> str:
    """Errors may name files of this machine and user; the results are published."""
    return re.sub(r"(file:)?/[\w.-]+(/[\w.@+-]+)+", "(a path)", text)


def _short(result: dict) -> dict:
    return {key: round(value, 4) if isinstance(value, float) else value for key, value in result.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = [*SCENARIOS, COSTS]
    names, tags = [each.name for each in SYSTEMS], [each.tag for each in everything]
    parser.add_argument("--system", action="append", choices=names, help="only this one; may be repeated")
    parser.add_argument("--scenario", action="append", choices=tags, help="only this one; may be repeated")
    parser.add_argument("--environments", type=Path, default=CACHE, help="where the environments are made")
    parser.add_argument("--rounds", type=int, default=3, help="of the scenarios without tools")
    parser.add_argument("--page", action="store_true", help="write the page and the plot from the stored results")
    parser.add_argument("--list", action="store_true", help="list the systems and scenarios")
    options = parser.parse_args()
    if options.list:
        for system in SYSTEMS:
            print(f"{system.name:20} stop: {system.stop}")
        for scenario in everything:
            print(f"{scenario.tag:20} {scenario.name}: {scenario.does}")
        return 0
    if options.page:
        write_page(STORED)
        write_plot(STORED)
        return 0
    systems = [each for each in SYSTEMS if not options.system or each.name in options.system]
    scenarios = [each for each in everything if not options.scenario or each.tag in options.scenario]
    if (load := os.getloadavg()[0]) > (os.cpu_count() or 1):
        print(f"The machine is busy (load {load:.1f}): times, and what has to happen within 5 s, are not reliable.")
    start = time.monotonic()
    logs = Path(tempfile.mkdtemp(prefix="halter-peers-"))
    for each in systems:
        begun = time.monotonic()
        found = measure(each, scenarios, options.environments, logs, options.rounds)
        if not options.scenario:  # at once, so that a run that is broken off keeps what it has measured
            write_results("peers", _merged(each.name, found | {"seconds": round(time.monotonic() - begun)}))
    print(f"{time.monotonic() - start:.0f} s; what the systems printed is in {logs}")
    if options.scenario:
        print("Not written: only a run of all scenarios replaces the results.")
        return 0
    write_page(STORED)
    write_plot(STORED)
    return 0


def _merged(name: str, found: dict) -> dict:
    """All results: those that are stored, with the new ones of one system."""
    # Systems may be measured at different times. The load tells how much the times of one can be trusted.
    measured = {"date": today(), "commit": commit(), "load": round(os.getloadavg()[0], 1)}
    stored = json.loads(STORED.read_text())["values"]["systems"] if STORED.exists() else {}
    systems = stored | {name: found | measured}
    return {"systems": {each.name: systems[each.name] for each in SYSTEMS if each.name in systems}}


raise SystemExit(main())
