"""AGENTS.md, and CLAUDE.md where there is none: instructions in the workspace and in the folders above it.

The files of a repository are read from its root down to the workspace. Outside of a repository the folders count up to
the user's home, or only the workspace if that is not below it. A folder that belongs to another user, or that everybody
can write, ends the walk up: on a shared machine, anybody may have written /tmp/AGENTS.md.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.toolbox.files.workspace import Workspace
from halter.toolbox.instructions.text_file import UnreadableFile, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["InstructionFile", "read_instruction_files"]

_NAMES: Final = ("AGENTS.md", "CLAUDE.md")  # of each folder the first that is there
_MAX_FOLDERS: Final = 16
_MAX_BYTES: Final = 32_768  # of all files together


class InstructionFile(NamedTuple):
    """One file: its text, or why it cannot be read."""

    path: Path
    text: str
    problem: str = ""


def read_instruction_files(workspace: Path) -> list[InstructionFile]:
    """Read the files, the nearest last. Blocks. At the limit, the farthest files are cut or left out first."""
    folders = list(_folders(workspace))
    top = Workspace(folders[-1])
    room = _MAX_BYTES
    found: list[InstructionFile] = []
    for folder in folders:
        file = _read(top, folder, room)
        if file is not None:
            found.append(file)
            room -= len(file.text.encode())
    return found[::-1]


def _read(top: Workspace, folder: Path, room: int) -> InstructionFile | None:
    for name in _NAMES:
        path = folder / name
        try:
            file = read_text(top, str(path), max(room, 0))
        except UnreadableFile as error:
            return InstructionFile(path, "", str(error))
        if file is None:
            continue
        if file.is_cut and room <= 0:
            return InstructionFile(path, "", f"the nearer files already have {_MAX_BYTES:,} bytes")
        if not file.text.strip():
            return None
        return InstructionFile(path, file.shown())
    return None


def _folders(workspace: Path) -> Iterator[Path]:
    """The folders whose files count: the workspace first, then those above it."""
    workspace = workspace.resolve()
    owned = _owned_parents(workspace)
    chain = [workspace, *owned]
    root = next((at for at, folder in enumerate(chain) if os.path.lexists(folder / ".git")), None)
    if root is None:
        home = Path.home().resolve()
        root = chain.index(home) if home in chain else 0
    yield from chain[: root + 1]


def _owned_parents(workspace: Path) -> list[Path]:
    """The folders above, as long as only this user or the owner of the workspace can put a file there."""
    owners = {os.stat(workspace).st_uid}  # noqa: PTH116  (one call, as below)
    if hasattr(os, "geteuid"):
        owners.add(os.geteuid())
    found: list[Path] = []
    for folder in list(workspace.parents)[: _MAX_FOLDERS - 1]:
        try:
            about = os.stat(folder)  # noqa: PTH116
        except OSError:
            break
        if about.st_uid not in owners or about.st_mode & stat.S_IWOTH:
            break
        found.append(folder)
    return found
