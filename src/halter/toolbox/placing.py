"""Files of a workspace, as tools for media need them: found inside of it, and written whole or not at all."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from halter.cancel.blocking import run_blocking_async
from halter.cancel.context import checkpoint

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["inside", "read_bounded", "save"]


def inside(workspace: Path, path: str) -> Path:
    """Give the file that *path* means in *workspace*, with links followed. Raises PermissionError if it leads out."""
    if not path.strip() or "\0" in path:
        msg = "a path is needed, such as notes/picture.png"
        raise ValueError(msg)
    root = workspace.resolve()
    found = (root / path).resolve()
    if not found.is_relative_to(root):
        msg = f"{path} is outside of the workspace {root}"
        raise PermissionError(msg)
    return found


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file that is not larger than *limit*."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        msg = f"{path.name} is larger than {limit:,} bytes"
        raise ValueError(msg)
    return data


async def save(path: Path, data: bytes) -> None:
    """Write a file such that it is never seen half-written.

    If the current token is cancelled before the file is in its place, nothing is left. If this returns, it is there:
    the last step is done in the event loop, and the caller goes on at once, so nobody is told otherwise.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        await run_blocking_async(_write, temporary, data)
        checkpoint()
        _move(temporary, path)
    except BaseException:
        # Should the thread make the file only after this, it finds its token cancelled, and removes it itself.
        _remove(temporary)
        raise


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("xb") as file:
            file.write(data)
        checkpoint()
    except BaseException:
        _remove(path)
        raise


def _move(path: Path, target: Path) -> None:
    path.replace(target)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
