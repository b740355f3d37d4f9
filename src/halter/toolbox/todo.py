"""The to-do list of a session. A change is quick, so a stop finds it done or not begun."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, Literal

from halter.toolbox.files.locking_tool import locking_tool
from halter.tools.context import ToolContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from halter.tools.tool import Tool

__all__ = ["Todo", "TodoList"]

State = Literal["open", "doing", "done", "dropped"]

_MARKS: Final[dict[State, str]] = {"open": "[ ]", "doing": "[>]", "done": "[x]", "dropped": "[-]"}
_MAX_ITEMS: Final = 200
_MAX_ITEM: Final = 500


class TodoList:
    """The items of one session."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held briefly: an abandoned call may still be in here
        self._items: list[tuple[str, State]] = []

    def change(self, add: list[str], number: int | None, state: State | None, text: str | None) -> None:
        """Add items, and change one; all of it or nothing."""
        with self._lock:
            if number is not None and not 1 <= number <= len(self._items):
                raise ValueError(f"no item {number}; the list has {len(self._items)}")
            if len(self._items) + len(add) > _MAX_ITEMS:
                raise ValueError(f"a list can have at most {_MAX_ITEMS} items; this one has {len(self._items)}")
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

    tool_grace = 0.03

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """It, for `Agent(tools=...)`."""
        return [self.todo]

    def lock_keys(self, _tool: str, _arguments: Mapping[str, Any]) -> list[str]:
        """Changes of the list happen in the order of the calls."""
        return ["todo"]

    @locking_tool
    def todo(
        self,
        ctx: ToolContext,
        add: list[str] | None = None,
        number: int | None = None,
        state: State | None = None,
        text: str | None = None,
    ) -> str:
        """Your to-do list for this conversation. Without arguments, returns the list.

        Args:
            add: new items, appended to the list.
            number: the number of the item to change.
            state: its new state.
            text: its new text.

        """
        if number is None and (state is not None or text is not None):
            raise ValueError("number is missing: which item should be changed?")
        items = ctx.keep(TodoList)
        items.change(add or [], number, state, text)
        return str(items)


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    if not line:
        raise ValueError("an item cannot be empty")
    return line if len(line) <= _MAX_ITEM else f"{line[:_MAX_ITEM]} ..."
