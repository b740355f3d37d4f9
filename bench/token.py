"""The token beside what others use: time, memory, and what a long-lived parent keeps.

Backs the figures of the token in the README: a check costs a slot read, a token costs about an
``asyncio.Event``, children are cheap to make and to cancel, and dropped ones leave nothing behind.
``pip install -e .[bench]`` brings the competitors. Exits with 1 if a goal is missed.
"""

from __future__ import annotations

import sys

sys.path.insert(0, sys.path.pop(0) + "/..")  # this folder's token.py must not hide the standard library's

from bench.contenders import contenders
from bench.measure import Goals, best, print_table
from bench.samples import MANY, Contender

_ROUNDS = {"create": 25, "check": 150, "raise_if": 15, "child": 25, "cancel": 9, "bytes": 1, "kept": 1}
_UNITS = {"create": 1e9, "check": 1e9, "raise_if": 1e9, "child": 1e9, "cancel": 1e3, "bytes": 1.0, "kept": 1.0}
_HEAD = {
    "create": "create, ns",
    "check": "check, ns",
    "raise_if": "raise_if, ns",
    "child": "child, ns",
    "cancel": f"cancel {MANY:,}, ms",
    "bytes": "bytes each",
    "kept": f"kept of {MANY:,}, bytes",
}


def main() -> int:
    found, missing = contenders()
    figures = {column: _measure(column, found) for column in _HEAD}
    rows = [[each.name, *(_cell(figures[column].get(each.name), column) for column in _HEAD)] for each in found]
    print_table(f"Tokens, Python {sys.version.split()[0]}: best of interleaved rounds", ["", *_HEAD.values()], rows)
    for each in missing:
        print(f"  not measured: {each}; python -m pip install -e '.[bench]' installs it")
    return _judge(figures)


def _measure(column: str, found: list[Contender]) -> dict[str, float]:
    samples = {each.name: each.columns()[column] for each in found if column in each.columns()}
    return best(_ROUNDS[column], samples)


def _cell(value: float | None, column: str) -> str:
    if value is None:
        return "-"
    scaled = value * _UNITS[column]
    return f"{scaled:,.0f}" if scaled == 0 or scaled >= 100 else f"{scaled:.1f}"


def _judge(figures: dict[str, dict[str, float]]) -> int:
    ours = {column: of["halter"] for column, of in figures.items()}
    others = {name: seconds for name, seconds in figures["cancel"].items() if name != "halter"}
    fastest = min(others, key=others.__getitem__)
    goals = Goals()
    goals.at_most("check, against a slot read", ours["check"] / figures["check"]["an object with a slot"], 1.3)
    goals.at_most("create, against asyncio.Event", ours["create"] / figures["create"]["asyncio.Event"], 1.5)
    in_creations = ours["child"] / ours["create"]
    goals.check(
        f"child: {ours['child'] * 1e6:.2f} µs, {in_creations:.1f} creations; at most 1 µs or 3 creations",
        is_met=ours["child"] <= 1e-6 or in_creations <= 3,
    )
    goals.at_most(
        f"cancel {MANY:,} children, against the fastest other, {fastest}", ours["cancel"] / others[fastest], 1.5
    )
    goals.at_most(f"kept of {MANY:,} dropped children", ours["kept"], 0, " bytes")
    return goals.exit_code


if __name__ == "__main__":
    sys.exit(main())
