"""The plot: a row for each system, a column for each scenario, and in each cell what happened. For light and dark."""

from __future__ import annotations

import html
import json
from pathlib import Path

from bench.peers.scenarios import SCENARIOS
from bench.peers.verdicts import control_of, level_of, milliseconds

__all__ = ["plot_of", "write_plot"]

PLOT = Path(__file__).parents[2] / "docs" / "peers.svg"
SHORT = {
    "slow": ["slow", "stream"],
    "silent": ["silent", "at first"],
    "hang": ["silent in", "mid-stream"],
    "deaf": ["8 deaf", "tools"],
    "cooperative": ["8 tools that", "cooperate"],
    "process": ["8 tools with", "processes"],
    "blocking": ["blocking", "async tool"],
    "message": ["message in", "a turn"],
    "race": ["stop at the", "very end"],
    "kill": ["kill -9", ""],
}
LEFT, TOP, WIDTH, HEIGHT = 150, 72, 84, 34
MARKS = {"good": "✓", "part": "!", "bad": "✗", "none": "-"}
LEGEND = [
    ("good", "stopped, and everything is in order"),
    ("part", "stopped, and something was left behind or lost"),
    ("bad", "not stopped within a second, or the next turn failed, or a provider would refuse it"),
    ("none", "has no such thing"),
]
STYLE = """
text { font-family: system-ui, sans-serif; font-size: 12px; fill: #1f2328; }
.head { font-size: 11px; text-anchor: middle; }
.cell { text-anchor: middle; font-weight: 600; fill: #fff; }
.part.cell { fill: #1f2328; }
.none.cell { fill: #59636e; }
.own { font-weight: 700; }
rect.good { fill: #0072b2; }
rect.part { fill: #e69f00; }
rect.bad { fill: #b3261e; }
rect.none { fill: #8882; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .none.cell { fill: #9198a1; }
}
"""


def _label(tag: str, rounds: list[dict], level: str) -> str:
    if level == "none":
        return MARKS[level]
    if tag in {"message", "race", "kill"}:
        return MARKS[level]
    control = control_of(rounds)
    return f"{MARKS[level]} {'> 5 s' if control is None else milliseconds(control)}"


def plot_of(results: dict) -> str:
    systems = {name: found for name, found in results["values"]["systems"].items() if "scenarios" in found}
    height = TOP + HEIGHT * len(systems) + 22 * len(LEGEND) + 30
    width = LEFT + WIDTH * len(SCENARIOS) + 10
    title = "Time from a stop to control, and whether anything was left behind"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">',
        f"<title>{title}</title><style>{STYLE}</style>",
        f'<text x="8" y="20" class="own">{title}</text>',
    ]
    for column, scenario in enumerate(SCENARIOS):
        x = LEFT + WIDTH * column + WIDTH / 2
        for row, word in enumerate(SHORT[scenario.tag]):
            lines.append(f'<text x="{x:g}" y="{44 + 14 * row}" class="head">{word}</text>')
    for row, (name, found) in enumerate(systems.items()):
        y = TOP + HEIGHT * row
        own = ' class="own"' if name == "halter" else ""
        lines.append(f'<text x="8" y="{y + 20}"{own}>{html.escape(name)}</text>')
        for column, scenario in enumerate(SCENARIOS):
            rounds = found.get("scenarios", {}).get(scenario.tag)
            level = "none" if rounds is None else level_of(scenario.tag, rounds)
            x = LEFT + WIDTH * column
            lines.append(
                f'<rect x="{x + 2}" y="{y + 2}" width="{WIDTH - 4}" height="{HEIGHT - 4}" rx="5" class="{level}"/>'
            )
            label = MARKS["none"] if rounds is None else _label(scenario.tag, rounds, level)
            lines.append(f'<text x="{x + WIDTH / 2:g}" y="{y + 21}" class="cell {level}">{label}</text>')
    for row, (level, words) in enumerate(LEGEND):
        y = TOP + HEIGHT * len(systems) + 16 + 22 * row
        lines.append(f'<rect x="{LEFT}" y="{y}" width="16" height="16" rx="3" class="{level}"/>')
        lines.append(f'<text x="{LEFT + 24}" y="{y + 12}">{MARKS[level]}  {words}</text>')
    return "\n".join([*lines, "</svg>", ""])


def write_plot(path: Path) -> None:
    PLOT.write_text(plot_of(json.loads(path.read_text())))
