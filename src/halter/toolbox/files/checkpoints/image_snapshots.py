"""Checkpoints without Git: copies of the files that our own tools name, before they change them.

What commands change is not covered. Copies are kept in a folder, each under the hash of its content.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

from halter.cancel.context import checkpoint
from halter.toolbox.files.checkpoints.changes import Entry, TurnChange, content_at
from halter.toolbox.files.checkpoints.records import TurnRecord, make_private_folder, replace_file
from halter.toolbox.files.checkpoints.restore import find_place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

__all__ = ["ImageSnapshots"]

_BYTES: Final = "latin-1"


class ImageSnapshots:
    """Copies of files of the workspace *root*, in *folder*."""

    covers_commands: Final = False

    def __init__(self, why: str, folder: Path, root: Path, *, max_file: int, max_size: int) -> None:
        """*why* is the reason that Git is not used."""
        self.note = f"changes by commands are not covered: {why}"
        self._folder = folder
        self._root = root
        self._max_file = max_file
        self._max_size = max_size

    def begin(self, record: TurnRecord, ref: str, paths: Sequence[str]) -> None:  # noqa: ARG002
        """Copy the files that a call names, unless this turn has done so before."""
        for path in paths:
            checkpoint()
            name = self._relative_path(path)
            if name is not None and name not in record.images:
                record.images[name] = [self._keep(name), None]

    def finish(self, record: TurnRecord, ref: str) -> None:  # noqa: ARG002
        """Keep the files as they are now."""
        for name, image in record.images.items():
            checkpoint()
            image[1] = self._keep(name)

    def changes(self, record: TurnRecord) -> list[TurnChange]:
        """What differs between the two."""
        return [
            TurnChange(os.fsdecode(name.encode(_BYTES)), *(None if each is None else Entry(*each) for each in image))
            for name, image in sorted(record.images.items())
            if image[0] != image[1]
        ]

    def read(self, blobs: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Contents, by their hashes. Those that are missing are left out."""
        for blob in blobs:
            with contextlib.suppress(FileNotFoundError):
                yield blob, (self._folder / blob).read_bytes()

    def tidy(self, removed: Sequence[str]) -> bool:  # noqa: ARG002
        """Remove the oldest copies if there are too many bytes of them."""
        found = []
        for path in self._folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._max_size:
                break
            path.unlink(missing_ok=True)
            total -= size
        return False

    def _relative_path(self, path: str) -> str | None:
        with contextlib.suppress(ValueError):
            below = os.path.relpath(path, self._root)
            if below != "." and not below.startswith("../") and below != "..":
                return os.fsencode(below).decode(_BYTES)
        return None

    def _keep(self, name: str) -> tuple[str, str] | None:
        """Copy a file; returns its entry."""
        with find_place(self._root, os.fsdecode(name.encode(_BYTES))) as place:
            found = None if place is None else content_at(place, self._max_file)
        if found is None:
            return None
        if found == "other":
            return found, ""  # its content was not kept, so it cannot be restored
        kind, blob = found.entry
        if not (self._folder / blob).exists():
            self._write(blob, found.data)
        return kind, blob

    def _write(self, blob: str, data: bytes) -> None:
        make_private_folder(self._folder)
        replace_file(self._folder / blob, data)
