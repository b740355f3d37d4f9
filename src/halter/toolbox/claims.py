"""Tools that say themselves what a call has to have for itself.

Calls of one batch that claim the same thing run in turn, in the order in which the model asked for them. By its hints
alone a tool can claim only what it is given as a path, from the current directory; these know better.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from halter.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

P = ParamSpec("P")
R = TypeVar("R")


class ClaimingTool(Tool[P, R]):
    """A method whose object has `claims(tool, arguments)`, which returns the names of what a call touches."""

    @property
    def touches_paths(self) -> bool:
        """Whether it claims anything: it may."""
        return True

    def paths(self, kwargs: Mapping[str, Any]) -> list[str]:
        """What the object says. May ask the file system."""
        return sorted(set(self.fn.__self__.claims(self.name, kwargs)))  # type: ignore[attr-defined]


def claiming_tool(
    *, grace: float | None = None, like: Tool[..., Any] | None = None
) -> Callable[[Callable[P, R]], ClaimingTool[P, R]]:
    """Like `@tool`, for such methods. A model is told of it what it is told of the tool that it is *like*."""

    def decorate(fn: Callable[P, R]) -> ClaimingTool[P, R]:
        fn.__doc__ = fn.__doc__ if like is None else like.__doc__
        return ClaimingTool(fn, grace=grace)

    return decorate
