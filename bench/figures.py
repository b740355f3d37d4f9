"""Brings the figures in the README and the docs up to date with `bench/results/`.

    python bench/figures.py

A figure is followed by a comment that names its value: `1.9 ms <!-- bench: sandbox namespaces_ms -->`. It keeps the
number of decimals that it has. `tests/test_figures.py` fails where a page and its file differ.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
MARKER = re.compile(r"(\d[\d.,]*)( ?[^\d<]*<!-- bench: (\S+) (\S+) -->)")


def value_of(name: str, key: str) -> Any:
    """A value of a file of results; *key* may have several parts, with dots between them."""
    value = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))["values"]
    for part in key.split("."):
        value = value[part]
    return value


def updated(text: str) -> str:
    """A page with the figures as they were measured last."""

    def figure(match: re.Match[str]) -> str:
        decimals = len(match[1].partition(".")[2])
        return f"{value_of(match[3], match[4]):,.{decimals}f}{match[2]}"

    return MARKER.sub(figure, text)


def main() -> None:
    for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))):
        old = page.read_text("utf-8")
        new = updated(old)
        if new != old:
            page.write_text(new, "utf-8")
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
