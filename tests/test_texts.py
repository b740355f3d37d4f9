"""Texts and names are in plain words: the old metaphors, and a spelling that nobody uses, do not come back."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Of names that parts once had. `rungs` is in stored logs, so it stays there.
OLD = re.compile(r"\b(bell|hall|janitor|keeper|porter|scribe|shelf|veil|warden)s?\b", re.IGNORECASE)
OLD_CLASS = re.compile(
    r"^\s*(?:export )?class _?("
    "Bell|Board|Bundle|Canvas|Care|Claim|Cut|Door|Exchange|Face|Family|Families|Frames|Ground|Guard|Hall|Host|Journal|"
    "Keeper|Leavable|Letter|Paper|Pen|People|Picture|Places|Porter|Pump|Ring|Room|Run|Said|Scribe|Seen|Shelf|Slots|Steps|"
    r"Surroundings|Table|Veil|Visit|Waits|Warden)\b",
    re.MULTILINE,
)
FILES = [path for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".js", ".html", ".css"}]


def listed() -> list[str]:
    """What scripts/texts prints."""
    done = subprocess.run([sys.executable, ROOT / "scripts/texts"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_list_has_texts_of_every_face() -> None:
    """Errors, help, labels of the page and headings are in it: else nothing is tested here."""
    text = "\n".join(listed())
    for part in ("src/halter/cli/main.py", "src/halter/gateway/web/index.html", "src/halter/gateway/web/", "README.md"):
        assert part in text


def test_cannot_is_one_word() -> None:
    """In texts, comments and documentation."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in [*FILES, *pages]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\bcan not\b", line, re.IGNORECASE)
    ]
    assert not found


def test_no_part_has_an_old_name() -> None:
    """Neither in code nor in comments."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in FILES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in OLD.finditer(line.replace("_", " "))
    ]
    assert not found


def test_no_class_has_an_old_name() -> None:
    """Some are ordinary words, such as "room": as the name of a class they tell nobody what it is."""
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for name in OLD_CLASS.findall(path.read_text(encoding="utf-8"))
    ]
    assert not found
