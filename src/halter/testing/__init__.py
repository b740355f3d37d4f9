"""The kit for testing that things stop: part of the product, for tools and agents of your own."""

from halter.testing.asserts import assert_cancels_within
from halter.testing.deaf import DeafCoroutine, DeafTool, deaf_process
from halter.testing.everywhere import InterruptFailure, Point, Report, interrupt_everywhere

__all__ = [
    "DeafCoroutine",
    "DeafTool",
    "InterruptFailure",
    "Point",
    "Report",
    "assert_cancels_within",
    "deaf_process",
    "interrupt_everywhere",
]
