"""Every Python example in the documentation runs, so that none of them lies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent


class Block(NamedTuple):
    """A fenced block of Python in a page."""

    page: Path
    line: int  # of its first line of code
    is_bad: bool
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Find the blocks that open with ```python, and with ```python bad: how not to do it."""
    found = []
    opening, start, code = "", 0, list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if not line.startswith("```"):
            code.append(line)
        elif not opening:
            opening, start, code = line, number + 1, []
        else:
            if opening.startswith("```python"):
                found.append(Block(page, start, opening == "```python bad", "\n".join(code) + "\n"))
            opening = ""
    return found


BLOCKS = [block for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) for block in blocks_of(page)]
GOOD = [block for block in BLOCKS if not block.is_bad]


def test_there_are_examples() -> None:
    """The README and the page on cancellation have examples, good and bad: else nothing is tested here."""
    assert {"README.md", "cancellation.md"} <= {block.page.name for block in GOOD}
    assert any(block.is_bad for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_example_compiles(block: Block) -> None:
    """Every example, the bad ones too, is valid Python."""
    compile("\n" * (block.line - 1) + block.code, block.page.name, "exec")


@pytest.mark.parametrize("block", GOOD, ids=str)
def test_example_runs(block: Block, tmp_path: Path) -> None:
    """A good example, pasted into a file and run, does what the page says: its asserts hold and it ends well."""
    program = tmp_path / "example.py"
    program.write_text(block.code)
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(program)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout, done.stdout
    assert "Warning" not in done.stdout, done.stdout


ROWS = [line for line in (ROOT / "docs/explanation/pitfalls.md").read_text().splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("row", [row for row in ROWS if not row.startswith("| What")], ids=lambda row: row[2:50])
def test_each_pitfall_is_held_by_tests_that_exist(row: str) -> None:
    """A row without a test promises what nobody checks, and so does one whose test was renamed or taken out."""
    _, _, law, tests, _ = row.split("|")
    assert all(1 <= int(number) <= 7 for number in law.split(","))
    names = tests.split()
    assert names
    for name in names:
        path, _, function = name.strip("`").partition("::")
        assert f"def {function}(" in (ROOT / "tests" / path).read_text(), name
