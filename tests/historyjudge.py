"""Whether a conversation can be sent: the rules of both kinds of providers, strictly."""

from __future__ import annotations

from collections.abc import Sequence

from halter.models import AssistantMessage, Message, ToolMessage, UserMessage


def check_history(messages: Sequence[Message]) -> None:
    """Each call has one result, right behind its message and in order; nothing is empty; ids are used once."""
    expected: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            assert expected, f"a result that nobody waits for: {message}"
            assert message.call_id == expected.pop(0), message
            assert message.parts
            continue
        assert not expected, f"{message} before the results of {expected}"
        if isinstance(message, UserMessage):
            assert message.parts
            continue
        assert isinstance(message, AssistantMessage)
        assert message.text or message.calls, "an empty answer"
        expected = [call.id for call in message.calls]
        assert not seen & set(expected), f"ids that were used before: {expected}"
        assert len(set(expected)) == len(expected)
        seen |= set(expected)
    assert not expected, f"no results for {expected}"
    if messages:
        assert isinstance(messages[0], UserMessage)
