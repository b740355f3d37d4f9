"""Patches: read, placed, applied to several files or to none."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halter import ToolOutcome
from halter.testing import Moment
from halter.toolbox.files.backend import LocalBackend
from halter.toolbox.files.files import Files
from halter.toolbox.files.patch.apply import apply_patch
from halter.toolbox.files.patch.hunks import apply_hunks, split_lines
from halter.toolbox.files.patch.parser import PatchError, parse
from halter.toolbox.files.workspace import Workspace
from tests.support.processes import open_files
from tests.support.stopped_calls import call, call_stopped, check, every_moment, every_reason, stop_everywhere


def block(old: str, new: str, name: str = "f") -> str:
    return f"{name}\n<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n"


def diff_of(a: str, b: str, context: int = 3, name: str = "f") -> str:
    """A unified diff as tools write it, with the mark for a missing line feed."""
    lines = difflib.unified_diff(split_lines(a), split_lines(b), f"a/{name}", f"b/{name}", n=context)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def patched(root: Path, changes: str, path: str | None = None) -> str:
    return apply_patch(LocalBackend(Workspace(root)), changes, path)


def applied(text: str, changes: str) -> str:
    (change,) = parse(changes, "f")
    return apply_hunks(text, change.hunks, "f").text


LINES = st.sampled_from(
    ["a", "b", "", " ", "-- x", "++ y", "@@ -1 +1 @@", "c\r", "\tindented", "--- a/f", "+++ b/f", "ä\u2028"]
)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINES, max_size=12), st.sampled_from(["", "\n"]))


@given(a=TEXTS, b=TEXTS, context=st.integers(0, 4))
def test_a_diff_turns_the_old_into_the_new(a: str, b: str, context: int) -> None:
    """For any two texts, what their diff makes of the first is the second, to the last character."""
    changes = diff_of(a, b, context)
    if changes:
        assert applied(a, changes) == b


@given(a=TEXTS, b=TEXTS, head=st.lists(st.sampled_from(["x\n", "y\n"]), max_size=5))
def test_a_diff_finds_its_lines_where_they_have_moved_to(a: str, b: str, head: list[str]) -> None:
    """Lines put in front of the old text are kept, and the diff is applied behind them, or refused: never elsewhere."""
    changes = diff_of(a, b, 100)
    if not changes or not a:
        return
    moved = "".join(head)
    try:
        assert applied(moved + a, changes) == moved + b
    except PatchError as error:
        assert "times" in str(error) or "behind" in str(error)


@given(text=st.text(), path=st.none() | st.just("f"))
def test_nonsense_is_refused_in_words(text: str, path: str | None) -> None:
    """Whatever a model writes, it is understood or refused with a text, and nothing else happens."""
    try:
        parse(text, path)
    except PatchError as error:
        assert str(error)


FILE = "def f():\n    one()\n    two()\n\n\ndef g():\n    one()\n    three()\n"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (block("    two()\n", "    2()\n"), FILE.replace("two()", "2()")),
        (block("    two()\n", ""), FILE.replace("    two()\n", "")),
        (block("    two()   \n", "    2()\n"), FILE.replace("two()", "2()")),
        (block("two()\n\n\ndef g():\n", "2()\n"), None),
        (block("def g():\n  one()\n  three()\n", "x\n"), None),
        (block("one()\nthree()\n", "one()\nif x:\n  3()\n"), FILE.replace("    three()", "    if x:\n      3()")),
        (
            "```diff\n--- a/f\n+++ b/f\n@@ -2,2 +2,2 @@\n     one()\n-    two()\n+    2()\n```",
            FILE.replace("two()", "2()"),
        ),
        ("--- f\n+++ f\n@@ ... @@\n     one()\n-    two()\n+    2()\n", FILE.replace("two()", "2()")),
        ("--- f\n+++ f\n@@ -900,7 +900,9 @@\n-    two()\n+    2()\n", FILE.replace("two()", "2()")),
        (
            "--- f\n+++ f\n@@ -1,3 +1,3 @@\n def f():\n     one()\n-    two()\n+    2()\n\n\n",
            FILE.replace("two()", "2()"),
        ),
        ("@@ -7,1 +7,1 @@\n-    one()\n+    1()\n", FILE[::-1].replace(")(eno", ")(1", 1)[::-1]),
    ],
)  # fmt: skip
def test_how_exactly_a_change_has_to_fit(tmp_path: Path, changes: str, expected: str | None) -> None:
    """White space at the ends and a common indentation may differ, counts may be wrong; indentation that differs from
    line to line may not.
    """
    (tmp_path / "f").write_text(FILE)
    try:
        patched(tmp_path, changes, "f")
    except PatchError:
        assert expected is None
    assert (tmp_path / "f").read_text() == (expected or FILE)


def test_line_endings_and_other_bytes_are_kept(tmp_path: Path) -> None:
    """A file with other line endings, without a last one, or with bytes that are no UTF-8 keeps them."""
    (tmp_path / "f").write_bytes(b"one\r\ntwo\r\nth\xffree")
    assert "white space at the ends of lines was ignored" in patched(tmp_path, block("two\n", "2\nzwei\n"))
    assert (tmp_path / "f").read_bytes() == b"one\r\n2\r\nzwei\r\nth\xffree"
    (tmp_path / "f").write_bytes(b"one\nlast")
    patched(tmp_path, block("last\n", "final\n"))
    assert (tmp_path / "f").read_bytes() == b"one\nfinal"
    patched(tmp_path, "--- f\n+++ f\n@@ -2 +2,2 @@\n final\n+more\n")
    assert (tmp_path / "f").read_bytes() == b"one\nfinal\nmore"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (block("    tow()\n", ""), ["f: these lines do not occur", "|     tow()",
            "The nearest lines are", "     3\t    two()"]),
        (block("zzzzzzz\n", ""), ["There is nothing similar"]),
        (block("    one()\n", ""), ["occur 2 times, at lines 2, 7; add more"]),
        (block("", "x\n"), ["the patch creates it, but it already exists"]),
        (block("x\n", "y\n", "missing"), ["missing: no such file"]),
        ("<<<<<<< SEARCH\nx\n=======\ny\n", ["has no '>>>>>>> REPLACE'"]),
        (block("=======\n", "y\n"), ["has 2 lines '======='", "unified diff"]),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-nope\n+yes\n", ["| nope"]),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n", ["this hunk is empty"]),
        ("--- a/f\n+++ b/f\n-x\n", ["belongs to no hunk"]),
        ("--- a/f\n+++ b/f\n@@ -99,0 +99 @@\n+x\n", ["has 8 lines"]),
        ("--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-def f():\n", ["does not contain all of its lines"]),
        ("diff --git a/f b/f\nBinary files a/f and b/f differ\n", ["binary changes"]),
        ("diff --git a/f b/g\nsimilarity index 90%\ncopy from f\ncopy to g\n", ["copies are not supported"]),
        ("diff --git a/f b/g\nrename from f\nrename to other\n", ["other: the patch creates it, but"]),
        ("please change it", ["neither a unified diff"]),
        (block("x\n", "y\n", "../out"), ["leads out of the workspace"]),
        (block("x\n", "y\n", "d"), ["d is a directory"]),
        (block("x\n", "y\n", "binary"), ["binary file"]),
        (block("x\n", "y\n", "huge"), ["the limit for patches is 4,000,000"]),
        ("@@ -1 +1 @@\n-x\n+y\n", ["does not name its file"]),
        ("<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\n", ["does not name its file"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_explained(tmp_path: Path, changes: str, words: list[str]) -> None:
    """A change that has no place, or more than one, says what is there instead; no file is touched."""
    (tmp_path / "f").write_text(FILE)
    (tmp_path / "other").write_text("x\n")
    (tmp_path / "d").mkdir()
    (tmp_path / "binary").write_bytes(b"\0")
    (tmp_path / "huge").write_bytes(b"x\n" * 2_000_001)
    good = (
        block("x\n", "changed\n", "other") if "<<<" in changes else "--- other\n+++ other\n@@ -1 +1 @@\n-x\n+changed\n"
    )
    is_alone = "rename" in changes or words[0].startswith(("does not name", "neither"))
    outcome = call(Files(tmp_path).patch, changes=changes if is_alone else good + changes)
    assert outcome.status == "failed"
    for each in words:
        assert each in outcome.detail
    assert (tmp_path / "f").read_text() == FILE
    assert (tmp_path / "other").read_text() == "x\n"


def test_files_are_made_moved_and_deleted(tmp_path: Path) -> None:
    """A diff of several files can make, change, move and delete them; nothing else is left."""
    for name in ("gone", "moved", "kept"):
        (tmp_path / name).write_text("one\ntwo\n")
    (tmp_path / "moved").chmod(0o700)
    told = patched(
        tmp_path,
        "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"
        "diff --git a/moved b/there\nsimilarity index 50%\nrename from moved\nrename to there/it\n"
        "--- a/moved\n+++ b/there/it\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
        'diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ "b/new/\\303\\244"\n@@ -0,0 +1 @@\n+made\n'
        "diff --git a/empty b/empty\nnew file mode 100644\nindex 0000000..e69de29\n"
        "diff --git a/kept b/kept\n--- a/kept\t2024-01-01\n"
        "+++ b/kept\t2024-01-01\n@@ -1,2 +1,2 @@\n-one\n+1\n two\n-- \n2.40\n",
    )
    assert told.splitlines() == [
        "gone: deleted",
        "moved: moved to there/it",
        "there/it: +1 -1",
        "new/ä: created",
        "empty: created",
        "kept: +1 -1",
    ]
    assert (tmp_path / "there/it").stat().st_mode & 0o777 == 0o700
    found = {str(each.relative_to(tmp_path)): each.read_text() for each in tmp_path.rglob("*") if each.is_file()}
    assert found == {"there/it": "one\n2\n", "new/ä": "made\n", "empty": "", "kept": "1\ntwo\n"}
    assert "the files already have this content" in patched(tmp_path, block("two\n", "two\n", "kept"))


def test_several_blocks_and_files(tmp_path: Path) -> None:
    """Blocks without a name belong to the file of the block before; later blocks see what earlier ones did."""
    (tmp_path / "f").write_text("one\n")
    told = patched(
        tmp_path, block("one\n", "two\n", "`f`:") + block("two\n", "three\n", "") + block("", "hello\n", "### g")
    )
    assert told.splitlines() == ["f: +2 -2", "g: created"]
    assert (tmp_path / "f").read_text() == "three\n"
    assert (tmp_path / "g").read_text() == "hello\n"


def test_files_that_cannot_be_put_back_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that became full in the middle of a patch, the model was told that nothing had been changed."""
    for name in "abc":
        (tmp_path / name).write_text("old\n")
    replace, count = os.replace, 0

    def fails(*args: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count > 2:
            raise OSError(28, "No space left on device")
        replace(*args, **options)

    monkeypatch.setattr(os, "replace", fails)
    outcome = call(Files(tmp_path).patch, changes="".join(block("old\n", "new\n", name) for name in "abc"))
    assert outcome.status == "failed"
    assert "No space left on device" in outcome.detail
    assert "These files were changed and could not be put back: a, b" in outcome.detail
    assert "Nothing was changed" not in outcome.detail
    assert [(tmp_path / name).read_text() for name in "abc"] == ["new\n", "new\n", "old\n"]


def test_an_error_in_the_middle_takes_back_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the third of three files cannot take its place, the first two are as they were."""
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text("one\n")
    (tmp_path / "b").chmod(0o640)
    replace, count = os.replace, 0

    def fails(*args: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise OSError(5, "the disk is broken")
        replace(*args, **options)

    monkeypatch.setattr(os, "replace", fails)
    changes = (
        "--- /dev/null\n+++ new/x\n@@ -0,0 +1 @@\n+x\n--- b\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"
        "--- c\n+++ c\n@@ -1 +1 @@\n-one\n+two\n"
    )
    with pytest.raises(PatchError, match="the disk is broken\nNothing was changed"):
        patched(tmp_path, changes)
    assert {name: (tmp_path / name).read_text() for name in os.listdir(tmp_path)} == dict.fromkeys("abc", "one\n")
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o640


def test_a_file_that_others_changed_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our read and our write somebody else has written: their work stays."""
    (tmp_path / "f").write_text("one\n")
    find = Workspace.find

    def and_write(self: Workspace, path: str, *, make_parents: bool = False) -> Any:
        if make_parents:
            (tmp_path / "f").write_text("theirs\n")
        return find(self, path, make_parents=make_parents)

    monkeypatch.setattr(Workspace, "find", and_write)
    with pytest.raises(PatchError, match="was changed in the meantime"):
        patched(tmp_path, block("one\n", "two\n"))
    assert (tmp_path / "f").read_text() == "theirs\n"


TWO = "--- a\n+++ a\n@@ -1 +1 @@\n-one\n+two\n--- /dev/null\n+++ new/b\n@@ -0,0 +1 @@\n+made\n"


@pytest.mark.parametrize("reason", ["stop", "steer"])
def test_a_patch_is_whole_or_not_done(tmp_path: Path, reason: str) -> None:
    """At every line of a patch of two files, a stop leaves both as they were or both changed, and nothing else."""
    files = Files(tmp_path)

    def prepare() -> tuple[Any, dict[str, Any]]:
        (tmp_path / "a").write_text("one\n")
        if (tmp_path / "new").exists():
            (tmp_path / "new/b").unlink()
            (tmp_path / "new").rmdir()
        return files.patch, {"changes": TWO}

    def verify(outcome: ToolOutcome) -> None:
        is_done = (tmp_path / "a").read_text() == "two\n"
        assert sorted(os.listdir(tmp_path)) == (["a", "new"] if is_done else ["a"])
        if is_done:
            assert os.listdir(tmp_path / "new") == ["b"]
            assert (tmp_path / "new/b").read_text() == "made\n"
        if outcome.status in ("completed", "partial"):
            assert ("new/b: created" in outcome.content) == is_done
            assert ("Nothing was changed" in outcome.content) == (not is_done)

    before = open_files()
    assert stop_everywhere(prepare, verify, reason) > 200
    assert open_files() == before


@every_reason
@every_moment
def test_a_patch_that_is_stopped(tmp_path: Path, moment: Moment, reason: str) -> None:
    """Whenever a patch of many files is stopped, all are old or all are new."""
    changes = ""
    for number in range(20):
        (tmp_path / f"f{number}").write_text("one\n" + "x\n" * 20_000)
        changes += f"--- f{number}\n+++ f{number}\n@@ -1 +1 @@\n-one\n+two\n"
    outcome = call_stopped(Files(tmp_path).patch, moment, reason, changes=changes)
    check(outcome, moment, reason)
    firsts = {(tmp_path / name).read_text()[:3] for name in os.listdir(tmp_path)}
    assert firsts == {"two"} if outcome.status == "completed" else firsts in ({"one"}, {"two"})
    assert len(os.listdir(tmp_path)) == 20
