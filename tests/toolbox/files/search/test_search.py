"""Searching files: with `rg` and without it, the same."""

from __future__ import annotations

import os
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
from halter.testing import Moment
from halter.toolbox.files.files import Files
from halter.toolbox.files.search import ripgrep
from halter.toolbox.files.search.gitignore import Ignore
from halter.toolbox.files.search.globs import compile_glob
from halter.toolbox.files.search.local import LocalSearch
from halter.toolbox.files.search.search import Query, search
from halter.toolbox.files.workspace import Workspace
from tests.support.processes import open_files
from tests.support.stopped_calls import call, call_stopped, check, every_moment, every_reason, stop_everywhere
from tests.support.waiting import wait_until


def searched(root: Path, query: Query, path: str = ".") -> Iterator[str]:
    return search(LocalSearch(Workspace(root), path), query)


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


def found(tree: Path, pattern: str, path: str = ".", **options: Any) -> list[str]:
    lines = "\n".join(searched(tree, Query(pattern, **options), path)).split("\n")
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
        (r"os$", {}, ["src/a.py:1"]),
        (r"nothing like it", {}, []),
    ],
)
def test_lines_are_found(tree: Path, pattern: str, options: dict[str, Any], expected: list[str]) -> None:
    """Lines are found by an expression, in the files that a glob names, and ignored files are left out."""
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


def test_what_is_left_out_is_told(tree: Path) -> None:
    """A search that ends early, or finds nothing, says so; a long line is cut."""
    files = Files(tree)

    def text(**arguments: Any) -> str:
        return str(call(files.search_files, **arguments).content)

    assert text(pattern="needle", limit=2).endswith("\n[the first 2 matches; there may be more: narrow the search]")
    assert "no line matches" in text(pattern="absent")
    assert "yyy [...]" in text(pattern="y needle")
    assert "no file name matches" in text(pattern="absent", kind="name")
    for arguments, words in (
        ({"pattern": "("}, "not a valid regular expression"),
        ({"pattern": ""}, "the pattern is empty"),
        ({"pattern": "x", "path": "absent"}, "no such file or directory: absent"),
        ({"pattern": "x", "path": "../"}, "leads out of the workspace"),
    ):
        outcome = call(files.search_files, **arguments)
        assert outcome.status == "failed"
        assert words in outcome.detail


def test_large_files_are_searched(tmp_path: Path) -> None:
    """In a directory, files of any size are searched; one that is named has to fit into memory."""
    (tmp_path / "large").write_bytes(b"hay\n" * 2_500_000 + b"needle\n")
    assert list(searched(tmp_path, Query("needle"))) == ["large:2500001: needle"]
    with pytest.raises(ValueError, match="larger than 8,000,000 bytes"):
        list(searched(tmp_path, Query("needle"), "large"))


@pytest.mark.parametrize(
    ("glob", "path"),
    [("*a" * 30 + "b", "sub/" + "a" * 250), ("**/a/" * 30 + "b", "a/" * 250), ("**/" * 30 + "*.b", "a/" * 250 + "c")],
)
def test_no_glob_takes_long(glob: str, path: str) -> None:
    """A line of a `.gitignore` with many stars stopped all threads of the process for minutes, and a stop with them."""
    program = (
        f"from halter.toolbox.files.search.globs import compile_glob; assert not compile_glob({glob!r}).match({path!r})"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*a*ab", "xaaxaab", True),
        ("*a*b*", "ab", True),
        ("a*b*c/*d*e", "aXbXc/dXe", True),
        ("a*b*c", "aXb/c", False),
        ("*[ab]?*b", "aab", True),
        ("**/a/**/a/b", "a/a/a/b", True),
        ("**/a*b/**/c*d*e/**", "x/ab/y/cdd/cde/z", True),
        ("**/a/**/b/c", "a/b/x/c", False),
        ("**/**/a", "a", True),
    ],
)
def test_a_glob_with_many_stars_matches_as_before(glob: str, path: str, matches: bool) -> None:
    """A star takes what the pieces after it leave, wherever these are."""
    assert bool(compile_glob(glob).match(path)) == matches


def test_a_glob_may_have_braces(tmp_path: Path) -> None:
    """`*.{py,js}` means either, for content and for names; a brace without a partner is a character."""
    for name in ("a.py", "b.js", "c.ts", "{x"):
        (tmp_path / name).write_text("foo\n")
    assert found(tmp_path, "foo", glob="*.{py,js}") == ["a.py:1", "b.js:1"]
    assert found(tmp_path, "{a,b}.{py,{js,ts}}", kind="name") == ["a.py", "b.js"]
    assert found(tmp_path, "{x", kind="name") == ["{x"]


def test_the_end_of_a_line_does_not_depend_on_its_ending(tmp_path: Path) -> None:
    """`$` matches before CRLF as before LF, in a directory and in one file."""
    (tmp_path / "a").write_bytes(b"foo\r\nbar\nfoo\n")
    assert found(tmp_path, "foo$") == found(tmp_path, "foo$", "a") == ["a:1", "a:3"]


def test_an_expression_that_is_not_supported_is_explained(tmp_path: Path) -> None:
    """Look-around, which could take for ever, is refused, and the error says so."""
    (tmp_path / "a").write_text("import os\n")
    with pytest.raises(ValueError, match="look-around, including look-ahead and look-behind, is not supported"):
        list(searched(tmp_path, Query("(?<=import )os")))


def test_a_file_that_is_not_there_any_more_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was listed and lies outside of the workspace by now, through a swapped directory, is not named."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").touch()
    root = tmp_path / "root"
    root.mkdir()
    (root / "gone").symlink_to(outside)
    monkeypatch.setattr(ripgrep, "files_below", lambda _directory, take: take("gone/secret") or True)
    assert found(root, "*", kind="name") == []


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


@pytest.mark.parametrize(
    ("rule", "path"),
    [("[[:digit:]]x", "1x"), ("a**b", "a/b"), ("a**b", "axb"), ("[a-", "[a-"), ("[\\]]y", "]y")],
)
def test_odd_rules_mean_what_they_mean_to_git(tmp_path: Path, rule: str, path: str) -> None:
    """Character classes, stars within a name, open brackets and escapes in a set are read as git reads them."""
    (tmp_path / ".gitignore").write_text(rule)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=30)
    command = ["git", "-c", f"safe.directory={tmp_path}", "-C", str(tmp_path), "check-ignore", "-q", "--no-index", path]
    is_ignored = subprocess.run(command, check=False, timeout=30).returncode == 0
    assert Ignore().plus(rule, "").hides_below(path, "") == is_ignored


def test_a_link_swapped_in_the_middle_shows_nothing_of_outside(tmp_path: Path) -> None:
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
def test_a_search_that_is_stopped_gives_its_matches(forest: Path, moment: Moment, reason: str, pattern: str) -> None:
    """Whenever a search is stopped, what it gives are matches, and neither a process nor a file is left."""
    before = open_files()
    outcome = call_stopped(
        Files(forest).search_files,
        moment,
        reason,
        middle=lambda: any(each.startswith(str(forest)) for each in open_files()),
        pattern=pattern,
        limit=1000,
    )
    check(outcome, moment, reason)
    assert isinstance(outcome.content, str)
    assert all(line.endswith(":21: needle") or line.startswith("[") for line in outcome.content.splitlines())
    wait_until(lambda: open_files() == before)


def test_an_expression_cannot_run_wild(tmp_path: Path) -> None:
    """An expression that takes other engines for ever takes no longer than reading."""
    (tmp_path / "b").write_text("a" * 60 + "!\n")
    assert found(tmp_path, "^(a+)+$") == []


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_search_can_be_stopped_everywhere(tree: Path, reason: str) -> None:
    """At every line of a search, a stop gives a part of the matches, and leaves nothing open."""
    files = Files(tree)
    arguments = {"pattern": "needle", "path": "src"}
    whole = str(call(files.search_files, **arguments).content)
    before = open_files()

    def verify(outcome: ToolOutcome) -> None:
        assert isinstance(outcome.content, str)
        assert set(outcome.content.splitlines()) <= set(whole.splitlines())
        wait_until(lambda: open_files() == before)

    assert stop_everywhere(lambda: (files.search_files, arguments), verify, reason) > 50
