"""The page with the tables, written from the results and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from bench.peers.findings import EIGHT, findings
from bench.peers.scenarios import SCENARIOS, STREAM_TAGS
from bench.peers.verdicts import NOT_JUDGED, control_of, defects_of, duration, next_works

__all__ = ["page_of", "write_page"]

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "peers.md"
STOPS = [each for each in SCENARIOS if each.tag not in {"message", "race", "kill"}]
NONE = "-"

HEAD = """# Halter beside other agents

After this page you know what Halter and eight other agent frameworks do when a turn is stopped, and how to check each
result yourself.

![Time until control is back, for each system and scenario, and whether the stop was complete](../peers.svg)

## How it is measured

In a clone, after `scripts/setup`, `.venv/bin/python -m bench.peers` runs all systems in the same ten
[scenarios](#the-scenarios), and writes `bench/results/peers.json`, this page and the plot.

- **Each system is installed with pip** into an environment of its own, in the newest version there is.
- **Each is stopped as its own documentation says.** A short driver in `bench/peers/drivers/` does that; its docstring
  says what was chosen, and why.
- **The tools are the same functions everywhere**, written as people write them, without a thought of being stopped.
  Only the cooperative ones use what their system offers to notice a stop. Where a system notifies its tools, the tool
  with a process could be written to end that process.
- **The results are observed from outside**: the fake provider sees when a connection is closed and what the next
  request contains, the process table shows what still runs, and all of them share one clock.
- **What a system does not offer does not count against it**, nor does a result that depends on how its documentation
  is read. [The results of each system](#results-of-each-system) say which, and have the command that reproduces them.

If a driver does not do justice to a system, please open an issue.
"""
READING = """
Control is back when the call that runs the turn has returned. `> 5 s` means that it had not returned after five
seconds; the deaf tools run for 15 s. The times of the first three columns are medians of up to three runs. A dash means
that the system has no such tools.

Halter has two rows. `halter` is its blocking API, `stream_sync()`, which runs turns on an event loop of its own.
`halter-async` is `stream()`, which runs them in the event loop of the program: an async tool that blocks this loop
blocks the turn as well. If your async tools may block, call `session.use_tool_loop()`; they then run on a separate
loop, and stop as in the row of `halter`.
"""
POOLS = """
Where fewer than eight tools had started and the system runs them at once, they wait for a thread: the thread pools of
Python have by default four threads more than the machine has cores. A next turn that fails there is not judged,
because it may wait for a thread as well.
"""
GOES_ON = """
After each stop of the first table, the user sends another message. `6 of 7` means six of seven scenarios. The next turn
cannot work where control was not back. The history and the text that the user had seen are judged by the request of
that turn, if there was one; the history, by the rules of OpenAI's chat completions.

The last two columns are scenarios of their own: a message that is sent during the turn, and ten stops between the last
word and the end of the turn, of which those count that came while the turn still ran. A dash means that the system
takes no messages during a turn, or that there was no request to judge.
"""
KILLED = """
The process is killed while eight tools run a process each. Then a new process continues the stored conversation. A dash
means that storing is left to the application.
"""


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A table without the columns that have nothing in them."""
    filled = [n for n in range(len(head)) if n == 0 or any(row[n] != NONE for row in rows)]
    lines = [[cells[n] for n in filled] for cells in (head, *rows)]
    return [_row(lines[0]), "|" + "---|" * len(filled), *map(_row, lines[1:]), ""]


def _of(found: dict, key: str, tags: set[str]) -> list:
    """The values that a key has in some scenarios, over all rounds."""
    rounds = [each for tag, results in found["scenarios"].items() if tag in tags for each in results]
    return [each[key] for each in rounds if key in each]


def _slowest(values: list, late: str) -> str:
    if not values:
        return NONE
    return late if None in values else duration(max(values))


def _share(found: dict, key: str, tags: set[str]) -> str:
    """In how many of the scenarios it was always so: "6 of 7"."""
    rounds = [found["scenarios"].get(tag, ()) for tag in tags]
    told = [[next_works(each) if key == "next" else each.get(key) for each in results] for results in rounds]
    asked = [values for results in told if (values := [value for value in results if value is not None])]
    good = sum(all(values) for values in asked)
    text = f"{good} of {len(asked)}"
    return NONE if not asked else text if good == len(asked) else f"**{text}**"


def _first(found: dict, tag: str) -> dict:
    return (found["scenarios"].get(tag) or [{}])[0]


def _control(tag: str, rounds: list[dict] | None) -> str:
    if not rounds or defects_of(tag, rounds) is None:
        return NONE
    if "broken" in rounds[0]:
        return "not measured"
    control = control_of(rounds)
    return "> 5 s" if control is None else duration(control)


TAGS = {each.tag for each in STOPS}


def _left(name: str, found: dict) -> list[str]:
    return [
        name,
        _slowest(_of(found, "closed", STREAM_TAGS), "open after 2 s"),
        str(max(_of(found, "requests_after", TAGS), default=NONE)),
        str(max(_of(found, "processes", {"process"}), default=NONE)),
        _slowest(_of(found, "exit", TAGS), "> 5 s"),
    ]


def _goes_on(name: str, found: dict) -> list[str]:
    race = _first(found, "race")
    bad = max(race.get("next_failed", 0), race.get("invalid", 0), race.get("words_lost", 0))
    return [
        name,
        _share(found, "next", TAGS),
        _share(found, "valid", TAGS),
        _share(found, "words_kept", STREAM_TAGS),
        _message(name, _first(found, "message")),
        f"{bad} of {race['in_turn']}" if "tries" in race else NONE,
    ]


def _message(name: str, result: dict) -> str:
    if (name, "message") in NOT_JUDGED:
        return "not judged"
    if "broken" in result:
        return "not measured"
    if not result.get("can_send"):
        return NONE
    if not result["accepted"]:
        return "refused"
    return "**lost**" if result["lost"] else "kept"


def _killed(name: str, found: dict) -> list[str]:
    kill = _first(found, "kill")
    if not kill.get("has_store"):
        return [name, str(kill.get("processes", NONE)), NONE, NONE]
    yes = {True: "yes", False: "**no**"}
    return [name, str(kill["processes"]), yes.get(kill.get("next"), NONE), yes.get(kill.get("valid"), NONE)]


def _cost(name: str, found: dict) -> list[str]:
    cost = _first(found, "cost")
    keys = ("first_cpu", "turn", "turn_cpu", "chunk_cpu")
    missing = "not measured" if "broken" in cost or "why" in cost else NONE

    def cell(value: float | None, otherwise: str) -> str:
        return otherwise if value is None else duration(value)

    return [
        name,
        cell(found.get("import_cpu"), NONE),
        *(cell(cost.get(key), NONE if key == "first_cpu" else missing) for key in keys),
        f"{found['bytes'] / 1e6:.0f} MB",
        str(found["packages"]),
    ]


def _when(results: dict) -> str:
    systems, machine = results["values"]["systems"], results["machine"]
    dates = sorted({found.get("date", results["date"]) for found in systems.values()})
    commits = sorted({found.get("commit", results["commit"]) for found in systems.values()})
    minutes = sum(found.get("seconds", 0) for found in systems.values()) // 60
    load = max(found.get("load", 0.0) for found in systems.values())
    return (
        f"Measured on {' and '.join(dates)}, with Python {machine['python']} on {machine['cores']} cores "
        f"({machine['cpu']}), at commit {' and '.join(f'`{each}`' for each in commits)}, in {minutes} minutes. The "
        f"load of the machine was at most {load:g}. Differences of a few milliseconds mean nothing.\n"
    )


def page_of(results: dict) -> str:
    systems = results["values"]["systems"]
    measured = {name: found for name, found in systems.items() if "scenarios" in found}

    def rows(of: object) -> list[list[str]]:
        return [of(name, found) for name, found in measured.items()]

    lines = [HEAD, _when(results), "## Time until control is back", ""]
    times = rows(lambda name, found: [name, *(_control(each.tag, found["scenarios"].get(each.tag)) for each in STOPS)])
    lines += _table(["", *(each.name for each in STOPS)], times)
    lines += [READING.strip(), ""]
    if any(2 <= n < 8 for found in measured.values() for n in _of(found, "tools_started", EIGHT)):
        lines += [POOLS.strip(), ""]
    lines += ["## What keeps running", ""]
    lines.append("The slowest, or the most, of the scenarios of the first table.\n")
    head = ["", "connection to the provider closed", "requests after the stop", "processes alive 2 s after the stop"]
    lines += _table([*head, "time to exit"], rows(_left))
    lines += ["## Whether the conversation goes on", ""]
    lines += [GOES_ON.strip(), ""]
    head = ["", "next turn works", "history valid", "text kept", "message during the turn", "late stops that failed"]
    lines += _table(head, rows(_goes_on))
    lines += ["## After kill -9", ""]
    lines += [KILLED.strip(), ""]
    head = ["", "processes alive after 2 s", "next turn works", "history valid"]
    lines += _table(head, rows(_killed))
    lines += ["## What it costs", ""]
    lines.append(
        "A turn is one request that is answered at once: the median of fifty. A chunk is one of 2,000 of a streamed "
        "answer. CPU time is that of the driver's process.\n"
    )
    head = ["", "CPU of the imports", "CPU until the first answer", "a turn", "CPU of a turn", "CPU of a chunk"]
    lines += _table([*head, "installed", "packages"], rows(_cost))
    lines += ["## Results of each system", ""]
    for name, found in systems.items():
        lines += findings(name, found)
    lines += ["## The scenarios", ""]
    lines += [f"- **{each.name}** (`{each.tag}`): {each.does}" for each in SCENARIOS]
    return "\n".join(lines).rstrip() + "\n"


def write_page(path: Path) -> None:
    PAGE.write_text(page_of(json.loads(path.read_text())))
