"""Records of the files of each turn, in one small file per turn. A record is replaced as a whole, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["UNDO", "Records", "TurnRecord", "make_private_folder", "replace_file"]

UNDO: Final = "undo"
_SUFFIX: Final = ".json"
_NameAndEntry: TypeAlias = tuple[str, str] | None


class TurnRecord(msgspec.Struct, kw_only=True):
    """The files of one turn; also of a restore, so that it can be undone.

    With Git, *before* and *end* are trees, and *left_out* names what the first of them does not have. Without, *images*
    has the files that our own tools named, before and at the end. Names in both are bytes, as Latin-1.
    """

    turn: str
    before: str = ""
    end: str = ""
    left_out: list[str] = []
    images: dict[str, list[_NameAndEntry]] = {}
    has_ended: bool = False
    is_late: bool = False  # the end was taken later: the program had ended first
    failure: str = ""  # why there is no checkpoint
    note: str = ""  # what is not covered


class Records:
    """The records of one workspace, in the folder *root*."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def load(self, session: str, turn: str) -> TurnRecord | None:
        """The record of a turn, if there is one."""
        try:
            return msgspec.json.decode(self._path(session, turn).read_bytes(), type=TurnRecord)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def save(self, session: str, record: TurnRecord, name: str = "") -> None:
        """Save a record, under the name of its turn."""
        path = self._path(session, name or record.turn)
        make_private_folder(path.parent)
        replace_file(path, msgspec.json.encode(record))

    def count(self) -> int:
        """How many there are."""
        return sum(1 for _ in self._root.glob(f"*/*{_SUFFIX}"))

    def remove_oldest(self, keep: int) -> list[str]:
        """Remove all but the newest records; returns their keys, as `key()` makes them."""
        found: list[tuple[float, Path]] = []
        for path in self._root.glob(f"*/*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime, path))
        old = [path for _, path in sorted(found)[: max(len(found) - keep, 0)]]
        for path in old:
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # there are others in it
                path.parent.rmdir()
        return [f"{path.parent.name}/{path.name.removesuffix(_SUFFIX)}" for path in old]

    def _path(self, session: str, turn: str) -> Path:
        return self._root / f"{key(session, turn)}{_SUFFIX}"


def key(session: str, turn: str) -> str:
    """A name for the files of a turn that a path and a Git ref may have; ids may have any characters."""
    return "/".join(hashlib.sha256(os.fsencode(each)).hexdigest()[:20] for each in (session, turn))


def replace_file(path: Path, data: bytes, draft_folder: Path | None = None) -> None:
    """Write a file by a rename. It need not survive a power cut. The draft is beside it, or in *draft_folder*."""
    draft = (draft_folder or path.parent) / f"{secrets.token_hex(8)}.tmp"
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def make_private_folder(path: Path) -> None:
    """Make a folder, and those above it, for this user alone."""
    if not path.is_dir():
        if not path.parent.is_dir():
            make_private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
