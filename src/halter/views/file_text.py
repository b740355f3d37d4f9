"""Restored files, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.views.text import count

if TYPE_CHECKING:
    from halter.tools.file_history import RestoredFiles

__all__ = ["show_restored"]

_MAX_FILES: Final = 20


def show_restored(files: RestoredFiles) -> str:
    """What a rollback has done to files."""
    said = [f"{count(len(files.restored), 'file')} restored"]
    said += _first([f"kept {path}: {why}" for path, why in files.kept.items()], _MAX_FILES, "files")
    return "\n".join([*said, *([f"({files.note})"] if files.note else [])])


def _first(lines: list[str], most: int, what: str) -> list[str]:
    return lines if len(lines) <= most else [*lines[:most], f"… {len(lines) - most} more {what}"]
