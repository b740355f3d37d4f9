"""Hooks for forked children, which have the memory of this process but none of its threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def after_fork(fn: Callable[[], object]) -> None:
    """Call *fn* in every child that this process forks."""
    if hasattr(os, "register_at_fork"):  # pragma: no branch  (Windows cannot fork)
        os.register_at_fork(after_in_child=fn)
