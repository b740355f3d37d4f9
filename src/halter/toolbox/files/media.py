"""Files of a workspace for the tools that make or read media, which are async."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from halter.cancel.context import checkpoint
from halter.cancel.threads.blocking import run_blocking_async
from halter.toolbox.files.atomic import Draft

if TYPE_CHECKING:
    from halter.toolbox.files.workspace import Place, Workspace

__all__ = ["read_file", "save_file"]


def read_file(workspace: Workspace, path: str, limit: int) -> bytes:
    """Read a file that is not larger than *limit*. Blocks."""
    with os.fdopen(workspace.open(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path} is larger than {limit:,} bytes")
    return data


async def save_file(workspace: Workspace, path: str, data: bytes) -> str:
    """Write a file, complete or not at all; returns its path below the root.

    If the current token is cancelled before the file is in its place, nothing is left. If this returns, the file is
    there: the last step is done in the event loop, and the caller continues at once, so its result is correct.
    """
    pending = _PendingFile(workspace, path, data)
    try:
        await run_blocking_async(pending.write)
        checkpoint()
        return pending.commit()
    except BaseException:
        pending.discard()
        raise


class _PendingFile:
    """A file that was written by a thread and is put in place, or discarded, by the event loop."""

    def __init__(self, workspace: Workspace, path: str, data: bytes) -> None:
        self._workspace = workspace
        self._path = path
        self._data = data
        self._lock = threading.Lock()  # held only to read and assign
        self._written: tuple[Draft, Place] | None = None
        self._is_discarded = False

    def write(self) -> None:
        """Write it to the disk. If it was discarded meanwhile, remove it again."""
        place = self._workspace.find(self._path, make_parents=True)
        try:
            draft = Draft(place, self._data)
        except BaseException:
            place.undo_parents()
            place.close()
            raise
        with self._lock:
            self._written = (draft, place)
            is_discarded = self._is_discarded
        if is_discarded:
            self.discard()

    def commit(self) -> str:
        """Put it in place."""
        assert self._written is not None
        draft, place = self._written
        draft.commit(sync=False)
        self._written = None
        place.close()
        return place.path

    def discard(self) -> None:
        """Remove it. Safe at any time, from any thread."""
        with self._lock:
            self._is_discarded = True
            written, self._written = self._written, None
        if written is not None:
            draft, place = written
            draft.discard()
            place.undo_parents()
            place.close()
