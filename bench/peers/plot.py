"""The plot: a row for each system, a column for each scenario, and in each cell what happened. For light and dark."""

from __future__ import annotations

import html
import json
from pathlib import Path

from bench.peers.scenarios import SCENARIOS
from bench.peers.verdicts import control_of, duration, level_of

__all__ = ["plot_of", "write_plot"]

PLOT = Path(__file__).parents[2] / "docs" / "peers.svg"
SHORT = {
    "slow": ["slow", "stream"],
    "silent": ["no answer", "yet"],
    "hang": ["hangs in", "mid-stream"],
    "deaf": ["sleeping", "threads"],
    "cooperative": ["tools that", "cooperate"],
    "process": ["running", "programs"],
    "blocking": ["blocked", "event loop"],
    "message": ["right after", "a message"],
    "race": ["in the last", "millisecond"],
    "kill": ["kill -9", "instead"],
}
GROUPS = [("while the model answers", 3), ("while tools run", 4), ("at a bad moment", 3)]
# 800 wide, which is what GitHub shows of it without scaling.
LEFT, TOP, WIDTH, HEIGHT = 128, 116, 66, 30
MARKS = {"good": "✓", "part": "!", "bad": "✗", "none": "-"}
LEGEND = [
    ("good", "stopped within a second, nothing left or lost"),
    ("part", "stopped, but something was left running or lost"),
    ("bad", "took over a second, or broke the next turn"),
    ("none", "no such feature, or not judged"),
]
TITLE = "What happens when you press stop"
SUBTITLE = "Time until you have control back, and whether the stop was complete"
# The background is part of the picture: a page may be light where the browser prefers dark.
STYLE = """
text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 12px; fill: #1f2328; }
.back { fill: #ffffff; }
.title { font-size: 16px; font-weight: 700; }
.soft { fill: #59636e; }
.head { font-size: 10.5px; text-anchor: middle; }
.group { font-size: 11.5px; text-anchor: middle; font-weight: 600; }
.line { stroke: #59636e; stroke-width: 1; }
.own { font-weight: 700; }
.cell { font-size: 11px; text-anchor: middle; font-weight: 600; fill: #ffffff; }
.cell.part { fill: #1f2328; }
.cell.none { fill: #59636e; }
rect.good { fill: #0067a3; }
rect.part { fill: #e69f00; }
rect.bad { fill: #b3261e; }
rect.none { fill: #8884; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3; }
  .back { fill: #0d1117; }
  .soft, .cell.none { fill: #9198a1; }
  .line { stroke: #9198a1; }
}
"""


def _label(tag: str, rounds: list[dict], level: str) -> str:
    if level == "none" or tag in {"message", "race", "kill"}:
        return MARKS[level]
    control = control_of(rounds)
    return f"{MARKS[level]} {'> 5 s' if control is None else _rounded(control)}"


def _rounded(seconds: float) -> str:
    return "< 1 ms" if seconds < 0.001 else duration(seconds) if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _row(y: float, name: str, scenarios: dict) -> list[str]:
    own = ' class="own"' if name.startswith("halter") else ""
    lines = [f'<text x="8" y="{y + 19:g}"{own}>{html.escape(name)}</text>']
    for column, scenario in enumerate(SCENARIOS):
        rounds = scenarios.get(scenario.tag)
        level = level_of(name, scenario.tag, rounds) if rounds else "none"
        label = _label(scenario.tag, rounds, level) if rounds else MARKS["none"]
        x = LEFT + WIDTH * column
        lines.append(
            f'<rect x="{x + 1}" y="{y + 1}" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="4" class="{level}"/>'
            f'<text x="{x + WIDTH / 2:g}" y="{y + 19}" class="cell {level}">{html.escape(label)}</text>'
        )
    return lines


def _heads() -> list[str]:
    lines, column = [], 0
    for words, count in GROUPS:
        left, right = LEFT + WIDTH * column + 4, LEFT + WIDTH * (column + count) - 4
        lines.append(f'<text x="{(left + right) / 2:g}" y="72" class="group">{words}</text>')
        lines.append(f'<line x1="{left}" y1="78" x2="{right}" y2="78" class="line"/>')
        column += count
    for column, scenario in enumerate(SCENARIOS):
        x = LEFT + WIDTH * column + WIDTH / 2
        for row, word in enumerate(SHORT[scenario.tag]):
            lines.append(f'<text x="{x:g}" y="{92 + 13 * row}" class="head">{word}</text>')
    return lines


def plot_of(results: dict) -> str:
    systems = {name: found for name, found in results["values"]["systems"].items() if "scenarios" in found}
    bottom = TOP + HEIGHT * len(systems) + 16
    width, height = LEFT + WIDTH * len(SCENARIOS) + 12, bottom + 52
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{TITLE}. {SUBTITLE}</title><style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="8" class="back"/>',
        f'<text x="8" y="26" class="title">{TITLE}</text>',
        f'<text x="8" y="46" class="soft">{SUBTITLE}</text>',
    ]
    lines += _heads()
    for row, (name, found) in enumerate(systems.items()):
        lines += _row(TOP + HEIGHT * row, name, found["scenarios"])
    for place, (level, words) in enumerate(LEGEND):
        x, y = LEFT + 330 * (place // 2), bottom + 22 * (place % 2)
        lines.append(f'<rect x="{x}" y="{y}" width="16" height="16" rx="3" class="{level}"/>')
        lines.append(f'<text x="{x + 8}" y="{y + 12}" class="cell {level}">{MARKS[level]}</text>')
        lines.append(f'<text x="{x + 24}" y="{y + 12}">{words}</text>')
    return "\n".join([*lines, "</svg>", ""])


def write_plot(path: Path) -> None:
    PLOT.write_text(plot_of(json.loads(path.read_text())))
