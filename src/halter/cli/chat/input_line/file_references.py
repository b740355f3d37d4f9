"""Files that a message names: `@src/main.py` is completed as one types, and images among them are sent along.

A reference stays in the text as it is: the model can read the file with its tools. Names with spaces are
written `@"my notes.md"`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from halter.models.types import Image

__all__ = ["Completion", "attached_images", "complete_reference"]

_TOKEN: Final = re.compile(r'(?:^|(?<=\s))@(?:"([^"\n]*)|([^\s"]*))$')
_NAMED: Final = re.compile(r'(?:^|(?<=[\s(]))@?(?:"([^"\n]+)"|\'([^\'\n]+)\'|((?:\\ |[^\s"\'])+))')
_TYPES: Final = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
}
_PUNCTUATION: Final = ".,;:!?)"  # behind a name, in a sentence
_MAX_IMAGE: Final = 10_000_000  # bytes
_MAX_IMAGES: Final = 8
_MAX_LISTED: Final = 1_000  # entries of one folder that are read
_MAX_WALKED: Final = 5_000  # entries of all folders that are read
_MAX_FOUND: Final = 20
_SKIPPED: Final = frozenset({".git", ".venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache", ".tox"})


class Completion(NamedTuple):
    """Possible completions: the text from `start` to the cursor may become one of `found`."""

    start: int
    found: list[str]


def complete_reference(before: str, *, deep: bool = False) -> Completion | None:
    """The files and folders that the reference before the cursor may mean; None if there is no reference.

    With *deep*, subfolders are searched too, if nothing in the named folder matches.
    """
    token = _TOKEN.search(before)
    if token is None:
        return None
    part = token[1] if token[1] is not None else token[2]
    found = _in_folder(part)
    if not found and deep and part and "/" not in part:
        found = _in_subfolders(part)
    return Completion(token.start(), [_as_reference(path) for path in found[:_MAX_FOUND]])


def _in_folder(part: str) -> list[str]:
    folder, _, name = part.rpartition("/")
    shown = f"{folder}/" if folder or part.startswith("/") else ""
    matches: list[str] = []
    try:
        with os.scandir(Path(shown or ".").expanduser()) as entries:
            for number, entry in enumerate(entries):
                if number >= _MAX_LISTED:
                    break
                is_hidden = entry.name.startswith(".") and not name.startswith(".")
                if is_hidden or not entry.name.casefold().startswith(name.casefold()):
                    continue
                matches.append(f"{shown}{entry.name}{'/' if entry.is_dir() else ''}")
    except (OSError, RuntimeError, ValueError):  # no such folder, no such user, or no name at all
        return []
    return sorted(matches)


def _in_subfolders(part: str) -> list[str]:
    """Files below the current folder whose names contain this, those nearest first."""
    found: list[str] = []
    seen = 0
    for folder, folders, names in os.walk("."):
        folders[:] = sorted(each for each in folders if each not in _SKIPPED and not each.startswith("."))
        seen += len(names) + len(folders)
        found += [str(Path(folder) / each) for each in names if part.casefold() in each.casefold()]
        if seen > _MAX_WALKED or len(found) > _MAX_LISTED:
            break
    return sorted(found, key=lambda path: (path.count("/"), path))


def _as_reference(path: str) -> str:
    return f'@"{path}"' if " " in path else f"@{path}"


def attached_images(text: str) -> list[Image]:
    """The images that a text names by path: with an @, in quotes, or as terminals paste a file that is dropped."""
    images: list[Image] = []
    for found in _NAMED.finditer(text):
        name = (found[1] or found[2] or (found[3] or "").replace("\\ ", " ")).lstrip("(@").rstrip(_PUNCTUATION)
        kind = _TYPES.get(Path(name).suffix.lower())
        if kind is None or len(images) == _MAX_IMAGES:
            continue
        try:
            path = Path(name).expanduser()
            if path.stat().st_size <= _MAX_IMAGE:
                images.append(Image(data=path.read_bytes(), media_type=kind))
        except (OSError, RuntimeError, ValueError):  # it names no file of ours
            continue
    return images
