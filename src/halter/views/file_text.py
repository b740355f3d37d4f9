"""Restored files, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from halter.views.text import count

if TYPE_CHECKING:
    from halter.tools.file_history import RestoredFiles

__all__ = ["show_restored"]

_MAX_FILES: Final = 20


def show_restored(files: RestoredFiles) -> str:
    """The files that a rollback has restored, and those that it has not."""
    lines = [f"{count(len(files.restored), 'file')} restored"]
    lines += _first([f"kept {path}: {why}" for path, why in files.kept.items()], _MAX_FILES, "files")
    return "\n".join([*lines, *([f"({files.note})"] if files.note else [])])


def _first(lines: list[str], limit: int, noun: str) -> list[str]:
    return lines if len(lines) <= limit else [*lines[:limit], f"… {len(lines) - limit} more {noun}"]
