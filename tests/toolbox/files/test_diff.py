"""The diffs that people are shown of a write or a patch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from halter.toolbox.files.diff import MAX_COMPARED, diff_text

LONG = "".join(f"line {number}\n" for number in range(5_000))
CHANGES = {
    "a line in the middle": (LONG, LONG.replace("line 2500\n", "other\nlines\n")),
    "two places": (LONG, LONG.replace("line 10\n", "").replace("line 4000\n", "more\n")),
    "the first line": ("1\n2\n3\n4\n5\n", "0\n2\n3\n4\n5\n"),
    "lines at the end": ("1\n2\n", "1\n2\n3\n4\n"),
    "everything of a long file": (LONG, LONG.replace("line", "row")),
    "lines that are all the same": ("\n" * 300, "\n" * 200 + "x\n" + "\n" * 100),
}


@pytest.mark.parametrize("name", CHANGES)
def test_git_can_apply_it(name: str, tmp_path: Path) -> None:
    """A diff that is shown whole is what `git apply` needs to make the change."""
    before, after = CHANGES[name]
    diff = diff_text("file", before.encode(), after.encode())
    if "more lines" in diff:
        assert diff.splitlines()[-1] == "\\ 9001 more lines: +5000 -4001"
        return
    (tmp_path / "file").write_text(before)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff.encode(), check=True)
    assert (tmp_path / "file").read_text() == after


def test_files_that_come_and_go() -> None:
    """A new file, a deleted one and one that was moved have both names."""
    assert diff_text("f", None, b"1\n") == "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+1\n"
    assert diff_text("f", b"1\n", None) == "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
    assert diff_text("new", b"1\n", b"1\n", moved_from="old") == "--- a/old\n+++ b/new\n"
    assert diff_text("f", None, b"") == "--- /dev/null\n+++ b/f\n"


@pytest.mark.parametrize("data", [b"\0\1", b"x" * (MAX_COMPARED + 1)])
def test_no_diff(data: bytes) -> None:
    """There is none of a binary file, of a very long one, and of one that has not changed."""
    assert not diff_text("f", b"1\n", data)
    assert not diff_text("f", b"1\n", b"1\n")
