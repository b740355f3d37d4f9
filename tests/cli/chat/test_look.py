"""The picture of the chat in the documentation is the chat."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SEEN = [
    "» Why is the build red?",
    "✓ read_file build.log",
    "steered, interrupted web_search",
    "The test is off by one: range(5) ends at 4.",
    "⋯ run_command pytest -q tests/test_range.py",
    "212 passed, 1 running",
    "queued    and write a line in the changelog",
    "> what is taking so lo",
    "gpt-5 · running 1 tool",
]


def read(picture: str) -> str:
    """The words of a picture, line by line."""
    rows: dict[float, list[tuple[float, str]]] = {}
    length = 12.2  # of a character, in the units of the picture
    for found in re.finditer(r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', picture):
        text = found[3].replace("&#160;", " ").replace("&gt;", ">").replace("&#x27;", "'")
        rows.setdefault(float(found[2]), []).append((float(found[1]), text))
    lines = []
    for _, pieces in sorted(rows.items()):
        line = ""
        for at, text in sorted(pieces):
            line = f"{line:{round(at / length)}}{text}"
        lines.append(line)
    return "\n".join(lines)


def test_it_can_be_recorded_again(tmp_path: Path) -> None:
    """The script records the program as it is now, and the picture has all that the chat consists of, as has the one in
    the documentation.
    """
    path = tmp_path / "chat.svg"
    subprocess.run([sys.executable, str(ROOT / "docs/look.py"), str(path)], check=True, timeout=120)
    for picture in (path, ROOT / "docs/chat.svg"):
        text = read(picture.read_text())
        for seen in SEEN:
            assert seen in text, text
        assert "http" not in picture.read_text().replace("http://www.w3.org/2000/svg", "")
