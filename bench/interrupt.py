"""How long an interrupt takes: from `session.interrupt()` in another thread to the turn being returned.

    python bench/interrupt.py [--runs 200] [--exits 20]

Of `arun()` and of `run()`, against a `FakeProvider` in a process of its own: streams and hangs, the wait before a
retry, and eight tools at once of every kind. Every one is blocked before the clock starts. The floor stands beside
them, measured in the same run, turn about:

- of requests, a task that reads the same stream with bare aiohttp, cancelled by `call_soon_threadsafe(task.cancel)`.
  `run()` has one more thread to wake, so its own floor is the same task in a loop of another thread, whose end a
  blocked thread waits for; the ratio to both is printed. In the wait before a retry the server has nothing to see.
- of tools, eight bare tasks, cancelled; of processes, eight bare ones, sent TERM. See `bench/stage.py`; those that
  ignore TERM come every tenth round.

Requests are stopped with `MemoryStore`, and with `SQLiteStore`, where the end of the turn is on the disk before control
is back; its figures are to be compared with those of the same way without it.

Garbage is collected between rounds and not within them. Processes are looked at as soon as control is back.
At the end fresh interpreters interrupt eight deaf tools and come to their end: from the turn being returned to the
process being gone, beside one whose turn had no tools.

Goals: streams and hangs at most 2 times their floor, by the medians, and with `SQLiteStore` at most 0.3 ms more; the
99th percentile of control back under 10 ms, with processes under 20 ms; no process alive 2 s after the stop; exit under
0.5 s.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

import argparse
import asyncio
import collections
import functools
import gc
import itertools
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp

from bench.measure import Goals, percentile, print_table
from bench.sqlite import open_sqlite
from bench.stage import (
    AT_MOST,
    DEAD_WITHIN,
    FLOOR,
    KILL_FLOOR,
    SCENARIOS,
    TOOLS,
    Stage,
    Took,
    end_bare_processes,
    stop_bare_tasks,
    stop_steps_of,
    wait_dead,
)
from bench.stalled import BACK_OFF, STALLED, Ground, read_bare
from halter import Agent
from halter.models import OpenAIModel, ToolCall
from halter.testing import answer, tool_calls

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench import stalled
    from halter.session.session import Session
    from halter.session.turn import Turn
    from halter.stores import Store

_WARM_UP = 5  # the first ones import and connect
_DEAF_EVERY = 10
_P99_GOAL = 10.0  # milliseconds
_FLOOR_GOAL = 2.0
_SQLITE_GOAL = 0.3  # milliseconds beyond the memory store
_EXIT_GOAL = 500.0
_NO_TOOLS = "no tools"
_TOOL_OF = {name: scenario.tool(Stage([], 0)).name for name, scenario in SCENARIOS.items()}
_REPLIES = {
    **STALLED,
    **{
        scenario: tool_calls([ToolCall(f"call_{number}", name, "{}") for number in range(TOOLS)])
        for scenario, name in _TOOL_OF.items()
    },
    _NO_TOOLS: answer("ok"),
}
WAYS = ("arun", "run")
_WITH_SQLITE = {way: f"{way}, SQLite" for way in WAYS}
_FLOOR_OF = {"arun": "floor", "run": "floor, blocking"}


class Row(NamedTuple):
    """One scenario, taken in one way; "floor" and "floor, blocking" are ways, too."""

    scenario: str
    way: str


def open_session(ground: Ground, scenario: str, *tools: object, store: Store | None = None) -> Session:
    model = OpenAIModel(scenario, base_url=ground.server.url, api_key="none")
    return Agent(model, tools).session(store=store)


async def take_turn(session: Session, way: str) -> tuple[float, Turn]:
    """Run a turn that is to be interrupted, and tell when it was returned."""
    if way == "arun":
        turn = await session.arun("go")
        back = time.monotonic()
    else:
        back, turn = await asyncio.to_thread(lambda: (session.run("go"), time.monotonic())[::-1])
    if (turn.status, turn.reason) != ("interrupted", "interrupt"):
        msg = f"it was not interrupted: {turn!r}, {turn.error!r}"
        raise SystemExit(msg)
    return back, turn


# -- requests --------------------------------------------------------------------------------------------------------


async def stop_request(ground: Ground, scenario: str, way: str, store: Store | None = None) -> stalled.Took:
    session = open_session(ground, scenario, store=store)

    def wait_back_off() -> None:
        with session.subscribe() as listener:
            while not any(event.kind == "request.retry" for event in session.events()):
                listener.get(AT_MOST)
        time.sleep(0.001)  # from the word of it to the wait itself

    async def work() -> float:
        return (await take_turn(session, way))[0]

    took = await ground.measure(scenario, work(), session.interrupt, wait_back_off)
    session.close()
    return took


class OtherLoop:
    """A loop in a thread of its own: what a blocking call has behind it, at the least."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._session: aiohttp.ClientSession | None = None
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def floor(self, ground: Ground, scenario: str) -> stalled.Took:
        is_waiting = threading.Event()
        task: asyncio.Task[object] | None = None

        async def read() -> float:
            nonlocal task
            task = asyncio.current_task()
            if self._session is None:
                self._session = aiohttp.ClientSession()
            return await read_bare(self._session, ground.server.url, scenario, is_waiting)

        def stop() -> None:
            assert task is not None
            self.loop.call_soon_threadsafe(task.cancel)

        def block() -> float:
            asyncio.run_coroutine_threadsafe(read(), self.loop).result(AT_MOST)
            return time.monotonic()

        return await ground.measure(scenario, asyncio.to_thread(block), stop, is_waiting.wait)

    async def close(self) -> None:
        assert self._session is not None
        closing = asyncio.run_coroutine_threadsafe(self._session.close(), self.loop)
        await asyncio.wrap_future(closing)
        self.loop.call_soon_threadsafe(self.loop.stop)


# -- tools -----------------------------------------------------------------------------------------------------------


async def stop_tools(ground: Ground, name: str, way: str) -> Took:
    scenario = SCENARIOS[name]
    stage = Stage(scenario.command, scenario.grace)
    session = open_session(ground, name, scenario.tool(stage))
    ground.server.expect()
    ground.stopper.ask(session.interrupt, stage.wait_started)
    back, turn = await take_turn(session, way)
    start = ground.stopper.at
    alive = wait_dead(stage.processes, start + DEAD_WITHIN)
    dead = time.monotonic()
    stage.clear()
    wait_late(session, sum(outcome.status == "abandoned" for outcome in turn.outcomes))
    session.close()
    return Took((back - start) * 1000, (dead - start) * 1000, alive, stop_steps_of(turn.outcomes))


def wait_late(session: Session, abandoned: int) -> None:
    """Wait until the log tells of the end of every call that was left behind."""
    with session.subscribe() as listener:
        while sum(event.kind == "tool.finished_late" for event in session.events()) < abandoned:
            listener.get(AT_MOST)


# -- the exit --------------------------------------------------------------------------------------------------------

_PROGRAM = """
import asyncio, sys, threading, time
from halter import Agent, tool
from halter.models import OpenAIModel

url, scenario, way = sys.argv[1:]
started = threading.Semaphore(0)

@tool
def deaf():
    started.release()
    time.sleep(60)

session = Agent(OpenAIModel(scenario, base_url=url, api_key="none"), [deaf]).session()

def stop():
    for _ in range(8):
        started.acquire()
    time.sleep(0.005)
    session.interrupt()

if scenario != "no tools":
    threading.Thread(target=stop).start()
turn = asyncio.run(session.arun("go")) if way == "arun" else session.run("go")
print(time.monotonic(), turn.status, flush=True)
"""


def exit_after(url: str, scenario: str, way: str) -> float:
    """Milliseconds from the turn being returned to the process being gone."""
    process = subprocess.Popen([sys.executable, "-c", _PROGRAM, url, scenario, way], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    back, status = process.stdout.readline().split()
    code = process.wait(AT_MOST)
    end = time.monotonic()
    process.stdout.close()
    if code or status != ("done" if scenario == _NO_TOOLS else "interrupted"):
        msg = f"{scenario}, {way}: the turn was {status}, the exit code {code}"
        raise SystemExit(msg)
    return (end - float(back)) * 1000


# -- all of it -------------------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    requests: dict[Row, list[stalled.Took]]
    tools: dict[Row, list[Took]]
    exits: dict[Row, list[float]]


async def measure(runs: int, exits: int) -> Figures:
    figures = Figures(collections.defaultdict(list), collections.defaultdict(list), collections.defaultdict(list))
    other = OtherLoop()
    async with Ground(_REPLIES) as ground:
        with tempfile.TemporaryDirectory() as folder, open_sqlite(Path(folder) / "interrupt.db") as store:
            gc.disable()
            await take_rounds(samples_of(ground, other, store), runs, figures)
            gc.enable()
        await other.close()
        for number in range(exits):
            for way in WAYS[:: 1 if number % 2 else -1]:
                for scenario in (_NO_TOOLS, "deaf threads"):
                    took = await asyncio.to_thread(exit_after, ground.server.url, scenario, way)
                    figures.exits[Row(scenario, way)].append(took)
    return figures


def samples_of(ground: Ground, other: OtherLoop, store: Store) -> dict[Row, Callable[[], Awaitable[Any]]]:
    samples: dict[Row, Callable[[], Awaitable[Any]]] = {}
    for name in STALLED:
        samples[Row(name, "floor")] = functools.partial(ground.floor, name)
        samples[Row(name, "floor, blocking")] = functools.partial(other.floor, ground, name)
        for way in WAYS:
            samples[Row(name, way)] = functools.partial(stop_request, ground, name, way)
            samples[Row(name, _WITH_SQLITE[way])] = functools.partial(stop_request, ground, name, way, store)
    samples[Row(FLOOR, "floor")] = functools.partial(stop_bare_tasks, ground.stopper)
    samples[Row(KILL_FLOOR, "floor")] = functools.partial(asyncio.to_thread, end_bare_processes)
    for name in SCENARIOS:
        for way in WAYS:
            samples[Row(name, way)] = functools.partial(stop_tools, ground, name, way)
    return samples


async def take_rounds(samples: dict[Row, Callable[[], Awaitable[Any]]], runs: int, figures: Figures) -> None:
    """Take all in turns; each round begins with another one."""
    rows = list(samples)
    for number in range(-_WARM_UP, runs):
        gc.collect()
        for row in rows[number % len(rows) :] + rows[: number % len(rows)]:
            if row.scenario in SCENARIOS and SCENARIOS[row.scenario].is_deaf and number % _DEAF_EVERY:
                continue
            async with asyncio.timeout(2 * AT_MOST):
                took = await samples[row]()
            if number >= 0:
                (figures.requests if row.scenario in STALLED else figures.tools)[row].append(took)


def _pair(values: list[float]) -> list[str]:
    return [f"{percentile(values, 50):.2f}", f"{percentile(values, 99):.2f}"]


def print_requests(requests: dict[Row, list[stalled.Took]], goals: Goals) -> None:
    rows = []
    verdicts = []
    for scenario in STALLED:
        p50s: dict[tuple[str, str], float] = {}
        for way in ("floor", "floor, blocking", *WAYS, *_WITH_SQLITE.values()):
            took = requests[Row(scenario, way)]
            columns = {"control back": [each.back for each in took]}
            if scenario != BACK_OFF:
                columns["server sees it"] = [each.seen for each in took if each.seen is not None]
            cells = []
            for what, values in columns.items():
                p50s[what, way] = percentile(values, 50)
                own = _FLOOR_OF.get(way.removesuffix(", SQLite"), way)
                ratios = [p50s[what, way] / p50s[what, floor] for floor in ("floor", own)]
                cells += [*_pair(values), *(f"{ratio:.2f}x" for ratio in ratios)]
                if way in WAYS:
                    verdicts.append((f"{scenario}, {way}: {what}", ratios[-1], percentile(values, 99)))
            rows.append([f"{scenario}: {way}", str(len(took)), *cells, *[""] * (8 - len(cells))])
    print_table(
        f"Requests, from interrupt(), in ms; Python {sys.version.split()[0]}, interleaved",
        ["", "runs", "back p50", "p99", "to floor", "to its own", "seen p50", "p99", "to floor", "to its own"],
        rows,
    )
    for what, ratio, p99 in verdicts:
        goals.at_most(f"{what}, p99", p99, _P99_GOAL, " ms")
        if not what.startswith(BACK_OFF):
            goals.at_most(f"{what}, p50 to its floor's", ratio, _FLOOR_GOAL)
    judge_sqlite(requests, goals)
    print()


def judge_sqlite(requests: dict[Row, list[stalled.Took]], goals: Goals) -> None:
    for scenario, way in itertools.product(STALLED, WAYS):
        if scenario != BACK_OFF:
            ours, base = (
                percentile([took.back for took in requests[Row(scenario, each)]], 50)
                for each in (_WITH_SQLITE[way], way)
            )
            what = f"{scenario}, {way}: control back with SQLite, p50 beyond memory"
            goals.at_most(what, ours - base, _SQLITE_GOAL, " ms")


def print_tools(tools: dict[Row, list[Took]], goals: Goals) -> None:
    floor = percentile([took.back for took in tools[Row(FLOOR, "floor")]], 50)
    rows = []
    for row, all_took in tools.items():
        back, dead = [took.back for took in all_took], [took.dead for took in all_took]
        has_processes = row.scenario == KILL_FLOOR or bool(
            row.scenario in SCENARIOS and SCENARIOS[row.scenario].command
        )
        steps = collections.Counter(step for took in all_took for step in took.stop_steps)
        rows.append(
            [
                row.scenario if row.way == "floor" else f"{row.scenario}: {row.way}",
                str(len(all_took)),
                *(_pair(back) if row.scenario != KILL_FLOOR else ["", ""]),
                f"{percentile(back, 50) / floor:.1f}x" if row.scenario != KILL_FLOOR else "",
                *(_pair(dead) if has_processes else ["", ""]),
                ", ".join(f"{count} {step}" for step, count in steps.most_common()),
            ]
        )
    print_table(
        f"{TOOLS} tools at once, from interrupt(), in ms",
        ["", "runs", "back p50", "p99", "to floor", "dead p50", "p99", "how they were stopped"],
        sorted(rows, key=lambda row: not row[0].startswith("floor")),
    )
    for name, scenario in SCENARIOS.items():
        for way in WAYS:
            all_took = tools[Row(name, way)]
            p99 = percentile([took.back for took in all_took], 99)
            goals.at_most(f"{name}, {way}: control back, p99", p99, scenario.goal, " ms")
            if scenario.command:
                alive = sum(took.alive for took in all_took)
                text = f"{name}, {way}: {alive} processes alive after {DEAD_WITHIN:g} s, none wanted"
                goals.check(text, is_met=not alive)
    print()


def print_exits(exits: dict[Row, list[float]], goals: Goals) -> None:
    rows = [
        [f"{row.scenario}: {row.way}", str(len(ms)), *_pair(ms)]
        for row, ms in sorted(exits.items(), key=lambda item: item[0].scenario)
    ]
    print_table("From the turn being returned to the process being gone, in ms", ["", "runs", "p50", "worst"], rows)
    for way in WAYS:
        goals.at_most(
            f"exit with {TOOLS} deaf tools, {way}: worst", max(exits[Row("deaf threads", way)]), _EXIT_GOAL, " ms"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--exits", type=int, default=20)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    start = time.monotonic()
    figures = asyncio.run(measure(options.runs, options.exits))
    goals = Goals()
    print_requests(figures.requests, goals)
    print_tools(figures.tools, goals)
    print_exits(figures.exits, goals)
    print(
        f"\nIn {time.monotonic() - start:.0f} s, on {os.cpu_count()} cores; "
        f"load {load:.1f} before and {os.getloadavg()[0]:.1f} after."
    )
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
