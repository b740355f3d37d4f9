"""Tools that name the files that a call locks.

Calls of one batch with the same key run one after another, in the order of the model's calls. An ordinary tool
locks the paths among its arguments, relative to the current directory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from halter.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

P = ParamSpec("P")
R = TypeVar("R")


class LockingTool(Tool[P, R]):
    """A method whose object has `lock_keys(tool, arguments)` and `tool_grace`."""

    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., R]:
        """Bind it, with the grace of its object."""
        bound = super().__get__(instance, owner)
        if instance is not None:
            bound.grace = instance.tool_grace  # type: ignore[attr-defined]
        return bound

    @property
    def touches_paths(self) -> bool:
        """Whether a call may have keys."""
        return True

    def paths(self, kwargs: Mapping[str, Any]) -> list[str]:
        """The keys of a call. May access the file system."""
        return sorted(set(self.fn.__self__.lock_keys(self.name, kwargs)))  # type: ignore[attr-defined]


def locking_tool(fn: Callable[P, R]) -> LockingTool[P, R]:
    """Like `@tool`, for such methods."""
    return LockingTool(fn)
