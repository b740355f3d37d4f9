"""Every figure in the README and the docs comes from a file that a script in `bench/` wrote.

A figure is followed by a comment that names its source: `1.9 ms <!-- bench: sandbox namespaces_ms -->` is the value
`namespaces_ms` in `bench/results/sandbox.json`. Figures that are settings, and not measured, are listed here. The page
about other agents is written by its benchmark as a whole.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bench.approvals import counts
from bench.figures import MARKER, RESULTS, updated, value_of
from bench.peers.plot import plot_of
from bench.peers.table import page_of

ROOT = Path(__file__).parent.parent
GENERATED = ROOT / "docs" / "explanation" / "peers.md"
PAGES = [page for page in (ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))) if page != GENERATED]
FIGURE = re.compile(r"(?<![\w.,-])(\d[\d.,]*) ?(ms|µs|MB|GB|%|times as|times faster|x faster)(?!\w)")

SETTINGS = {
    "docs/explanation/architecture.md": ["10 ms", "100 ms"],  # how long pieces of text wait for the writer
    "docs/guides/checkpoints.md": ["10 MB"],  # files larger than this are not in a checkpoint
    "docs/guides/cluster.md": ["1 MB", "64 MB"],  # the default size of a message of NATS; the limit of a merge
    "docs/guides/editors.md": ["32 MB"],  # that may be queued for an editor
    "docs/guides/gateway.md": ["30 ms"],  # how long the answer to a stop waits for the end of its turn
    "docs/guides/openai-clients.md": ["25 MB"],
    "docs/guides/page.md": ["20 MB", "1 GB", "10 ms"],  # limits of a PDF, of its process, and of a slice of drawing
    "docs/guides/long-conversations.md": ["80 %"],
    "docs/reference/access.md": ["25 MB"],
    "docs/reference/cancellation.md": ["10 MB", "80 %"],
    "docs/reference/sessions.md": ["100 ms", "80 %"],
    "docs/reference/work.md": ["100 ms"],
}


def prose(page: Path) -> list[tuple[int, str]]:
    """The lines of a page that are not in a block of code, with their numbers."""
    found, is_code = [], False
    for number, line in enumerate(page.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("    "):  # four spaces begin a block of code, too
            found.append((number, line))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_figure_has_a_source(page: Path) -> None:
    """A figure is a setting that is listed here, or has a marker, and the file has the same number."""
    settings = SETTINGS.get(str(page.relative_to(ROOT)), [])
    for number, line in prose(page):
        unmarked = line
        for figure, _, name, key in MARKER.findall(line):
            digits = len(figure.partition(".")[2])
            assert f"{value_of(name, key):.{digits}f}" == figure.replace(",", ""), f"{page.name}:{number}: {name} {key}"
            unmarked = MARKER.sub("", unmarked, count=1)
        for value, unit in FIGURE.findall(unmarked):
            assert f"{value} {unit}" in settings, f"{page.name}:{number}: {value} {unit} has no source"


def test_each_setting_is_still_there() -> None:
    """A listed figure that the page does not have any more is taken off the list."""
    for page, figures in SETTINGS.items():
        text = "\n".join(line for _, line in prose(ROOT / page))
        for figure in figures:
            assert figure in text, f"{page}: {figure}"


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_each_result_says_where_it_comes_from(path: Path) -> None:
    """A file of results has the date, the machine and the commit, and nothing that names the machine."""
    found = json.loads(path.read_text("utf-8"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
    assert set(found["machine"]) == {"cores", "cpu", "python"}
    assert re.fullmatch(r"[0-9a-f]{7,40}", found["commit"])
    assert not re.search(r"/(home|root|tmp|work|Users)/", path.read_text("utf-8"))


def test_the_page_about_other_agents_is_what_was_measured() -> None:
    """The page and the plot are written from the results, so none of their figures was changed by hand."""
    results = json.loads((RESULTS / "peers.json").read_text("utf-8"))
    assert GENERATED.read_text("utf-8") == page_of(results)
    assert (ROOT / "docs" / "peers.svg").read_text("utf-8") == plot_of(results)


def test_the_counts_of_questions_are_those_of_the_benchmark() -> None:
    """The table on the page about security has what `python -m bench.approvals` prints."""
    page = (ROOT / "docs/security.md").read_text("utf-8")
    table = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert table == [(sandbox, mode, str(asked), str(after)) for sandbox, mode, asked, after in counts()]


def test_a_figure_without_a_source_is_found(tmp_path: Path) -> None:
    """The check can fail: a new figure, and one that differs from its file."""
    assert FIGURE.findall("It took 12 ms, and 3.5 times as long.") == [("12", "ms"), ("3.5", "times as")]
    assert MARKER.findall("It took 1.9 ms <!-- bench: sandbox namespaces_ms --> more.") == [
        ("1.9", " ms <!-- bench: sandbox namespaces_ms -->", "sandbox", "namespaces_ms")
    ]


def test_figures_are_brought_up_to_date() -> None:
    """`bench/figures.py` writes what was measured, with as many decimals as there were, and changes nothing else."""
    value = value_of("sandbox", "namespaces_ms")
    text = "In 2 ways: it took 0.00 ms <!-- bench: sandbox namespaces_ms --> more."
    assert updated(text) == f"In 2 ways: it took {value:,.2f} ms <!-- bench: sandbox namespaces_ms --> more."
