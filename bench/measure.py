"""What the benchmarks share: interleaved rounds, a table, and goals with a verdict.

A shared machine is slow and fast by turns. So nothing is measured alone: all contenders take turns
within each round, and only figures of the same run are compared.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

K = TypeVar("K")


def interleave(rounds: int, samples: Mapping[K, Callable[[], float]]) -> dict[K, list[float]]:
    """Take one sample of each per round, *rounds* times."""
    taken: dict[K, list[float]] = {key: [] for key in samples}
    for _ in range(rounds):
        for key, sample in samples.items():
            taken[key].append(sample())
    return taken


def best(rounds: int, samples: Mapping[K, Callable[[], float]]) -> dict[K, float]:
    """Take the least of each: noise only ever adds."""
    return {key: min(values) for key, values in interleave(rounds, samples).items()}


def median(rounds: int, samples: Mapping[K, Callable[[], float]]) -> dict[K, float]:
    return {key: statistics.median(values) for key, values in interleave(rounds, samples).items()}


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print the first column to the left and the figures to the right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    print(title)
    for row in (head, ["-" * width for width in widths], *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        print("  " + "  ".join(cells).rstrip())
    print()


class Goals:
    """Prints a verdict for each goal, and remembers whether one was missed."""

    def __init__(self) -> None:
        self._missed = 0

    def check(self, text: str, *, is_met: bool) -> None:
        print(f"  {'PASS' if is_met else 'FAIL'}  {text}")
        self._missed += not is_met

    def at_most(self, text: str, value: float, limit: float, unit: str = "x") -> None:
        self.check(f"{text}: {value:.2f}{unit}, at most {limit:g}{unit}", is_met=value <= limit)

    @property
    def exit_code(self) -> int:
        return 1 if self._missed else 0


def plain_loop() -> float:
    """Seconds that a loop which only counts takes at this moment, at best: the pace of the machine."""
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(50_000):
            pass
        taken.append(time.perf_counter() - start)
    return min(taken)
