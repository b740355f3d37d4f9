"""Checkpoints with Git: two trees of the whole workspace for each turn."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from halter.toolbox.files.checkpoints.changes import Entry, TurnChange
from halter.toolbox.files.checkpoints.shadow_repository import ShadowRepository

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from halter.toolbox.files.checkpoints.records import TurnRecord

__all__ = ["GitSnapshots"]

_REFS: Final = "refs/halter/"
_MAX_OBJECTS: Final = 7_000  # and packs: about Git's own limits
_MAX_PACKS: Final = 50
_BYTES: Final = "latin-1"
_NOT_KEPT: Final = Entry("other", "")


class GitSnapshots:
    """Snapshots of the workspace *root*, in the repository *folder*."""

    covers_commands: Final = True
    note: Final = ""

    def __init__(self, git: str, folder: Path, root: Path, *, max_file: int, max_size: int) -> None:
        self._repository = ShadowRepository(git, folder, root, max_file=max_file, max_size=max_size)
        self._max_size = max_size

    def begin(self, record: TurnRecord, ref: str, paths: Sequence[str]) -> None:  # noqa: ARG002
        """Keep the whole workspace, unless this turn has done so before."""
        if not record.before:
            snapshot = self._repository.snapshot(_REFS + ref)
            left_out = [*snapshot.left_out, *self._repository.ignored()]
            record.left_out = [name.decode(_BYTES) for name in left_out]
            record.before, record.note = snapshot.tree, snapshot.note

    def finish(self, record: TurnRecord, ref: str) -> None:
        """Keep it once more."""
        snapshot = self._repository.snapshot(_REFS + ref, refresh=True)
        record.end, record.note = snapshot.tree, snapshot.note

    def changes(self, record: TurnRecord) -> list[TurnChange]:
        """What differs between the two. What was left out before counts as changed, not as created."""
        left_out = {os.fsdecode(name.encode(_BYTES)) for name in record.left_out}
        return [
            each._replace(before=_NOT_KEPT) if each.before is None and _is_in(left_out, each.path) else each
            for each in self._repository.changes(record.before, record.end)
        ]

    def read(self, blobs: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Contents, by their hashes. Those that are missing are left out."""
        return self._repository.read(blobs)

    def tidy(self, removed: Sequence[str]) -> bool:
        """Remove old turns, and pack the rest if that is worthwhile. True if it is still too large."""
        self._repository.forget([f"{_REFS}{each}/{which}" for each in removed for which in ("before", "end")])
        usage = self._repository.usage()
        if usage.objects > _MAX_OBJECTS or usage.packs > _MAX_PACKS or (removed and usage.size > self._max_size):
            self._repository.tidy()
            usage = self._repository.usage()
        return usage.size > self._max_size


def _is_in(names: set[str], path: str) -> bool:
    """Whether a path is among the names, or below one of them, which ends with a slash then."""
    return path in names or any(path[: at + 1] in names for at, char in enumerate(path) if char == "/")
