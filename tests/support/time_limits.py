"""Time limits of what is started: nobody knows how long the start takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def call_limited(call: Callable[[float], T], has_begun: Callable[[T], object]) -> tuple[T, str]:
    """Call it with a time limit in which it begins: a short one, or a longer one if the machine was too busy for that.

    Gives what came, and the limit as messages tell it.
    """
    seconds = 0.5
    while not has_begun(result := call(seconds)):
        assert seconds < 60, f"it did not begin within {seconds:g} s: {result}"
        seconds *= 4
    return result, f"{seconds:g} s"
