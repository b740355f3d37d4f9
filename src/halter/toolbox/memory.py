"""Notes that an agent keeps across sessions. A change is quick, so a stop finds it done or not begun."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta

from halter._data_paths import find_paths
from halter.cancel.context import checkpoint, current_token
from halter.toolbox.files.atomic import Draft
from halter.toolbox.files.locking_tool import locking_tool
from halter.toolbox.files.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halter.tools.tool import Tool

__all__ = ["Memory"]

_MAX_NOTE: Final = 2_000  # characters
_MAX_NOTES: Final = 20_000  # characters of all notes


class Memory:
    """The tool `memory`: notes in a text file, which people may edit, too.

    Without a path it is `memory.md` where Halter keeps its data. Sessions and processes may share it.
    """

    tool_grace = 0.03

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = _default_path() if path is None else Path(path).expanduser().absolute()

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """It, for `Agent(tools=...)`."""
        return [self.memory]

    def lock_keys(self, _tool: str, _arguments: Mapping[str, Any]) -> list[str]:
        """Changes of one file happen in the order of the calls."""
        return [os.path.realpath(self.path)]

    @locking_tool
    def memory(
        self,
        action: Literal["read", "add", "replace", "remove"],
        text: Annotated[str, Meta(max_length=_MAX_NOTE)] | None = None,
        match: str | None = None,
    ) -> str:
        """Notes that you keep across conversations: preferences, decisions, facts that were hard to find.

        Args:
            action: what to do.
            text: the new note, for add and replace.
            match: a part of the one note to replace or remove.

        """
        if action == "read":
            return _shown(self.read())
        if action in ("add", "replace") and not (text and text.strip()):
            raise ValueError(f"text is missing: {action} needs the new note")
        if action in ("replace", "remove") and not match:
            raise ValueError(f"match is missing: {action} needs a part of the note")
        return self._change(action, (text or "").strip(), match or "")

    def add(self, note: str) -> str:
        """Add a note of the user; returns what was done. Raises `ValueError` if it is too long, or there is no room."""
        if len(note) > _MAX_NOTE:
            raise ValueError(f"a note can have {_MAX_NOTE:,} characters; this one has {len(note):,}")
        return self._change("add", note.strip(), "")

    def read(self) -> list[str]:
        """All notes."""
        try:
            with self.path.open(encoding="utf-8", errors="replace") as file:
                return _parsed(file.read(_MAX_NOTES * 4))
        except FileNotFoundError:
            return []

    def _read_whole(self) -> list[str]:
        """All notes, to be written again. Raises `ValueError` if that would change bytes of them."""
        try:
            return _parsed(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.path} is not UTF-8; convert it first") from error

    def newest(self, budget: int) -> str:
        """The newest notes that fit in *budget* bytes, the newest first; a last line says how many were left out."""
        notes = self.read()[::-1]
        shown = 0
        for note in notes:
            budget -= len(_written([note]).encode())
            if budget < 0:
                break
            shown += 1
        left_out = len(notes) - shown
        rest = f'[{left_out} more notes are left out; memory with action "read" shows all.]' if left_out else ""
        return (_written(notes[:shown]) + rest).rstrip("\n")

    def _change(self, action: str, text: str, match: str) -> str:
        checkpoint()  # this also asks for grace at a stop: a disk may be slow
        self.path.parent.mkdir(parents=True, exist_ok=True)
        real = Path(os.path.realpath(self.path))  # its owner may have put a link there
        with Workspace(real.parent).find(real.name) as place, _locked(place.directory):
            notes = self._read_whole()
            if action == "add":
                if text in notes:
                    return "This note already exists."
                notes.append(text)
            else:
                at = _find_one(notes, match)
                notes[at : at + 1] = [text] if action == "replace" else []
            data = _written(notes)
            if len(data) > _MAX_NOTES and action != "remove":  # a person may have written more
                raise ValueError(
                    f"the notes would have {len(data):,} characters; the limit is {_MAX_NOTES:,}: remove some first"
                )
            draft = Draft(place, data.encode())
            if current_token().is_cancelled:
                draft.discard()
                return "Nothing was changed: the stop came first."
            draft.commit()
        return f"Done. {len(notes)} notes, {len(data):,} of {_MAX_NOTES:,} characters."


class _locked:  # noqa: N801  (a context manager, used like a function)
    """Lock a directory against other calls and processes; nothing is left of the lock in the file system.

    It may wait for another process, in a system call that a stop does not interrupt: the call is abandoned then, and
    checks its token before it writes.
    """

    def __init__(self, directory: int | None) -> None:
        self._directory = directory
        self._descriptor = -1

    def __enter__(self) -> None:
        if self._directory is not None:
            import fcntl

            self._descriptor = os.open(".", os.O_RDONLY, dir_fd=self._directory)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            except BaseException:
                os.close(self._descriptor)
                raise

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _default_path() -> Path:
    earlier = Path("~/.halter/memory.md").expanduser()  # where it was before all data had one place
    return earlier if earlier.exists() and not os.environ.get("HALTER_HOME") else find_paths().data / "memory.md"


def _parsed(text: str) -> list[str]:
    """Notes as they stand in the file: each begins with a dash, and its further lines are indented."""
    notes: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("- ") or not notes:
            notes.append([line.removeprefix("- ")])
        else:
            notes[-1].append(line.removeprefix("  "))
    return [note for lines in notes if (note := "\n".join(lines).strip())]


def _written(notes: list[str]) -> str:
    return "".join("- " + "\n  ".join(_lines(note)) + "\n" for note in notes)


def _lines(note: str) -> Iterator[str]:
    yield from note.splitlines()


def _shown(notes: list[str]) -> str:
    return _written(notes).rstrip("\n") if notes else "There are no notes yet."


def _find_one(notes: list[str], match: str) -> int:
    found = [at for at, note in enumerate(notes) if match in note]
    if len(found) == 1:
        return found[0]
    shown = _shown([notes[at] for at in found] or notes)
    why = f"{len(found)} notes contain {match!r}; pass a longer part" if found else f"no note contains {match!r}"
    raise ValueError(f"{why}:\n{shown}")
