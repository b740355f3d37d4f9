"""Checkpoints of workspaces, also of hostile ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from halter import CancellationToken, Cancelled
from halter.errors import CheckpointFailed
from halter.testing import interrupt_everywhere
from halter.toolbox.files.checkpoints.checkpoints import Checkpoints
from halter.toolbox.files.checkpoints.records import key
from halter.tools.file_history import RestoredFiles
from tests.support.waiting import wait_until
from tests.support.without_capabilities import without_capabilities

S, T = "session", "turn"
Files = dict[str, bytes]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def kept(root: Path, tmp_path: Path) -> Checkpoints:
    return Checkpoints(root, folder=tmp_path / "data")


def turn(kept: Checkpoints, change: Callable[[], object], *paths: Path, name: str = T) -> None:
    """A turn that makes a change."""
    state = kept.before_call(S, name, [str(path) for path in paths])
    assert "no checkpoint" not in state.note
    change()
    kept.end_turn(S, name)


def git(folder: Path, *arguments: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": "/", "GIT_CONFIG_NOSYSTEM": "1"}
    argv = ["git", "-c", "user.name=x", "-c", "user.email=x", "-C", str(folder), *arguments]
    return subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout


def test_changes_creations_and_deletions_are_restored(root: Path, kept: Checkpoints) -> None:
    """Contents come back byte for byte: line ends, zeros, an empty file, a name in a folder that is gone."""
    contents: Files = {"crlf.txt": b"a\r\nb\r\n", "zero.bin": b"\0\1\2", "empty": b"", "folder/deep/x": b"x"}
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)

    def change() -> None:
        (root / "crlf.txt").write_bytes(b"a\nb\n")
        (root / "zero.bin").unlink()
        (root / "empty").write_bytes(b"full")
        shutil.rmtree(root / "folder")
        (root / "new").write_bytes(b"new")

    turn(kept, change)
    result = kept.restore(S, T)
    assert result == RestoredFiles(["crlf.txt", "empty", "folder/deep/x", "new", "zero.bin"])
    assert {name: (root / name).read_bytes() for name in contents} == contents
    assert not (root / "new").exists()


def test_what_somebody_else_changed_since_is_kept_and_named(root: Path, kept: Checkpoints) -> None:
    """A file that was changed after the turn stays, and so does one that was changed between two turns."""
    for name in ("mine", "theirs", "between"):
        (root / name).write_text("old")
    turn(kept, lambda: [(root / name).write_text("turn") for name in ("mine", "theirs", "made", "gone")])
    (root / "between").write_text("user")
    (root / "theirs").write_text("user")
    (root / "made").write_text("user")
    (root / "gone").unlink()
    result = kept.restore(S, T)
    assert result.restored == ["mine"]
    assert result.kept == {"theirs": "changed since", "made": "changed since"}
    assert [(root / name).read_text() for name in ("mine", "theirs", "between", "made")] == ["old", *["user"] * 3]


def test_the_last_of_two_turns_is_restored_to_the_first(root: Path, kept: Checkpoints) -> None:
    """Changes between two turns belong to neither of them."""
    (root / "a").write_text("0")
    turn(kept, lambda: (root / "a").write_text("1"), name="one")
    (root / "user").write_text("u")
    turn(kept, lambda: (root / "a").write_text("2"), name="two")
    assert kept.restore(S, "two").restored == ["a"]
    assert (root / "a").read_text() == "1"
    assert kept.restore(S, "one").restored == ["a"]
    assert (root / "a").read_text() == "0"
    assert (root / "user").read_text() == "u"


def test_a_restore_can_be_undone_and_done_again(root: Path, kept: Checkpoints) -> None:
    """Undoing brings the turn's files back; undoing once more takes them away; what others change stays."""
    (root / "a").write_text("old")
    turn(kept, lambda: [(root / name).write_text("new") for name in ("a", "b")])
    kept.restore(S, T)
    assert kept.undo_restore(S).restored == ["a", "b"]
    assert (root / "a").read_text() == (root / "b").read_text() == "new"
    assert kept.undo_restore(S).restored == ["a", "b"]
    assert (root / "a").read_text() == "old"
    (root / "a").write_text("user")
    assert kept.undo_restore(S).kept == {"a": "changed since"}
    assert kept.undo_restore("other").note == "there is no rollback of files to undo"


def stopped_restore(root: Path, kept: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore of a turn that changed "a" and "b", stopped after the first of them."""
    for name in ("a", "b", "theirs"):
        (root / name).write_text("old")
    turn(kept, lambda: [(root / name).write_text("turn") for name in ("a", "b")])
    token = CancellationToken()
    replace = os.replace

    def replace_and_stop(source: str, target: str, **options: int) -> None:
        replace(source, target, **options)
        if target == "a":
            token.cancel("stop")

    with monkeypatch.context() as patched, token.bind():
        patched.setattr(os, "replace", replace_and_stop)
        with pytest.raises(Cancelled):
            kept.restore(S, T)
    assert [(root / name).read_text() for name in ("a", "b")] == ["old", "turn"]


def test_undoing_a_stopped_restore_keeps_what_the_user_did_since(
    root: Path, kept: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who stopped a rollback, worked on and then undid it lost the new files and changes."""
    stopped_restore(root, kept, monkeypatch)
    (root / "theirs").write_text("user")
    (root / "new").write_text("user")
    assert kept.undo_restore(S).restored == ["a"]
    assert kept.undo_restore(S).restored == ["a"]
    contents = {path.name: path.read_text() for path in root.iterdir()}
    assert contents == {"a": "old", "b": "turn", "theirs": "user", "new": "user"}


def test_undoing_a_restore_that_was_completed_later_keeps_the_users_own_file(
    root: Path, kept: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that the user changed between a stopped rollback and the next one was overwritten by the undo."""
    stopped_restore(root, kept, monkeypatch)
    (root / "a").write_text("user")
    assert kept.restore(S, T) == RestoredFiles(["b"], {"a": "changed since"})
    assert kept.undo_restore(S).restored == ["b"]
    assert [(root / name).read_text() for name in ("a", "b")] == ["user", "turn"]


def test_a_restore_whose_turn_is_forgotten_is_not_undone(root: Path, tmp_path: Path) -> None:
    """Without the record of the turn it is not known which changes were the restore's: nothing is changed."""
    kept = Checkpoints(root, folder=tmp_path / "data", max_turns=1)
    (root / "a").write_text("old")
    turn(kept, lambda: (root / "a").write_text("new"))
    kept.restore(S, T)
    kept.tidy()
    with pytest.raises(CheckpointFailed, match="no longer known"):
        kept.undo_restore(S)
    assert (root / "a").read_text() == "old"


def test_a_restore_that_finds_nothing_to_do_keeps_the_undo(root: Path, kept: Checkpoints) -> None:
    """A rollback that is repeated because the first one could not be recorded must not make that final."""
    (root / "a").write_text("old")
    turn(kept, lambda: (root / "a").write_text("new"))
    assert kept.restore(S, T).restored == ["a"]
    assert kept.restore(S, T) == RestoredFiles()
    assert kept.undo_restore(S).restored == ["a"]
    assert (root / "a").read_text() == "new"


def test_a_repeated_restore_that_keeps_a_file_keeps_the_undo(root: Path, kept: Checkpoints) -> None:
    """One file that somebody else had changed was enough for a repeated rollback to make the first one final."""
    for name in ("a", "theirs"):
        (root / name).write_text("old")
    turn(kept, lambda: [(root / name).write_text("new") for name in ("a", "theirs")])
    (root / "theirs").write_text("user")
    first = RestoredFiles(["a"], {"theirs": "changed since"})
    assert [kept.restore(S, T), kept.restore(S, T)] == [first, RestoredFiles(kept=first.kept)]
    assert kept.undo_restore(S).restored == ["a"]
    assert (root / "a").read_text() == "new"


def test_the_diff_is_shown_without_changing_anything(root: Path, kept: Checkpoints) -> None:
    """A diff has the turn's changes, says what would be kept, and is bounded."""
    for name in ("text", "binary", "large", "theirs"):
        (root / name).write_bytes(b"old\n")
    contents = {"text": b"new\n", "binary": b"\0", "large": b"x\n" * 3000, "theirs": b"turn\n", "no end": b"x"}
    turn(kept, lambda: [(root / name).write_bytes(data) for name, data in contents.items()])
    (root / "theirs").write_bytes(b"user\n")
    diff = kept.diff(S, T)
    assert "--- a/text\n+++ b/text\n@@ -1 +1 @@\n-old\n+new\n" in diff.text
    assert "--- /dev/null\n+++ b/no end\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n" in diff.text
    assert "Binary file binary was changed" in diff.text
    assert "Large file large was changed: 1 lines before, 3000 after" in diff.text
    found = {each.path: (each.change, each.kept) for each in diff.files}
    assert found["theirs"] == ("changed", "changed since")
    assert found["no end"] == ("created", "")
    assert (root / "text").read_bytes() == b"new\n"
    assert kept.diff(S, "unknown").files == []


def test_modes_and_links_are_restored(root: Path, kept: Checkpoints, tmp_path: Path) -> None:
    """The executable bit comes back, private files stay private, links are links and are never followed."""
    outside = tmp_path / "outside"
    outside.write_text("outside")
    script, private = root / "script", root / "private"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    private.write_text("old")
    private.chmod(0o600)
    (root / "link").symlink_to("script")
    (root / "file").write_text("file")
    (root / "away").symlink_to(outside)

    def change() -> None:
        script.chmod(0o644)
        private.write_text("new")
        (root / "link").unlink()
        (root / "link").symlink_to(outside)
        (root / "file").unlink()
        (root / "file").symlink_to(outside)
        (root / "away").unlink()
        (root / "away").write_text("a file")

    turn(kept, change)
    assert kept.restore(S, T).restored == ["away", "file", "link", "private", "script"]
    assert script.stat().st_mode & 0o777 == 0o755
    assert private.stat().st_mode & 0o777 == 0o600
    assert (root / "link").readlink() == Path("script")
    assert (root / "away").readlink() == outside
    assert not (root / "file").is_symlink()
    assert (root / "file").read_text() == "file"
    assert outside.read_text() == "outside"


def test_a_folder_and_a_file_change_places(root: Path, kept: Checkpoints, tmp_path: Path) -> None:
    """A file that became a folder, a folder that became a file, and one that became a link out of the workspace."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("outside")
    (root / "file").write_text("file")
    for name in ("folder", "linked"):
        (root / name).mkdir()
        (root / name / "x").write_text(name)

    def change() -> None:
        (root / "file").unlink()
        (root / "file").mkdir()
        (root / "file" / "x").write_text("turn")
        for name in ("folder", "linked"):
            shutil.rmtree(root / name)
        (root / "folder").write_text("turn")
        (root / "linked").symlink_to(outside)

    turn(kept, change)
    result = kept.restore(S, T)
    assert result.kept == {}
    assert (root / "file").read_text() == "file"
    assert (root / "folder" / "x").read_text() == "folder"
    assert (root / "linked" / "x").read_text() == "linked"
    assert (outside / "x").read_text() == "outside"


def test_a_link_that_is_put_in_the_way_later_is_not_followed(root: Path, kept: Checkpoints, tmp_path: Path) -> None:
    """A restore does not write through a link, whoever has made it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "folder").mkdir()
    (root / "folder" / "x").write_text("old")
    (root / "folder" / "y").write_text("old")

    def change() -> None:
        (root / "folder" / "x").write_text("turn")
        (root / "folder" / "y").unlink()

    turn(kept, change)
    shutil.rmtree(root / "folder")
    (outside / "x").write_text("turn")
    (root / "folder").symlink_to(outside)
    result = kept.restore(S, T)
    assert result.restored == []
    assert set(result.kept) == {"folder/x", "folder/y"}
    assert sorted(os.listdir(outside)) == ["x"]
    assert (outside / "x").read_text() == "turn"


def test_names_may_have_any_bytes(root: Path, kept: Checkpoints) -> None:
    """Newlines, quotes, a leading dash, a backslash and bytes that are not UTF-8."""
    names = [b"new\nline", b'quo"te', b"-dash", b"back\\slash", b"\xff\xfe", b" space ", b"git~1"]
    for name in names:
        Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_text("old")

    def change() -> None:
        for name in names:
            Path(os.fsdecode(os.fsencode(root) + b"/" + name)).write_text("new")

    turn(kept, change)
    assert len(kept.diff(S, T).files) == len(names)
    result = kept.restore(S, T)
    assert (len(result.restored), result.kept) == (len(names), {})
    assert all(name.isprintable() for name in result.restored)
    assert {path.read_text() for path in root.iterdir()} == {"old"}


def test_attributes_run_no_programs_and_convert_nothing(
    root: Path, kept: Checkpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Filters, line ends and keywords of `.gitattributes`, hooks, and settings of the user have no effect."""
    home = tmp_path / "home"
    (home / ".config" / "git").mkdir(parents=True)
    ran = tmp_path / "ran"
    filters = f'[filter "evil"]\n\tclean = touch {ran}; cat\n\tsmudge = touch {ran}; cat\n\trequired = true\n'
    (home / ".gitconfig").write_text(f"{filters}[core]\n\tfsmonitor = touch {ran}\n\tautocrlf = true\n")
    (home / ".config" / "git" / "ignore").write_text("*\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "no-index"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {ran}")
    attributes = "* filter=evil text eol=crlf ident working-tree-encoding=UTF-16 diff=evil\n[attr]evil filter=evil\n"
    (root / ".gitattributes").write_text(attributes)
    git_folder = root / ".git"
    subprocess.run(["git", "init", "-q", str(root)], check=True, env={"PATH": os.environ["PATH"], "HOME": "/"})
    with (git_folder / "config").open("a") as file:
        file.write(filters)
    for name in ("post-index-change", "reference-transaction"):
        (git_folder / "hooks").mkdir(exist_ok=True)
        (git_folder / "hooks" / name).write_text(f"#!/bin/sh\ntouch {ran}\n")
        (git_folder / "hooks" / name).chmod(0o755)
    data = b"a\nb\r\n$Id$\n"
    (root / "a").write_bytes(data)
    turn(kept, lambda: (root / "a").write_bytes(b"new"))
    assert kept.diff(S, T).files
    assert kept.restore(S, T).restored == ["a"]
    assert (root / "a").read_bytes() == data
    assert not ran.exists()
    assert not (tmp_path / "nowhere").exists()


def test_a_git_in_the_workspace_is_not_run(
    root: Path, kept: Checkpoints, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A program that the model has put first on the PATH, as in a virtual environment of the workspace, is not ours."""
    fake = root / ".venv" / "bin" / "git"
    fake.parent.mkdir(parents=True)
    fake.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    fake.chmod(0o755)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to(fake)
    monkeypatch.setenv("PATH", f"{fake.parent}:{tmp_path / 'bin'}:.venv/bin:{os.environ['PATH']}")
    monkeypatch.chdir(root)
    (root / "a").write_text("old")
    turn(kept, lambda: (root / "a").write_text("new"))
    assert kept.restore(S, T).restored == ["a"]
    assert not (tmp_path / "ran").exists()


def test_an_ignore_file_that_never_ends_does_not_block(root: Path, tmp_path: Path) -> None:
    """A pipe named `.gitignore` makes Git wait; the time limit ends that, for checkpoints and for a rollback."""
    patient = Checkpoints(root, folder=tmp_path / "data")
    kept = Checkpoints(root, folder=tmp_path / "data", timeout=0.5)
    (root / "a").write_text("old")
    turn(patient, lambda: (root / "a").write_text("new"))
    os.mkfifo(root / ".gitignore")
    assert "took longer" in kept.before_call(S, "next", []).note
    with pytest.raises(CheckpointFailed, match="took longer"):
        kept.restore(S, T)
    (root / ".gitignore").unlink()
    assert patient.restore(S, T).restored == ["a"]


def test_the_users_own_repository_is_not_touched(root: Path, kept: Checkpoints) -> None:
    """The index, the staged state and the refs of the workspace's repository stay as they are; so do ignored files."""
    git(root, "init", "-q")
    (root / ".gitignore").write_text("ignored\n")
    (root / ".git" / "info").mkdir(exist_ok=True)
    (root / ".git" / "info" / "exclude").write_text("excluded\n")
    for name in ("a", "ignored", "excluded", ".env"):
        (root / name).write_text("old")
    git(root, "add", "a")
    git(root, "commit", "-q", "-m", "x")
    (root / "a").write_text("staged")
    git(root, "add", "a")
    before = {path: path.stat().st_mtime_ns for path in (root / ".git").rglob("*")}
    turn(kept, lambda: [(root / name).write_text("new") for name in ("a", "ignored", "excluded", ".env")])
    assert kept.restore(S, T).restored == ["a"]
    assert {path: path.stat().st_mtime_ns for path in (root / ".git").rglob("*")} == before
    assert (root / "a").read_text() == "staged"
    assert (root / "ignored").read_text() == (root / "excluded").read_text() == (root / ".env").read_text() == "new"


def test_nested_repositories_and_special_files_are_left_out(root: Path, tmp_path: Path) -> None:
    """Nested repositories, pipes and large files are not covered, and the diff says so."""
    kept = Checkpoints(root, folder=tmp_path / "data", max_file_size=1_000_000)
    inner = root / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "x").write_text("old")
    git(inner, "add", "x")
    git(inner, "commit", "-q", "-m", "x")
    os.mkfifo(root / "pipe")
    (root / "large").write_bytes(b"x" * 1_000_001)
    (root / "grows").write_text("small")
    (root / "becomes a pipe").write_text("file")

    def change() -> None:
        (inner / "x").write_text("new")
        (root / "grows").write_bytes(b"x" * 1_000_001)
        (root / "becomes a pipe").unlink()
        os.mkfifo(root / "becomes a pipe")

    turn(kept, change)
    assert kept.diff(S, T).note == "not covered: 2 over 1 MB, 1 nested Git repositories"
    result = kept.restore(S, T)
    assert result.restored == []
    assert set(result.kept) == {"grows", "becomes a pipe"}
    assert (inner / "x").read_text() == "new"
    assert (root / "grows").stat().st_size == 1_000_001


@pytest.mark.parametrize("case", ["ignored", "excluded", "shrinks", "no repository any more"])
def test_what_was_left_out_before_the_turn_is_not_removed(case: str, root: Path, tmp_path: Path) -> None:
    """A file of the user that only became part of a snapshot during the turn was deleted by the rollback as new."""
    kept = Checkpoints(root, folder=tmp_path / "data", max_file_size=20)
    git(root, "init", "-q")
    exclude = root / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text("excluded\n")
    (root / ".gitignore").write_text("notes/\n*.log\n")
    git(root, "init", "-q", "vendor")
    users = ["notes/deep/diary", "logs/a.log", "excluded", "large", "vendor/lib.c", ".env", "b\udcff.log"]
    for name in users:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("user's")
    (root / "large").write_text("x" * 21)
    left_out = {
        "ignored": ["b\\xff.log", "logs/a.log", "notes/deep/diary"],
        "excluded": ["excluded"],
        "shrinks": ["large"],
        "no repository any more": ["vendor/lib.c"],
    }[case]

    def change() -> None:
        (root / "logs" / "made").write_text("turn")
        if case == "ignored":
            (root / ".gitignore").write_text("")
        elif case == "excluded":
            exclude.write_text("")
        elif case == "shrinks":
            (root / "large").write_text("turn")
        else:
            shutil.rmtree(root / "vendor" / ".git")

    turn(kept, change)
    reason = "its earlier content was not kept"
    assert {each.path: each.kept for each in kept.diff(S, T).files if each.kept} == dict.fromkeys(left_out, reason)
    result = kept.restore(S, T)
    assert result.restored == ([".gitignore"] if case == "ignored" else []) + ["logs/made"]
    assert result.kept == dict.fromkeys(left_out, reason)
    assert all((root / name).exists() for name in users)


def test_records_of_earlier_versions_can_be_restored(root: Path, kept: Checkpoints) -> None:
    """A record without a list of what was left out is read, and restored as before."""
    (root / "a").write_text("old")
    turn(kept, lambda: (root / "a").write_text("new"))
    record = next(kept._folder.glob("*/turns/*/*.json"))  # type: ignore[union-attr]
    fields = json.loads(record.read_text())
    del fields["left_out"]
    record.write_text(json.dumps(fields))
    assert kept.restore(S, T).restored == ["a"]


def test_unreadable_files_are_left_out(root: Path, kept: Checkpoints) -> None:
    """A file that cannot be read does not keep the others from being kept."""
    (root / "secret").write_text("x")
    (root / "secret").chmod(0)
    (root / "a").write_text("old")
    without_capabilities(lambda: turn(kept, lambda: (root / "a").write_text("new")))
    assert without_capabilities(lambda: kept.diff(S, T)).note == "not covered: 1 unreadable"
    assert without_capabilities(lambda: kept.restore(S, T)).restored == ["a"]


def test_the_data_is_private(root: Path, kept: Checkpoints, tmp_path: Path) -> None:
    """Nobody else may read the copies, and nothing of it is in the workspace."""
    (root / "a").write_text("old")
    turn(kept, lambda: None)
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert all(each.stat().st_mode & 0o077 == 0 for each in (tmp_path / "data").iterdir())
    assert os.listdir(root) == ["a"]


@pytest.mark.parametrize("reason", ["no git", "home", "above home", "data inside"])
def test_without_git_what_our_tools_name_is_kept(
    reason: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Git, and in a workspace that is the home folder, copies of the named files are kept, and that is said."""
    folder = tmp_path / "data"
    workspace = root
    if reason == "no git":
        monkeypatch.setenv("PATH", str(root))
    elif reason == "data inside":
        folder = root / "data"
    else:
        monkeypatch.setenv("HOME", str(root))
        workspace = root if reason == "home" else root.parent
    kept = Checkpoints(workspace, folder=folder)
    (root / "named").write_text("old")
    (root / "other").write_text("old")

    def change() -> None:
        for name in ("named", "other", "made"):
            (root / name).write_text("new")

    turn(kept, change, root / "named", root / "made", Path("/etc/passwd"))
    result = kept.restore(S, T)
    assert [Path(name).name for name in result.restored] == ["made", "named"]
    assert "changes by commands are not covered" in result.note
    assert (root / "named").read_text() == "old"
    assert (root / "other").read_text() == "new"
    assert not (root / "made").exists()
    assert len(kept.undo_restore(S).restored) == 2
    assert (root / "made").read_text() == "new"


def test_without_git_a_large_file_does_not_keep_the_others_from_being_restored(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a turn that overwrote one large file, neither its diff nor its rollback worked, for none of its files."""
    monkeypatch.setenv("PATH", str(tmp_path))
    kept = Checkpoints(root, folder=tmp_path / "data", max_file_size=10)
    names = ("large", "small", "made", "grows")
    (root / "large").write_text("more than ten")
    (root / "small").write_text("old")
    (root / "grows").write_text("old")

    def change() -> None:
        for name in names[:3]:
            (root / name).write_text("new")
        (root / "grows").write_text("more than ten")

    turn(kept, change, *(root / name for name in names))
    reason = "its earlier content was not kept"
    diff = kept.diff(S, T)
    expected = {"large": reason, "small": "", "made": "", "grows": "changed since"}
    assert {each.path: each.kept for each in diff.files} == expected
    result = kept.restore(S, T)
    assert (result.restored, result.kept) == (["made", "small"], {"large": reason, "grows": "changed since"})
    assert (root / "large").read_text() == "new"
    assert kept.undo_restore(S).restored == ["made", "small"]


def test_a_checkpoint_that_takes_too_long_is_given_up(root: Path, tmp_path: Path) -> None:
    """The turn goes on, and the diff and the rollback say that there is no checkpoint."""
    kept = Checkpoints(root, folder=tmp_path / "data", timeout=0.0)
    state = kept.before_call(S, T, [])
    assert state == (True, "no checkpoint of the files: it took longer than 0 s")
    kept.end_turn(S, T)
    assert "no checkpoint" in kept.diff(S, T).note
    assert "no checkpoint" in kept.restore(S, T).note


def test_a_workspace_that_is_too_large_is_given_up(root: Path, tmp_path: Path) -> None:
    """Nothing is copied if it would be more than the limit."""
    kept = Checkpoints(root, folder=tmp_path / "data", max_size=1_000_000)
    (root / "a").write_bytes(b"x" * 1_000_001)
    assert kept.before_call(S, T, []).note == "no checkpoint of the files: the workspace has more than 1 MB to keep"


def test_the_state_at_the_end_is_taken_later_if_need_be(root: Path, kept: Checkpoints, tmp_path: Path) -> None:
    """After a crash the present state is the turn's, and results say so."""
    (root / "a").write_text("old")
    kept.before_call(S, T, [])
    (root / "a").write_text("new")
    assert kept.diff(S, T).note == ""  # the turn is running
    after_crash = Checkpoints(root, folder=tmp_path / "data")
    assert "are unknown" in after_crash.diff(S, T).note
    result = after_crash.restore(S, T)
    assert (result.restored, "are unknown" in result.note) == (["a"], True)


def test_old_turns_are_removed(root: Path, tmp_path: Path) -> None:
    """Only the last turns are kept, and what only the others had is let go."""
    kept = Checkpoints(root, folder=tmp_path / "data", max_turns=2)
    for number in range(4):
        turn(kept, lambda number=number: (root / "a").write_text(str(number)), name=str(number))
        kept.tidy()
    assert kept.diff(S, "1").files == []
    assert kept.restore(S, "3").restored == ["a"]
    repository = next((tmp_path / "data").glob("*/git"))
    refs = git(root, f"--git-dir={repository}", "for-each-ref", "--format=%(refname)")
    assert key(S, "1") not in refs
    assert key(S, "3") in refs


def test_two_checkpoints_at_the_same_time_do_not_disturb_each_other(root: Path, kept: Checkpoints) -> None:
    """Two sessions in one workspace: each has its own state, and a lock that was left behind is no obstacle."""
    (root / "a").write_text("0")
    kept.before_call("one", T, [])
    repository = next(kept._folder.glob("*/git"))  # type: ignore[union-attr]
    (repository / "index.lock").touch()
    (root / "a").write_text("1")
    kept.before_call("two", T, [])
    (root / "b").write_text("2")
    kept.end_turn("two", T)
    kept.end_turn("one", T)
    assert kept.restore("two", T).restored == ["b"]
    assert (root / "a").read_text() == "1"


def test_a_read_only_file_or_workspace_is_kept_with_the_reason(root: Path, kept: Checkpoints) -> None:
    """What cannot be written is named, and the others are restored."""
    (root / "a").write_text("old")
    (root / "b").write_text("old")
    turn(kept, lambda: [(root / name).write_text("new") for name in ("a", "b")])
    shutil.rmtree(root)
    root.mkdir()
    (root / "a").mkdir()
    (root / "b").write_text("new")
    result = kept.restore(S, T)
    assert (result.restored, result.kept) == (["b"], {"a": "changed since"})


def test_a_stop_at_every_point_leaves_every_file_whole(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a restore is stopped, each file is old or new, and restoring again completes it.

    Without Git, which would take long: what writes files is the same.
    """
    monkeypatch.setenv("PATH", str(tmp_path))
    kept = Checkpoints(root, folder=tmp_path / "data")
    names = ("a", "made")
    old: dict[str, str | None] = {"a": "old", "made": None}
    new: dict[str, str | None] = {"a": "new", "made": "new"}

    def put(state: dict[str, str | None]) -> None:
        for name, text in state.items():
            (root / name).unlink(missing_ok=True)
            if text is not None:
                (root / name).write_text(text)

    def now() -> dict[str, str | None]:
        return {name: (root / name).read_text() if (root / name).exists() else None for name in names}

    put(old)
    turn(kept, lambda: put(new), *(root / name for name in names))

    def scenario(token: CancellationToken) -> None:
        put(new)
        with token.bind():
            kept.restore(S, T)

    def check() -> None:
        assert all(text in (old[name], new[name]) for name, text in now().items())
        assert set(os.listdir(root)) <= set(names)
        assert kept.restore(S, T).kept == {}
        assert now() == old

    report = interrupt_everywhere(scenario, check=check, repeat=1, only=lambda place: "/restore.py" in place)
    assert report.points


def test_a_killed_restore_leaves_every_file_whole_and_is_completed(root: Path, tmp_path: Path) -> None:
    """A process that is killed while it restores leaves each file old or new; restoring again does the rest."""
    kept = Checkpoints(root, folder=tmp_path / "data")
    old, new = b"old" * 100_000, b"new" * 100_000
    files = [root / f"{number:03}" for number in range(30)]
    for path in files:
        path.write_bytes(old)
    turn(kept, lambda: [path.write_bytes(new) for path in files])
    program = (
        "import sys; from halter.toolbox import Checkpoints; "
        f"Checkpoints(sys.argv[1], folder=sys.argv[2]).restore({S!r}, {T!r}); print('completed')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(root), str(tmp_path / "data")], stdout=subprocess.PIPE
    )
    wait_until(lambda: any(path.read_bytes() == old for path in files))
    process.kill()
    process.communicate()
    assert {path.read_bytes() for path in files} <= {old, new}
    left = [path for path in root.iterdir() if path not in files]
    assert len(left) <= 1  # the draft of the file at which it was killed
    assert all(path.match(".halter-*.tmp") for path in left)
    assert sorted(root.iterdir()) == sorted([*files, *left])
    again = Checkpoints(root, folder=tmp_path / "data")
    assert again.restore(S, T).kept == {}
    assert {path.read_bytes() for path in files} == {old}
    assert len(again.undo_restore(S).restored) == len(files)  # also those of the first attempt
    assert {path.read_bytes() for path in files} == {new}


def test_a_stop_of_a_checkpoint_raises_and_leaves_no_process(root: Path, kept: Checkpoints) -> None:
    """A checkpoint under a cancelled token does nothing, and the next one is complete."""
    (root / "a").write_text("old")
    token = CancellationToken()
    token.cancel("stop")
    with token.bind(), pytest.raises(Cancelled):
        kept.before_call(S, T, [])
    turn(kept, lambda: (root / "a").write_text("new"))
    assert kept.restore(S, T).restored == ["a"]
