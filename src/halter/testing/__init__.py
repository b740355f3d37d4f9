"""For tests of agents: providers and models that do what a script says, and remember what was done to them."""

from halter.testing.ledger import SeenConnection, SeenRequest
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

__all__ = [
    "FakeProvider",
    "Gate",
    "ScriptedModel",
    "ScriptedReply",
    "SeenConnection",
    "SeenRequest",
    "SeenStream",
    "answer",
    "drop",
    "hang_before_first_byte",
    "hang_mid_stream",
    "raw",
    "slow_stream",
    "status",
    "tool_calls",
]
