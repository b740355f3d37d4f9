"""Searching files: with `rg` and without it, the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halter import ToolOutcome
from halter.toolbox.files import Files
from halter.toolbox.ground import WorkspaceGround
from halter.toolbox.ignore import Ignore, compile_glob
from halter.toolbox.search import Query, search
from halter.toolbox.workspace import Workspace
from tests.helpers import wait_dead, wait_until
from tests.toolbox.stopping import Stopped, check, every_moment, every_reason, everywhere, open_files


def searched(root: Path, query: Query) -> Iterator[str]:
    return search(WorkspaceGround(Workspace(root), query.path), query, lambda _: None)


def busy_children() -> dict[int, int]:
    """The processes that this one has started, and how much time each has used, in ticks."""
    found: dict[int, int] = {}
    for task in os.listdir("/proc/self/task"):
        try:
            pids = Path(f"/proc/self/task/{task}/children").read_text().split()
            for pid in pids:
                found[int(pid)] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
        except OSError:
            continue
    return found


RG = shutil.which("rg", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


@pytest.fixture(params=["rg", "python"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any) -> str:
    """Search with the program, or as if it were not there."""
    if request.param == "rg":
        if RG is None:
            pytest.skip("rg is not installed")
        monkeypatch.setenv("PATH", os.path.dirname(RG))
    else:
        monkeypatch.setenv("PATH", str(tmp_path_factory.mktemp("empty")))
    return str(request.param)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small project with things to be left out."""
    for path, content in {
        ".gitignore": "*.log\nbuild/\n!keep.log\n/only_here.txt\n# comment\n",
        "src/a.py": "import os\nneedle = 1\n",
        "src/deep/b.py": "x = 'Needle'\n" + "y" * 500 + " needle\n",
        "src/deep/.gitignore": "secret.*\n",
        "src/deep/secret.py": "needle\n",
        "src/only_here.txt": "needle\n",
        "only_here.txt": "needle\n",
        "build/out.py": "needle\n",
        "debug.log": "needle\n",
        "keep.log": "needle\n",
        ".git/config": "needle\n",
        ".hidden": "needle\n",
        "binary": "needle\0\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    (tmp_path / "link").symlink_to("src")
    return tmp_path


def found(tree: Path, pattern: str, **options: Any) -> list[str]:
    lines = "\n".join(searched(tree, Query(pattern, **options))).split("\n")
    return sorted(line.partition(": ")[0] for line in lines if not line.startswith("["))


@pytest.mark.parametrize(
    ("pattern", "options", "expected"),
    [
        ("needle", {}, [".hidden:1", "keep.log:1", "src/a.py:2", "src/deep/b.py:2", "src/only_here.txt:1"]),
        ("needle", {"path": "src/deep"}, ["src/deep/b.py:2"]),
        ("needle", {"path": "src/a.py"}, ["src/a.py:2"]),
        ("needle", {"path": "link/deep"}, ["src/deep/b.py:2"]),
        ("needle", {"glob": "*.py"}, ["src/a.py:2", "src/deep/b.py:2"]),
        ("needle", {"glob": "src/*.py"}, ["src/a.py:2"]),
        ("needle", {"glob": "**/deep/*"}, ["src/deep/b.py:2"]),
        ("needle", {"glob": "*.log"}, ["keep.log:1"]),
        ("^NEEDLE$", {"ignore_case": True, "glob": "*.log"}, ["keep.log:1"]),
        (r"\bn\w+e = \d", {}, ["src/a.py:2"]),
        (r"(?<=import )os", {}, ["src/a.py:1"]),
        (r"nothing like it", {}, []),
    ],
)
def test_lines_are_found(engine: str, tree: Path, pattern: str, options: dict[str, Any], expected: list[str]) -> None:
    """Both ways find the same lines, leave out the same files, and take the same expressions."""
    assert found(tree, pattern, **options) == expected


@pytest.mark.parametrize(
    ("pattern", "options", "expected"),
    [
        ("*.py", {}, ["src/a.py", "src/deep/b.py"]),
        ("src/*.py", {}, ["src/a.py"]),
        ("*.PY", {"ignore_case": True, "path": "src/deep"}, ["src/deep/b.py"]),
        ("deep/*", {"path": "src"}, ["src/deep/.gitignore", "src/deep/b.py"]),
        ("[ab].??", {}, ["src/a.py", "src/deep/b.py"]),
        ("*.log", {}, ["keep.log"]),
    ],
)
def test_names_are_found(tree: Path, pattern: str, options: dict[str, Any], expected: list[str]) -> None:
    """Files are found by their names, from where the search starts."""
    assert found(tree, pattern, kind="name", **options) == expected


def test_what_is_left_out_is_told(engine: str, tree: Path) -> None:
    """A search that ends early, or finds nothing, says so; a long line is cut."""
    files = Files(tree)

    def text(**arguments: Any) -> str:
        return str(Stopped(files.search_files, arguments).at("end", "stop").content)

    assert text(pattern="needle", most=2).endswith("\n[the first 2 matches; there may be more: narrow the search]")
    assert "No line matches" in text(pattern="absent")
    assert "yyy [...]" in text(pattern="y needle")
    assert "No file has such a name" in text(pattern="absent", kind="name")
    for arguments, words in (
        ({"pattern": "("}, "is no regular expression"),
        ({"pattern": ""}, "the pattern is empty"),
        ({"pattern": "x", "path": "absent"}, "there is no 'absent' to search in"),
        ({"pattern": "x", "path": "../"}, "leads out of the workspace"),
    ):
        outcome = Stopped(files.search_files, arguments).at("end", "stop")
        assert outcome.status == "failed"
        assert words in outcome.detail


def test_large_files_are_not_searched_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is too large is counted, not read."""
    monkeypatch.setenv("PATH", "")
    (tmp_path / "large").write_bytes(b"needle\n" * 1_200_000)
    said = list(searched(tmp_path, Query("needle")))
    assert said == ["[No line matches; 1 files searched; 1 files not searched: larger than 8,000,000 bytes]"]
    with pytest.raises(ValueError, match="is not searched"):
        list(searched(tmp_path, Query("needle", "large")))


GLOBS = st.lists(
    st.sampled_from(["a", "b", "*", "?", "/", "**", "**/", "/**", "[ab]", "[!a]", "[", "]", "\\", "!", "-"]),
    min_size=1,
    max_size=6,
)


@given(pieces=GLOBS, path=st.text("ab/-[", min_size=1, max_size=8))
def test_no_pattern_is_too_odd(pieces: list[str], path: str) -> None:
    """Whatever pattern is made up, it can be asked; and as a rule of a .gitignore it can be asked, too."""
    compile_glob("".join(pieces)).match(path)
    Ignore().plus("".join(pieces), "").hides(path, is_directory=False)


RULES = st.lists(
    st.sampled_from(
        ["a", "/a", "a/", "*.x", "!a", "!*.x", "b/a", "**/a", "a/**", "b/*", "!b/a", "[ab].x", "#a", "", "b/**/a"]
    ),
    max_size=4,
)


@given(rules=RULES, inner=RULES)
@settings(max_examples=25)
def test_git_ignores_the_same(tmp_path_factory: pytest.TempPathFactory, rules: list[str], inner: list[str]) -> None:
    """What git itself says about a small tree is what we say."""
    root = tmp_path_factory.mktemp("git")
    for path in ("a", "a.x", "b/a", "b/b.x", "b/c/a", "b/c/a.x", "c/a/d", "c/e"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    (root / ".gitignore").write_text("\n".join(rules))
    (root / "b/.gitignore").write_text("\n".join(inner))
    git = ["git", "-c", f"safe.directory={root}", "-c", "core.excludesFile=/dev/null"]
    subprocess.run([*git, "init", "-q", str(root)], check=True, timeout=30)
    listed = subprocess.run(
        [*git, "-C", str(root), "ls-files", "-co", "--exclude-per-directory=.gitignore"],
        check=True, timeout=30, capture_output=True, text=True,
    )  # fmt: skip
    assert found(root, "**", kind="name") == sorted(listed.stdout.splitlines())


def test_a_link_swapped_in_the_middle_shows_nothing_of_outside(engine: str, tmp_path: Path) -> None:
    """While a file is swapped for a link that leads out, and back, a search never shows what is outside."""
    root, outside = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    outside.write_text("needle of outside\n")
    target, spare = root / "f", root / "spare.log"
    (root / ".gitignore").write_text("*.log\n")
    target.write_text("needle inside\n")
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            os.symlink(outside, spare)
            os.replace(spare, target)
            spare.write_text("needle inside\n")
            os.replace(spare, target)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(30):
            assert "outside" not in "".join(searched(root, Query("needle")))
    finally:
        is_over.set()
        thread.join(10)


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough files for a search to be in the middle of it."""
    root = tmp_path_factory.mktemp("forest")
    for number in range(2000):
        (root / f"d{number % 40}").mkdir(exist_ok=True)
        (root / f"d{number % 40}" / f"f{number}").write_text("hay\n" * 20 + "needle\n")
    return root


@every_reason
@every_moment
@pytest.mark.parametrize("pattern", ["needle", "needl[e]$"])
def test_a_search_that_is_stopped_gives_its_matches(
    engine: str, forest: Path, moment: str, reason: str, pattern: str
) -> None:
    """Whenever a search is stopped, what it gives are matches, and neither a process nor a file is left."""
    before = open_files()
    stopped = Stopped(Files(forest).search_files, {"pattern": pattern, "most": 1000})
    outcome = stopped.at(moment, reason, middle=lambda: any(each.startswith(str(forest)) for each in open_files()))
    check(outcome, moment, reason)
    assert isinstance(outcome.content, str)
    assert all(line.endswith(":21: needle") or line.startswith("[") for line in outcome.content.splitlines())
    wait_until(lambda: open_files() == before)


def test_an_expression_that_runs_wild_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression that would take for ever holds up nobody: the stop kills the process it runs in."""
    monkeypatch.setenv("PATH", "")
    (tmp_path / "a").write_text("aa\n")
    (tmp_path / "b").write_text("a" * 60 + "!\n")
    before = busy_children()
    runaways: list[int] = []

    def is_wild() -> bool:
        runaways[:] = [pid for pid, ticks in busy_children().items() if ticks > before.get(pid, 0) + 10]
        return bool(runaways)

    outcome = Stopped(Files(tmp_path).search_files, {"pattern": "^(a+)+$"}).at("middle", "stop", middle=is_wild)
    check(outcome, "middle", "stop")
    assert outcome.status != "completed"
    assert runaways
    for pid in runaways:
        wait_dead(pid)


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_search_can_be_stopped_everywhere(engine: str, tree: Path, reason: str) -> None:
    """At every line of a search, a stop gives a part of the matches, and leaves nothing open."""
    files = Files(tree)
    arguments = {"pattern": "needle", "path": "src"}
    whole = str(Stopped(files.search_files, arguments).at("end", "stop").content)
    before = open_files()

    def verify(outcome: ToolOutcome) -> None:
        assert isinstance(outcome.content, str)
        assert set(outcome.content.splitlines()) <= set(whole.splitlines())
        wait_until(lambda: open_files() == before)

    assert everywhere(lambda: (files.search_files, arguments), verify, reason) > 50
