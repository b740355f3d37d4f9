"""Every Python example in the documentation runs, so that none of them lies."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent


class Block(NamedTuple):
    """A fenced block of Python in a page."""

    page: Path
    line: int  # of its first line of code
    kind: str  # "", "bad": how not to do it, or "cell": of a notebook
    code: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Find the blocks that open with ```python, perhaps with their kind behind it."""
    found = []
    opening, start, code = "", 0, list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if not line.startswith("```"):
            code.append(line)
        elif not opening:
            opening, start, code = line, number + 1, []
        else:
            if opening.startswith("```python"):
                found.append(Block(page, start, opening.removeprefix("```python").strip(), "\n".join(code) + "\n"))
            opening = ""
    return found


PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
BLOCKS = [block for page in PAGES for block in blocks_of(page)]
GOOD = [block for block in BLOCKS if not block.kind]


def test_there_are_examples() -> None:
    """The README and the page on cancellation have examples, good and bad: else nothing is tested here."""
    assert {"README.md", "cancellation.md"} <= {block.page.name for block in GOOD}
    assert {block.kind for block in BLOCKS} == {"", "bad", "cell"}


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_example_compiles(block: Block) -> None:
    """Every example, the bad ones too, is valid Python."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if block.kind == "cell" else 0
    compile("\n" * (block.line - 1) + block.code, block.page.name, "exec", flags)


@pytest.mark.parametrize("block", GOOD, ids=str)
def test_example_runs(block: Block, tmp_path: Path) -> None:
    """A good example, pasted into a file and run, does what the page says: its asserts hold and it ends well."""
    program = tmp_path / "example.py"
    program.write_text(block.code)
    done = subprocess.run(
        [sys.executable, "-X", "dev", str(program)],
        cwd=tmp_path,
        env=os.environ | {"OPENAI_AGENTS_DISABLE_TRACING": "1"},  # it would send its traces away
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
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


LINK = re.compile(r"!?\[[^\]]*\]\(([^)#\s]*)(?:#[^)\s]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_link_leads_to_a_file(page: Path) -> None:
    """A link or a picture that is not there is found here; the site's own check sees links between pages only."""
    for target in LINK.findall(re.sub(r"```.*?```|`[^`]*`", "", page.read_text("utf-8"), flags=re.DOTALL)):
        if target and "://" not in target:
            assert (page.parent / target).exists(), target
            if page.is_relative_to(ROOT / "docs"):
                assert (page.parent / target).resolve().is_relative_to(ROOT / "docs"), f"{target} is not on the site"


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: str(page.relative_to(ROOT)))
def test_each_page_opens_with_what_it_is_for(page: Path) -> None:
    """Below its title, a page says what its reader can do afterwards."""
    title, _, opening = page.read_text("utf-8").partition("\n\n")
    assert title.startswith("# ")
    assert opening.startswith("After this page "), opening[:60]


def _pages_in(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    assert isinstance(entry, dict | list)
    return [page for each in (entry.values() if isinstance(entry, dict) else entry) for page in _pages_in(each)]


def test_each_page_is_in_the_navigation() -> None:
    """A page that the navigation does not have is found by nobody."""
    listed = _pages_in(tomllib.loads((ROOT / "zensical.toml").read_text("utf-8"))["project"]["nav"])
    assert len(listed) == len(set(listed))
    assert set(listed) == {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:]}


def test_each_example_is_on_the_page_of_examples() -> None:
    """The page includes the programs themselves, so it cannot differ from them."""
    shown = re.findall(r'^--8<-- "examples/(.*)"$', (ROOT / "docs/examples.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(path.name for path in ROOT.glob("examples/*.py"))


def test_the_moving_picture_can_be_recorded_again(tmp_path: Path) -> None:
    """The picture of a stop is what the chat shows today: the script still plays its scene, and loads nothing."""
    made = tmp_path / "stop.svg"
    subprocess.run([sys.executable, str(ROOT / "docs/stop_picture.py"), str(made)], check=True, timeout=300)
    words = [
        re.sub(r"[\d.]+ m?s", "…", "".join(re.findall(r">([^<]*)<", path.read_text("utf-8"))))
        for path in (made, ROOT / "docs/stop.svg")
    ]
    for said in ("■ stopped in …; 3 calls kept partial results", "did not wait for the rest"):
        assert all(said in each for each in words)
    stored = (ROOT / "docs/stop.svg").read_text("utf-8")
    assert len(stored) < 20_000
    assert not re.search(r"<script|<image|@import|url\(|href", stored)
