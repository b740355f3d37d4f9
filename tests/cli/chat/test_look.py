"""The pictures of the terminal in the documentation are the program."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SEEN = {
    "first-run": [
        "openai:gpt-5",
        "Tools: terminal, process, read_file",
        "Type a message and press Enter.",
        "gpt-5 · idle",
    ],
    "diff": ["Make these changes? prices.py +1 -1", "? patch: allowed", "✓ patch prices.py +1 -1", "4 +"],
    "failed-command": ["✗ $ python3 test_prices.py · exit code 1", "AssertionError: -3", "⋯ $ seq 1 7; cat gate"],
    "children": ["⋯ delegate 2 tasks", "◇ reviewer: review prices.py", "◇ tester: write a test"],
    "steer": [
        "» Why does the test fail?",
        "✓ read_file test_prices.py",
        "steered, interrupted terminal",
        "The test is right, and total() subtracts:",
        "queued    and write a line in the changelog",
        "> what is taking so lo",
        "gpt-5 · running 1 tool",
    ],
    "stop": ["■ stopped in", "Stop requested by stop() (stop: Esc)", "interrupted"],
    "compaction": ["next request: about", "context compacted from about", "We were about to mend total()."],
    "undo": ["/undo files: restore them", "2 files restored", "the turn was removed from the conversation"],
    "settings": ['busy = "queue"', "# default", "line 1"],
}


def read(picture: str) -> str:
    """The words of a picture, line by line."""
    rows: dict[float, list[tuple[float, str]]] = {}
    length = 12.2  # of a character, in the units of the picture
    for found in re.finditer(r'<text [^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', picture):
        text = found[3].replace("&#160;", " ").replace("&gt;", ">").replace("&#x27;", "'").replace("&quot;", '"')
        rows.setdefault(float(found[2]), []).append((float(found[1]), text))
    lines = []
    for _, pieces in sorted(rows.items()):
        line = ""
        for at, text in sorted(pieces):
            line = f"{line:{round(at / length)}}{text}"
        lines.append(line)
    return "\n".join(lines)


@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("scene", SEEN)
def test_the_pictures(scene: str, theme: str) -> None:
    """Each picture has what its scene is about, and fetches nothing from anywhere."""
    picture = (ROOT / f"docs/terminal/{scene}-{theme}.svg").read_text()
    text = read(picture)
    for seen in SEEN[scene]:
        assert seen in text, text
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "")


def test_it_can_be_recorded_again(tmp_path: Path) -> None:
    """The script records the program as it is now, for both themes."""
    command = [sys.executable, str(ROOT / "docs/look.py"), "steer", "--folder", str(tmp_path)]
    subprocess.run(command, check=True, timeout=300)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["steer-dark.svg", "steer-light.svg"]
    for each in tmp_path.iterdir():
        assert all(seen in read(each.read_text()) for seen in SEEN["steer"]), each
