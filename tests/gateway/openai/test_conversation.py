"""A client's conversation becomes a valid history, or is refused with the reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halter import Agent
from halter.gateway.http.errors import Problem
from halter.gateway.openai.conversation import read_conversation
from halter.models.types import AssistantMessage, Message, Text, ToolCall, ToolMessage, UserMessage
from halter.session.history_view import CONTINUE
from halter.stores import MemoryStore
from halter.stores.closed_sessions import copy_events
from halter.testing import ScriptedModel
from tests.support.valid_history import judge


def asked(*messages: Message) -> list[Message]:
    """What a model is sent for these messages."""
    conversation = read_conversation(messages, "messages")
    store, model = MemoryStore(), ScriptedModel("Yes.")
    copy_events(store, "s", conversation.events)
    with Agent(model).session("s", store) as session:
        turn = session.run(conversation.prompt)
        assert turn.status == "done"
        judge(session.history)
    return model.requests[0].messages


def user(text: str) -> UserMessage:
    return UserMessage.of(text)


def call(*ids: str, text: str = "") -> AssistantMessage:
    return AssistantMessage(text, [ToolCall(each, "look") for each in ids])


def result(call_id: str, text: str = "seen") -> ToolMessage:
    return ToolMessage(call_id, "", [Text(text)])


def test_a_conversation_is_sent_as_it_was() -> None:
    """Turn after turn, with calls and their results, in the order of the calls."""
    sent = asked(
        user("a"), AssistantMessage("b"), user("c"), call("x", "y", text="d"), result("y", "2"), result("x", "1"),
        AssistantMessage("e"), user("f"), user("g"),
    )  # fmt: skip
    assert [type(each).__name__ for each in sent] == [
        "UserMessage", "AssistantMessage", "UserMessage", "AssistantMessage", "ToolMessage", "ToolMessage",
        "AssistantMessage", "UserMessage",
    ]  # fmt: skip
    assert [each.text for each in sent] == ["a", "b", "c", "d", "1", "2", "e", "f\ng"]
    assert [each.call_id for each in sent if isinstance(each, ToolMessage)] == ["x", "y"]


def test_results_at_the_end_are_answered() -> None:
    """The client has run a tool of an earlier answer: the model goes on with its result."""
    sent = asked(user("a"), call("x"), result("x"))
    assert [each.text for each in sent] == ["a", "", "seen"]


def test_an_answer_at_the_end_is_continued() -> None:
    """A chat program that lets a model go on sends the answer so far as the last message."""
    sent = asked(user("a"), AssistantMessage("One, two"))
    assert [each.text for each in sent] == ["a", "One, two", CONTINUE]


def test_a_greeting_may_come_first() -> None:
    """Providers want a message of the user first, so the model is told that there was none."""
    sent = asked(AssistantMessage("Welcome."), user("a"))
    assert [each.text for each in sent] == ["[The conversation begins with your message.]", "Welcome.", "a"]


def test_ids_that_occur_again_are_made_different() -> None:
    """Some servers begin to count in every answer; others have ids that a provider refuses."""
    sent = asked(user("a"), call("call 1"), result("call 1", "1"), call("call 1"), result("call 1", "2"), user("b"))
    calls = [each.calls[0].id for each in sent if isinstance(each, AssistantMessage)]
    assert calls == ["call_1", "call_1-2"]
    assert [(each.call_id, each.text) for each in sent if isinstance(each, ToolMessage)] == [
        ("call_1", "1"),
        ("call_1-2", "2"),
    ]


def test_empty_messages_are_left_out() -> None:
    """Providers refuse them; a result without text says that there was no output."""
    sent = asked(user(" "), user("a"), AssistantMessage(" \n"), user(""), call("x"), result("x", ""), user("b"))
    assert [each.text for each in sent] == ["a", "", "(no output)", "b"]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "no message to answer"),
        ([user(""), user("\n")], "no message to answer"),
        ([user("a"), call("x"), user("b")], "'x' has no result"),
        ([user("a"), call("x", "y"), result("x"), AssistantMessage("b"), user("c")], "'y' has no result"),
        ([user("a"), call("x")], "'x' has no result"),
        ([user("a"), result("x"), user("b")], "no open call 'x'"),
        ([user("a"), call("x"), result("x"), result("x"), user("b")], "no open call 'x'"),
        ([user("a"), call("x", "x"), result("x"), user("b")], "same id"),
    ],
)
def test_a_conversation_that_cannot_be_sent_is_refused(messages: list[Message], said: str) -> None:
    """Each call needs exactly one result, directly after it."""
    with pytest.raises(Problem, match=said) as refused:
        read_conversation(messages, "messages")
    assert (refused.value.status, refused.value.field) == (422, "messages")


IDS = st.sampled_from(["a", "b", "a b", "", "\u00e9", "x" * 60])
TEXTS = st.sampled_from(["", " ", "Hello.", "\ud800", "\u00e9\n"])
MESSAGES: Any = st.one_of(
    st.builds(user, TEXTS),
    st.builds(lambda text, ids: call(*ids, text=text), TEXTS, st.lists(IDS, max_size=2)),
    st.builds(result, IDS, TEXTS),
)


@settings(deadline=None, max_examples=150)
@given(st.lists(MESSAGES, max_size=6))
def test_whatever_is_sent_the_history_is_valid_or_there_is_none(messages: list[Message]) -> None:
    """The history is checked as that of any session; what would not be valid is refused before."""
    try:
        sent = asked(*messages)
    except Problem as problem:
        assert problem.status == 422
    else:
        assert isinstance(sent[0], UserMessage)
        assert isinstance(sent[-1], UserMessage | ToolMessage)
