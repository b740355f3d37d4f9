"""AGENTS.md and CLAUDE.md: which of them are read, how much, and what happens to those that cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from halter.toolbox.instructions.instruction_files import InstructionFile, read_instruction_files


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    return folder


def write(folder: Path, text: str | bytes, name: str = "AGENTS.md") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def texts(workspace: Path) -> list[str]:
    return [file.text for file in read_instruction_files(workspace)]


def test_files_of_a_repository_are_read_down_to_the_workspace(home: Path) -> None:
    """From the root of the repository to the workspace, the nearest last; nothing above the root or below."""
    repository = home / "code" / "project"
    (repository / ".git").mkdir(parents=True)
    for folder, text in {home: "home", home / "code": "above", repository: "root"}.items():
        write(folder, text)
    write(repository / "a", "")
    write(repository / "a" / "b", "near\n")
    write(repository / "a" / "b" / "below", "below")
    assert read_instruction_files(repository / "a" / "b") == [
        InstructionFile(repository / "AGENTS.md", "root"),
        InstructionFile(repository / "a" / "b" / "AGENTS.md", "near"),
    ]


def test_a_worktree_is_a_repository(home: Path) -> None:
    """There, .git is a file."""
    write(home, "home")
    write(home / "tree", "gitdir: elsewhere", ".git")
    write(home / "tree", "tree")
    assert texts(home / "tree") == ["tree"]


def test_without_a_repository_the_walk_ends_at_home(home: Path) -> None:
    """Below home the folders up to it count; elsewhere only the workspace does."""
    write(home.parent, "above home")
    write(home, "home")
    write(home / "work", "work")
    assert texts(home / "work") == ["home", "work"]
    write(home.parent / "other", "other")
    write(home.parent / "other" / "work", "work")
    assert texts(home.parent / "other" / "work") == ["work"]


def test_claude_md_is_read_where_there_is_no_agents_md(home: Path) -> None:
    """It is a second name for the same thing, folder by folder."""
    (home / "work" / ".git").mkdir(parents=True)
    write(home / "work", "of both", "AGENTS.md")
    write(home / "work", "not read", "CLAUDE.md")
    write(home / "work" / "a", "of Claude", "CLAUDE.md")
    assert texts(home / "work" / "a") == ["of both", "of Claude"]


def test_a_folder_that_everybody_can_write_ends_the_walk(home: Path) -> None:
    """Another user could have put a .git and an AGENTS.md there, as into /tmp."""
    shared = home.parent / "shared"
    (shared / ".git").mkdir(parents=True)
    write(shared, "by somebody")
    write(shared / "work", "mine")
    assert texts(shared / "work") == ["by somebody", "mine"]
    shared.chmod(0o1777)
    assert texts(shared / "work") == ["mine"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_ends_the_walk(home: Path) -> None:
    """As Git does, we trust no repository above the workspace that belongs to another user."""
    shared = home.parent / "shared"
    (shared / ".git").mkdir(parents=True)
    write(shared, "by somebody")
    write(shared / "work", "mine")
    os.chown(shared, 12345, -1)
    assert texts(shared / "work") == ["mine"]
    os.chown(shared / "work", 12345, -1)  # the same user has both, as in a container
    assert texts(shared / "work") == ["by somebody", "mine"]


def test_a_link_that_leads_out_is_not_followed(home: Path) -> None:
    """A link within the repository is, as people link one name to the other."""
    secret = write(home / "elsewhere", "secret", "key")
    (home / "work" / ".git").mkdir(parents=True)
    write(home / "work", "shared")
    (home / "work" / "a").mkdir()
    (home / "work" / "a" / "AGENTS.md").symlink_to("../AGENTS.md")
    assert texts(home / "work" / "a") == ["shared", "shared"]
    (home / "work" / "AGENTS.md").unlink()
    (home / "work" / "AGENTS.md").symlink_to(secret)
    [file] = read_instruction_files(home / "work")
    assert file.text == ""
    assert "out of the workspace" in file.problem


@pytest.mark.parametrize("kind", ["binary", "pipe", "folder", "loop"])
def test_what_cannot_be_read_is_one_line(home: Path, kind: str) -> None:
    """Neither is it fatal, nor does a pipe hold anything up."""
    path = home / "work" / "AGENTS.md"
    (home / "work").mkdir()
    if kind == "binary":
        path.write_bytes(b"\xff\xfe\x00")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("AGENTS.md")
    [file] = read_instruction_files(home / "work")
    assert (file.path, file.text) == (path, "")
    assert file.problem
    assert "\n" not in file.problem


def test_the_nearest_files_have_the_room(home: Path) -> None:
    """Together they have at most 32 KiB; a file that does not fit is cut between two characters, and that is said."""
    (home / "work" / ".git").mkdir(parents=True)
    write(home / "work", "far")
    write(home / "work" / "a", "é" * 20_000)
    write(home / "work" / "a" / "b", "n" * 10_000)
    far, middle, near = read_instruction_files(home / "work" / "a" / "b")
    assert near.text == "n" * 10_000
    assert middle.text.startswith("é" * 11_384 + "\n[The rest of this file, which has 40,000 bytes, is left out.]")
    assert (far.text, far.problem) == ("", "the nearer files already have 32,768 bytes")
