"""The page with the tables, written from the results and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path

from bench.peers.scenarios import SCENARIOS
from bench.peers.verdicts import control_of, defects_of, milliseconds

__all__ = ["page_of", "write_page"]

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "peers.md"
EIGHT = {"deaf", "cooperative", "process"}
STOPS = [each for each in SCENARIOS if each.tag not in {"message", "race", "kill"}]

HEAD = """# Halter beside other agents

After this page you know what happens in Halter and in other agents when somebody stops a turn, and how to see it for
yourself.

![Time from a stop to control, and whether anything was left behind](../peers.svg)

`python -m bench.peers` writes `bench/results/peers.json`, and from that file this page and the plot. Each
system is installed with pip into an environment of its own. A small driver (`bench/peers/drivers/`) runs it against one
fake provider in another process, and stops it as the system's own documentation recommends; the driver's docstring says
what that is. The tools are the same functions everywhere, except for those that cooperate: they use what the system
gives them to notice a stop. What happened is judged from outside: by the provider, which sees when connections close
and what the next request contains; by the table of processes; and by the clock.
"""
READING = """
Control is back when the call that runs the turn has returned. "> 5 s" means that it had not after five seconds; the
deaf tools run for 15 s. A dash means that the system has no such thing. Systems that run tools in the thread pool of
asyncio start no more of the eight at once than there are cores, and four.

Halter is here twice. `halter` is its blocking API, `stream_sync()`, which runs turns on an event loop of Halter's own.
`halter-async` is `stream()`, which runs them in the loop of the program: an async tool that blocks this loop blocks
Halter, too.
"""


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_row(head), "|" + "---|" * len(head), *map(_row, rows), ""]


def _seconds(value: float | None, *, cap: str = "> 5 s") -> str:
    return cap if value is None else milliseconds(value)


def _cell(tag: str, rounds: list[dict] | None) -> str:
    if not rounds or defects_of(tag, rounds) is None:
        return "-"
    return "broken" if "broken" in rounds[0] else _seconds(control_of(rounds))


def _worst(found: dict, key: str, tags: list[str]) -> object:
    """The worst value of a key over some scenarios: None beats numbers, False beats True; absent if there is none."""
    values = [each[key] for tag in tags for each in found["scenarios"].get(tag, ()) if key in each]
    if not values:
        return "-"
    if None in values:
        return None
    return all(values) if all(isinstance(each, bool) for each in values) else max(values)


def _yes(value: object) -> str:
    return {True: "yes", False: "**no**", None: "-"}.get(value, "-") if not isinstance(value, str) else value


def _measured(systems: dict) -> dict:
    return {name: found for name, found in systems.items() if "scenarios" in found}


def _left_behind(name: str, found: dict) -> list[str]:
    tags = [each.tag for each in STOPS]
    streams = ["slow", "silent", "hang"]
    closed, exits = _worst(found, "closed", streams), _worst(found, "exit", tags)
    message = (found["scenarios"].get("message") or [{}])[0]
    kill = (found["scenarios"].get("kill") or [{}])[0]
    race = (found["scenarios"].get("race") or [{}])[0]
    return [
        name,
        closed if isinstance(closed, str) else _seconds(closed, cap="open after 2 s"),
        str(_worst(found, "requests_after", tags)),
        str(_worst(found, "processes", ["process"])),
        exits if isinstance(exits, str) else _seconds(exits),
        _yes(_worst(found, "next", tags)),
        _yes(_worst(found, "valid", tags)),
        _yes(_worst(found, "words_kept", streams)),
        _message(message),
        f"{race['next_failed']}, {race['words_lost']} of {race['in_turn']}" if "tries" in race else "broken",
        f"{kill.get('processes', '-')}",
        _yes(kill.get("next")) if kill.get("has_store") else "no store",
    ]


def _message(result: dict) -> str:
    if "broken" in result:
        return "broken"
    if not result.get("can_send"):
        return "no way"
    if not result["accepted"]:
        return "refused"
    return "**lost**" if result["lost"] else "kept"


LEFT_HEAD = [
    "",
    "connection closed",
    "requests after the stop",
    "processes after 2 s",
    "exit",
    "next turn works",
    "history valid",
    "words kept",
    "message in a turn",
    "late stop: next turns failed, words lost",
    "kill -9: processes after 2 s",
    "kill -9: goes on",
]


def _cost(name: str, found: dict) -> list[str]:
    cost = (found["scenarios"].get("cost") or [{}])[0]
    size = f"{found['bytes'] / 1e6:.0f} MB in {found['packages']} packages"
    if "turn" not in cost:
        return [name, "broken", "broken", "broken", _seconds(found.get("import"), cap="-"), size]
    return [
        name,
        milliseconds(cost["turn"]),
        milliseconds(cost["turn_cpu"]),
        f"{cost['chunk_cpu'] * 1e6:.0f} µs",
        _seconds(found.get("import"), cap="-"),
        size,
    ]


def _defects(name: str, found: dict) -> list[str]:
    lines = [f"### {name} {', '.join(found['versions'].values())}", ""]
    lines.append(f"Stopped by {found['stop']}. " + _ways(found))
    lines.append("")
    if "note" in found:
        lines += [found["note"], ""]
    for scenario in SCENARIOS:
        told = defects_of(scenario.tag, found["scenarios"].get(scenario.tag, []))
        if told:
            command = f"`python -m bench.peers --system {name} --scenario {scenario.tag}`"
            started = found["scenarios"][scenario.tag][0].get("tools_started")
            few = f" ({started} of 8 tools had started)" if scenario.tag in EIGHT and started != 8 else ""
            lines.append(f"- {scenario.name}{few}: {'; '.join(told)}. {command}")
    if lines[-1] == "":
        lines.append("- no defect in these scenarios")
    return [*lines, ""]


def _ways(found: dict) -> str:
    message = f"Messages during a turn by {found['message']}." if found["message"] else "No messages during a turn."
    return message + (f" Stored by {found['store']}." if found["store"] else " Stores nothing by itself.")


def page_of(results: dict) -> str:
    systems, machine = results["values"]["systems"], results["machine"]
    measured = _measured(systems)
    lines = [HEAD]
    minutes = sum(found.get("seconds", 0) for found in systems.values()) // 60
    load = max(found.get("load", 0.0) for found in systems.values())
    lines.append(
        f"Measured on {results['date']}, with Python {machine['python']} on {machine['cores']} cores "
        f"({machine['cpu']}), at commit `{results['commit']}`, in {minutes} minutes. The load of the machine was up to "
        f"{load:g}, so small differences of times mean nothing.\n"
    )
    lines += ["## From the stop to control", ""]
    rows = [
        [name, *(_cell(each.tag, found["scenarios"].get(each.tag)) for each in STOPS)]
        for name, found in measured.items()
    ]
    lines += _table(["", *(each.name for each in STOPS)], rows)
    lines += [READING.strip(), "", "## What is left behind", ""]
    lines.append(
        "The worst of all scenarios. The history is judged by the rules of OpenAI's chat completions. Of the ten late "
        "stops, those count that came while the turn still ran.\n"
    )
    lines += _table(LEFT_HEAD, [_left_behind(name, found) for name, found in measured.items()])
    lines += ["## What it costs", ""]
    lines.append(
        "A turn is one request that is answered at once, at the median of fifty. CPU time is that of the driver's "
        "process; the answer of many chunks has 2,000.\n"
    )
    head = ["", "a turn", "CPU of a turn", "CPU of a chunk", "CPU of the import", "installed"]
    lines += _table(head, [_cost(name, found) for name, found in measured.items()])
    lines += ["## Each defect, and how to reproduce it", ""]
    for name, found in measured.items():
        lines += _defects(name, found)
    for name, found in systems.items():
        if "not_installed" in found:
            lines += [f"### {name}", "", f"Was not measured in this run: {found['not_installed']}.", ""]
    lines += ["## The scenarios", ""]
    lines += [f"- **{each.name}** (`{each.tag}`): {each.does}" for each in SCENARIOS]
    return "\n".join(lines).rstrip() + "\n"


def write_page(path: Path) -> None:
    PAGE.write_text(page_of(json.loads(path.read_text())))
