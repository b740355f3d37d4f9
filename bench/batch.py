"""How long a stop of eight tools takes: from the token's cancel() in another thread to `Batch.run()` having returned.

    python bench/batch.py [--runs 200]

Backs the figures for tool batches: threads that wait on their token, coroutines, threads that hear nothing, commands of
`run_process` and commands of plain `subprocess`. The floor is eight bare asyncio tasks that one `call_soon_threadsafe`
cancels, measured in the same run, turn about. Every tool is blocked before the clock starts.

Commands are `sleep 30`; every tenth round adds some that ignore TERM. Of those, the ones of `run_process` have a grace
of 100 ms and an escaped grandchild each; the ones of `subprocess` have none, since it would not be found (see
`halter.cancel.threads.unblock`). Processes are looked at as soon as control is back, so "dead" is
never less than "back". Garbage is collected between rounds and not within them.

Goals: the 99th percentile under 10 ms, with processes under 20 ms, and no process alive 2 s after the stop.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import collections
import gc
import os
import time

from bench.measure import Goals, percentile, print_table
from bench.stage import (
    AT_MOST,
    DEAD_WITHIN,
    FLOOR,
    KILL_FLOOR,
    SCENARIOS,
    SETTLE,
    TOOLS,
    Scenario,
    Stage,
    Took,
    end_bare_processes,
    stop_bare_tasks,
    stop_steps_of,
    wait_dead,
)
from bench.stopper import Stopper
from halter import CancellationToken
from halter.models import ToolCall
from halter.tools import collect_tools
from halter.tools.run.batch import Batch, BatchEnvironment

_WARM_UP = 3
_DEAF_EVERY = 10


async def stop_batch(stopper: Stopper, scenario: Scenario) -> Took:
    stage = Stage(scenario.command, scenario.grace)
    tools = collect_tools([scenario.tool(stage)])
    token = CancellationToken(name="turn")
    calls = [ToolCall(f"call_{number}", name, "{}") for number in range(TOOLS) for name in tools]
    batch = Batch(calls, BatchEnvironment(tools, listener=lambda _event: None), token=token, step=token.child("step"))
    stopper.ask(lambda: token.cancel("interrupt"), stage.wait_started)
    outcomes = await batch.run()
    back = time.monotonic()
    alive = wait_dead(stage.processes, stopper.at + DEAD_WITHIN)
    dead = time.monotonic()
    stage.clear()
    start = stopper.at
    return Took((back - start) * 1000, (dead - start) * 1000, alive, stop_steps_of(outcomes))


async def measure(runs: int) -> dict[str, list[Took]]:
    """Take all in turns; each round begins with another one."""
    stopper = Stopper(SETTLE)
    taken: dict[str, list[Took]] = {name: [] for name in (FLOOR, *SCENARIOS, KILL_FLOOR)}
    names = list(taken)
    for number in range(-_WARM_UP, runs):
        gc.collect()
        for name in names[number % len(names) :] + names[: number % len(names)]:
            scenario = SCENARIOS.get(name)
            if scenario is not None and scenario.is_deaf and number % _DEAF_EVERY:
                continue
            async with asyncio.timeout(AT_MOST):
                if scenario is not None:
                    took = await stop_batch(stopper, scenario)
                else:
                    took = await stop_bare_tasks(stopper) if name == FLOOR else end_bare_processes()
            if number >= 0:
                taken[name].append(took)
    stopper.close()
    return taken


def print_figures(taken: dict[str, list[Took]]) -> None:
    floor = percentile([took.back for took in taken[FLOOR]], 50)
    rows = []
    for name, all_took in taken.items():
        back = [took.back for took in all_took]
        dead = [took.dead for took in all_took]
        has_processes = name == KILL_FLOOR or SCENARIOS.get(name, SCENARIOS["coroutines"]).command
        steps = collections.Counter(step for took in all_took for step in took.stop_steps)
        rows.append(
            [
                name,
                str(len(all_took)),
                *((f"{percentile(back, at):.2f}" for at in (50, 99)) if name != KILL_FLOOR else ("", "")),
                f"{percentile(back, 50) / floor:.1f}x" if name != KILL_FLOOR else "",
                *((f"{percentile(dead, at):.1f}" for at in (50, 99)) if has_processes else ("", "")),
                ", ".join(f"{count} {step}" for step, count in steps.most_common()),
            ]
        )
    print_table(
        f"{TOOLS} tools at once, from the stop, in ms; Python {sys.version.split()[0]}, interleaved",
        ["", "runs", "back p50", "p99", "to floor", "dead p50", "p99", "how they were stopped"],
        rows,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    gc.disable()
    start = time.perf_counter()
    taken = asyncio.run(measure(options.runs))
    print_figures(taken)
    goals = Goals()
    for name, scenario in SCENARIOS.items():
        all_took = taken[name]
        goals.at_most(
            f"{name}: control back, p99", percentile([took.back for took in all_took], 99), scenario.goal, " ms"
        )
        if scenario.command:
            alive = sum(took.alive for took in all_took)
            goals.check(f"{name}: {alive} processes alive after {DEAD_WITHIN:g} s, none wanted", is_met=not alive)
    print(
        f"\nIn {time.perf_counter() - start:.0f} s, on {os.cpu_count()} cores; "
        f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after."
    )
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
