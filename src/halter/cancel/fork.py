"""What must be put right in a forked child, which has our memory but none of our threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def after_fork(fn: Callable[[], object]) -> None:
    """Have *fn* called in every child that this process forks."""
    if hasattr(os, "register_at_fork"):  # pragma: no branch  (Windows cannot fork)
        os.register_at_fork(after_in_child=fn)
