"""Helpers for testing that things stop, for your own tools and agents."""

from halter.testing.asserts import assert_cancels_within
from halter.testing.deaf import DeafCoroutine, DeafTool, deaf_process
from halter.testing.everywhere import InterruptFailure, Point, Report, interrupt_at, interrupt_everywhere, points_of
from halter.testing.provider import FakeProvider
from halter.testing.replies import (
    ScriptedReply,
    answer,
    drop,
    hang_before_first_byte,
    hang_mid_stream,
    raw,
    slow_stream,
    status,
    tool_calls,
)
from halter.testing.scripted import Gate, ScriptedModel, SeenStream
from halter.testing.server_record import SeenConnection, SeenRequest
from halter.testing.stopped_calls import MOMENTS, Moment, Stop, ToolCalls

__all__ = [
    "MOMENTS",
    "DeafCoroutine",
    "DeafTool",
    "FakeProvider",
    "Gate",
    "InterruptFailure",
    "Moment",
    "Point",
    "Report",
    "ScriptedModel",
    "ScriptedReply",
    "SeenConnection",
    "SeenRequest",
    "SeenStream",
    "Stop",
    "ToolCalls",
    "answer",
    "assert_cancels_within",
    "deaf_process",
    "drop",
    "hang_before_first_byte",
    "hang_mid_stream",
    "interrupt_at",
    "interrupt_everywhere",
    "points_of",
    "raw",
    "slow_stream",
    "status",
    "tool_calls",
]
