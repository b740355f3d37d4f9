"""Signs of life: bytes have come from the provider, though perhaps nothing in them that would be an event.

During long thinking providers send comments, pings or blank lines, so that a client knows that the connection lives.
They are no part of an answer, so no event tells of them: whoever reads bytes calls `life()`, once for each piece, and
whoever watches the stream has said before, in a task around it, what is to be done then.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["life", "on_life_from_here_on"]


def _unwatched() -> None:
    pass


_listener: ContextVar[Callable[[], object]] = ContextVar("halter.life", default=_unwatched)


def on_life_from_here_on(fn: Callable[[], object]) -> None:
    """Have `fn` called for the rest of this task, and in tasks that it starts."""
    _listener.set(fn)


def life() -> Callable[[], object]:
    """Give what to call when bytes have come: look it up once, and call it often."""
    return _listener.get()
