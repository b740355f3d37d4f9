"""The demo's table, in plain ASCII; coloured only for a terminal whose user has not said NO_COLOR."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Sequence

    from halter.demo.measurement import DemoCase


class Paint:
    """Colours, or none."""

    def __init__(self, stream: TextIO) -> None:
        self._is_on = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def bold(self, text: str) -> str:
        return self._wrap("1", text)

    def green(self, text: str) -> str:
        return self._wrap("32", text)

    def yellow(self, text: str) -> str:
        return self._wrap("33", text)

    def red(self, text: str) -> str:
        return self._wrap("31", text)

    def _wrap(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._is_on else text


def print_table(cases: Sequence[DemoCase], paint: Paint) -> None:
    rows = [
        (case.title, case.ending, _ms(case.back_ms), "not yet" if case.is_abandoned else _ms(case.gone_ms))
        for case in cases
    ]
    heads = ("what", "how it ended", "control back", "gone")
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    print(paint.bold(_line(heads, widths)))
    print("  ".join("-" * width for width in widths))
    for case, row in zip(cases, rows, strict=True):
        colour = paint.yellow if case.is_abandoned else paint.green if case.gone.is_set() else paint.red
        print(colour(_line(row, widths)))


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    what, ending, *times = (
        cell.ljust(width) if at < 2 else cell.rjust(width)  # noqa: PLR2004  (two columns of text, two of figures)
        for at, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((what, ending, *times))


def _ms(value: float | None) -> str:
    return "not seen" if value is None else f"{value:.1f} ms"
