"""Activity on a connection: bytes have come from the provider, though perhaps no event.

During long thinking, providers send comments, pings or blank lines to show that the connection is alive. They are not
part of the answer, so no event reports them. The code that watches the stream sets a callback for its task, and the
code that reads bytes calls it, once for each chunk.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["activity_callback", "set_activity_callback"]


def _ignore() -> None:
    pass


_callback: ContextVar[Callable[[], object]] = ContextVar("halter.activity", default=_ignore)


def set_activity_callback(fn: Callable[[], object]) -> None:
    """Have `fn` called when bytes come, for the rest of this task and in tasks that it starts."""
    _callback.set(fn)


def activity_callback() -> Callable[[], object]:
    """What to call when bytes have come: look it up once, and call it often."""
    return _callback.get()
