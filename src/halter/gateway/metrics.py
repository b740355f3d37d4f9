"""Figures of the gateway, in the text format of Prometheus."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from typing import TYPE_CHECKING, Final

from halter.events import Event, MessageAccepted, TurnFinished

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Metrics"]

# Seconds. A stop is a matter of milliseconds; what is above a second is a defect, or a tool that needs its grace.
_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class _Histogram:
    """How many values are at most so large."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BOUNDS) + 1)  # between two bounds, and behind the last
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._sum += value
        self._counts[bisect.bisect_left(_BOUNDS, value)] += 1

    def lines(self, name: str, text: str) -> list[str]:
        *counts, count = itertools.accumulate(self._counts)
        buckets = [f'{name}_bucket{{le="{bound:g}"}} {most}' for bound, most in zip(_BOUNDS, counts, strict=True)]
        return [
            *_head(name, text, "histogram"),
            *buckets,
            f'{name}_bucket{{le="+Inf"}} {count}',
            f"{name}_sum {self._sum:.6f}",
            f"{name}_count {count}",
        ]


class Metrics:
    """What is counted."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._messages: Counter[str] = Counter()
        self._turns: Counter[tuple[str, str]] = Counter()
        self._refused: Counter[str] = Counter()
        self._stops = _Histogram()

    def answered(self, method: str, route: str, status: int) -> None:
        """Count a request."""
        self._requests[method, route, status] += 1

    def refused(self, what: str) -> None:
        """Count a refusal by a limit."""
        self._refused[what] += 1

    def take(self, event: Event) -> None:
        """Count what happens in the sessions."""
        data = event.data
        if isinstance(data, MessageAccepted):
            self._messages[data.mode] += 1
        elif isinstance(data, TurnFinished):
            self._turns[data.status, _reason(data)] += 1
            if data.after is not None:
                self._stops.add(data.after)

    def text(self, now: Mapping[str, tuple[str, int]]) -> str:
        """All of it; *now* has what can be counted in this moment, with its explanation."""
        lines: list[str] = []
        for name, (text, value) in now.items():
            lines += [*_head(f"halter_{name}", text, "gauge"), f"halter_{name} {value}"]
        lines += _head("halter_requests_total", "Requests that were answered.", "counter")
        for (method, route, code), count in sorted(self._requests.items()):
            lines.append(f'halter_requests_total{{method="{method}",route="{route}",status="{code}"}} {count}')
        lines += _head("halter_messages_total", "Messages that were accepted, by what they became.", "counter")
        lines += [f'halter_messages_total{{mode="{mode}"}} {count}' for mode, count in sorted(self._messages.items())]
        lines += _head("halter_refused_total", "Messages that were refused by a limit.", "counter")
        lines += [f'halter_refused_total{{limit="{what}"}} {count}' for what, count in sorted(self._refused.items())]
        lines += _head("halter_turns_total", "Turns that have ended, and how.", "counter")
        for (status, reason), count in sorted(self._turns.items()):
            lines.append(f'halter_turns_total{{status="{status}",reason="{reason}"}} {count}')
        lines += self._stops.lines("halter_stop_seconds", "From the word to stop a turn to its end.")
        return "\n".join([*lines, ""])


def _head(name: str, text: str, kind: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


_REASONS: Final = frozenset(
    {"", "stop", "interrupt", "rollback", "shutdown", "disconnect", "external", "crash", "pause", "timeout", "error",
     "output_limit", "step_limit", "context_limit"}
)  # fmt: skip


def _reason(data: TurnFinished) -> str:
    """A reason that is known: others are a user's own words, and each would be a series of its own."""
    return data.reason if data.reason in _REASONS else "other"
