"""What an agent writes down for itself: a list of what is to do, for one session, and notes that outlive sessions.

Both are small and quick, so a stop finds them done or not begun.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta

from halter.cancel.context import checkpoint, current_token
from halter.toolbox.atomic import Draft
from halter.toolbox.claims import claiming_tool
from halter.toolbox.workspace import Workspace
from halter.tools.context import ToolContext

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halter.tools.tool import Tool

__all__ = ["Memory", "Todo", "TodoList"]

State = Literal["open", "doing", "done", "dropped"]

_GRACE: Final = 0.03
_MARKS: Final[dict[State, str]] = {"open": "[ ]", "doing": "[>]", "done": "[x]", "dropped": "[-]"}
_MOST_ITEMS: Final = 200
_MOST_ITEM: Final = 500
_MOST_NOTE: Final = 2_000
_MOST_NOTES: Final = 20_000


class TodoList:
    """What one session has to do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held for a moment: an abandoned call may still be in here
        self._items: list[tuple[str, State]] = []

    def change(self, add: list[str], number: int | None, state: State | None, text: str | None) -> None:
        """Add items, and change one; all of it or nothing."""
        with self._lock:
            if number is not None and not 1 <= number <= len(self._items):
                msg = f"there is no item {number}; the list has {len(self._items)}"
                raise ValueError(msg)
            if len(self._items) + len(add) > _MOST_ITEMS:
                msg = f"a list has at most {_MOST_ITEMS} items; this one has {len(self._items)}"
                raise ValueError(msg)
            items = list(self._items)
            if number is not None:
                old, was = items[number - 1]
                items[number - 1] = (_one_line(old if text is None else text), was if state is None else state)
            items += [(_one_line(each), "open") for each in add]
            self._items = items

    def __str__(self) -> str:
        items = self._items
        if not items:
            return "The list is empty."
        left = sum(state in ("open", "doing") for _, state in items)
        lines = [f"{_MARKS[state]} {number}. {text}" for number, (text, state) in enumerate(items, 1)]
        return "\n".join([*lines, f"({left} of {len(items)} left)"])


class Todo:
    """The tool `todo`."""

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """It, for `Agent(tools=...)`."""
        return [self.todo]

    def claims(self, _tool: str, _arguments: Mapping[str, Any]) -> list[str]:
        """Changes of the list happen in the order of the calls."""
        return ["todo"]

    @claiming_tool(grace=_GRACE)
    def todo(
        self,
        ctx: ToolContext,
        add: list[str] | None = None,
        number: int | None = None,
        state: State | None = None,
        text: str | None = None,
    ) -> str:
        """Your own list of what is to do in this conversation. Without arguments it shows the list.

        Args:
            add: new items, for the end of the list.
            number: the item to change.
            state: its new state.
            text: its new text.

        """
        if number is None and (state is not None or text is not None):
            msg = "say which item is to be changed: number"
            raise ValueError(msg)
        items = ctx.keep(TodoList)
        items.change(add or [], number, state, text)
        return str(items)


class Memory:
    """The tool `memory`: notes in a text file, which people may edit, too.

    Without a path it is `memory.md` in HALTER_HOME, or in `~/.halter`. Sessions and processes may share it.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = _default_path() if path is None else Path(path).expanduser().absolute()

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """It, for `Agent(tools=...)`."""
        return [self.memory]

    def claims(self, _tool: str, _arguments: Mapping[str, Any]) -> list[str]:
        """Changes of one file happen in the order of the calls."""
        return [os.path.realpath(self.path)]

    @claiming_tool(grace=_GRACE)
    def memory(
        self,
        action: Literal["read", "add", "replace", "remove"],
        text: Annotated[str, Meta(max_length=_MOST_NOTE)] | None = None,
        match: str | None = None,
    ) -> str:
        """Notes that you keep across conversations: what people like, decisions, facts that were hard to find.

        Args:
            action: what to do.
            text: the new note, to add or to replace another.
            match: a piece of the one note to replace or remove.

        """
        if action == "read":
            return _shown(self.read())
        if action in ("add", "replace") and not (text and text.strip()):
            msg = f"to {action} a note, give its text"
            raise ValueError(msg)
        if action in ("replace", "remove") and not match:
            msg = f"to {action} a note, give a piece of it as match"
            raise ValueError(msg)
        return self._change(action, (text or "").strip(), match or "")

    def read(self) -> list[str]:
        """All notes."""
        try:
            with self.path.open(encoding="utf-8", errors="replace") as file:
                return _parsed(file.read(_MOST_NOTES * 4))
        except FileNotFoundError:
            return []

    def _change(self, action: str, text: str, match: str) -> str:
        checkpoint()  # and be given time at a stop: a disk may take some
        self.path.parent.mkdir(parents=True, exist_ok=True)
        real = Path(os.path.realpath(self.path))  # its owner may have put a link there
        with Workspace(real.parent).find(real.name) as place, _locked(place.directory):
            notes = self.read()
            if action == "add":
                if text in notes:
                    return "That is noted already."
                notes.append(text)
            else:
                at = _the_one(notes, match)
                notes[at : at + 1] = [text] if action == "replace" else []
            data = _written(notes)
            if len(data) > _MOST_NOTES:
                msg = f"the notes would have {len(data):,} of at most {_MOST_NOTES:,} characters; remove some first"
                raise ValueError(msg)
            draft = Draft(place, data.encode())
            if current_token().is_cancelled:
                draft.discard()
                return "Nothing was noted: the stop came first."
            draft.commit()
        return f"Done. {len(notes)} notes, {len(data):,} of {_MOST_NOTES:,} characters."


class _locked:  # noqa: N801  (a context manager, used like a function)
    """Have the directory for oneself, among all that ask; nothing is left of it in the file system.

    It may wait for another process, in a system call that no stop reaches: the call is abandoned then, and looks at its
    token before it writes.
    """

    def __init__(self, directory: int | None) -> None:
        self._directory = directory
        self._descriptor = -1

    def __enter__(self) -> None:
        if self._directory is not None:
            import fcntl  # noqa: PLC0415  (not everywhere)

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
    return Path(os.environ.get("HALTER_HOME") or "~/.halter").expanduser().absolute() / "memory.md"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    if not line:
        msg = "an item needs a text"
        raise ValueError(msg)
    return line if len(line) <= _MOST_ITEM else f"{line[:_MOST_ITEM]} ..."


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


def _the_one(notes: list[str], match: str) -> int:
    found = [at for at, note in enumerate(notes) if match in note]
    if len(found) == 1:
        return found[0]
    shown = _shown([notes[at] for at in found] or notes)
    why = f"{len(found)} notes have {match!r} in them; give a longer piece" if found else f"no note has {match!r} in it"
    msg = f"{why}:\n{shown}"
    raise ValueError(msg)
