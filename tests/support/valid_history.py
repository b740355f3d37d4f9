"""Judges of conversations, as strict as the strictest provider: for our messages, and for what goes over each wire."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec

from halter import Session
from halter.models import (
    AnthropicModel,
    AssistantMessage,
    GeminiModel,
    Message,
    ModelRequest,
    OpenAIModel,
    OpenAIResponsesModel,
    Text,
    ToolMessage,
    UserMessage,
)

ID = re.compile("[a-zA-Z0-9_-]{1,40}")
NAME = re.compile("[a-zA-Z0-9_-]{1,64}")
OPENAI = OpenAIModel("x", api_key="k")
ANTHROPIC = AnthropicModel("x", api_key="k")
RESPONSES = OpenAIResponsesModel("x", api_key="k")
GEMINI = GeminiModel("x", api_key="k")


def judge(messages: Sequence[Message]) -> None:
    """Check a conversation at any instant, on each wire."""
    judge_messages(messages)
    request = ModelRequest(list(messages))
    if messages:
        for model, key, judge_wire in (
            (OPENAI, "messages", judge_openai),
            (ANTHROPIC, "messages", judge_anthropic),
            (RESPONSES, "input", judge_responses),
            (GEMINI, "contents", judge_gemini),
        ):
            # Encoded, because there must be nothing in it that cannot be, such as half a surrogate pair.
            body = msgspec.json.decode(msgspec.json.encode(model.body(request)))
            judge_wire(body[key])


def judge_request(request: ModelRequest) -> None:
    """Check a conversation that was sent: it ends with the user's word, or with results."""
    judge(request.messages)
    assert isinstance(request.messages[-1], UserMessage | ToolMessage), request.messages[-1]
    assert ANTHROPIC.body(request)["messages"][-1]["role"] == "user"


def judge_session(session: Session, requests: Sequence[ModelRequest] = ()) -> None:
    """Check a session as it stands, after every event of its log, and every request that it made."""
    from tests.support.sessions import replay

    judge(session.history)
    last: list[Message] = []
    for data, messages in replay(session):
        try:
            judge(messages)
        except AssertionError as error:
            error.add_note(f"after {data}, the history being {messages}")
            raise
        last = messages
    assert last == session.history, "what follows from the log is not what is in memory"
    for request in requests:
        judge_request(request)


def judge_messages(messages: Sequence[Message]) -> None:
    """Each call has one result right behind it, in order; nothing is empty; the user begins; names are unique."""
    if messages:
        assert isinstance(messages[0], UserMessage), messages[0]
    seen: set[str] = set()
    wanted: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert wanted, f"a result that nobody asked for, or in the wrong place: {message}"
            assert message.call_id == wanted.pop(0), f"not in the order of the calls: {message}"
            assert message.parts, message
            continue
        assert not wanted, f"no results of {wanted} before {message}"
        if isinstance(message, UserMessage):
            assert message.parts, message
            assert any(not isinstance(part, Text) or part.text.strip() for part in message.parts), message
            assert all(part.text for part in message.parts if isinstance(part, Text)), message
        else:
            assert isinstance(message, AssistantMessage)
            assert message.text or message.calls, message
            for call in message.calls:
                assert call.id, call
                assert call.id not in seen, f"{call.id} is used twice"
                seen.add(call.id)
            wanted = [call.id for call in message.calls]
    assert not wanted, f"no results of {wanted} at the end"


def judge_openai(messages: Sequence[dict[str, Any]]) -> None:
    """Check what OpenAI's chat completions refuse."""
    wanted: list[str] = []
    previous = ""
    for message in messages:
        role = message["role"]
        if role == "tool":
            assert wanted, f"tool without tool_calls before it: {message}"
            assert message["tool_call_id"] == wanted.pop(0), message
            assert message["content"], message
        else:
            assert not wanted, f"tool_calls {wanted} are not followed by their results: {message}"
        if role == "user":
            assert message["content"], message
            assert previous != "user", "two messages of the user in a row"
        if role == "assistant":
            assert message["content"] or message.get("tool_calls"), message
            wanted = [each["id"] for each in message.get("tool_calls", [])]
            for each in message.get("tool_calls", []):
                assert ID.fullmatch(each["id"]), each
                assert NAME.fullmatch(each["function"]["name"]), each
                assert isinstance(msgspec.json.decode(each["function"]["arguments"]), dict), each
        previous = role
    assert not wanted, f"tool_calls {wanted} have no results"


def judge_anthropic(messages: Sequence[dict[str, Any]]) -> None:
    """Check what Anthropic's messages refuse."""
    assert messages, "no messages"
    assert messages[0]["role"] == "user", messages[0]
    for one, other in pairwise(messages):
        assert one["role"] != other["role"], f"roles do not take turns: {one} {other}"
    asked: list[str] = []
    for message in messages:
        blocks = message["content"]
        assert blocks, message
        for block in blocks:
            if block["type"] == "text":
                assert block["text"].strip(), message
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        assert results == asked, f"asked for {asked}, answered {results}"
        assert all(block["type"] == "tool_result" for block in blocks[: len(results)]), "results come first"
        asked = [block["id"] for block in blocks if block["type"] == "tool_use"]
        for block in blocks:
            if block["type"] == "tool_use":
                assert ID.fullmatch(block["id"]), block
                assert NAME.fullmatch(block["name"]), block
                assert isinstance(block["input"], dict), block
        assert not asked or message["role"] == "assistant"
    assert not asked, f"tool_use {asked} without tool_result"
    last = messages[-1]["content"][-1]
    if messages[-1]["role"] == "assistant" and last["type"] == "text":
        assert last["text"] == last["text"].rstrip(), "a last answer must not end in white space"


def judge_responses(items: Sequence[dict[str, Any]]) -> None:
    """Check what OpenAI's Responses API refuses."""
    assert items, "no items"
    wanted: list[str] = []
    for item, following in zip(items, [*items[1:], None], strict=True):
        kind = item["type"]
        assert ("id" in item) == (kind == "reasoning"), f"only reasoning has an id: {item}"
        if kind == "function_call":
            assert ID.fullmatch(item["call_id"]), item
            assert NAME.fullmatch(item["name"]), item
            assert isinstance(msgspec.json.decode(item["arguments"]), dict), item
            wanted.append(item["call_id"])
        elif kind == "function_call_output":
            assert wanted, f"an output without its call before it: {item}"
            assert item["call_id"] == wanted.pop(0), item
        elif kind == "reasoning":
            assert item["encrypted_content"], item
            assert following, f"reasoning without its following item: {item}"
            assert following["type"] != "function_call_output", following
            assert following.get("role") != "user", following
        else:
            assert not (wanted and item["role"] == "user"), f"calls {wanted} have no outputs before {item}"
            assert item["content"], item
    assert not wanted, f"calls {wanted} have no outputs"


def judge_gemini(contents: Sequence[dict[str, Any]]) -> None:
    """Check what Gemini's own API refuses."""
    assert contents, "no contents"
    assert contents[0]["role"] == "user", contents[0]
    asked: list[str] = []
    for content in contents:
        parts = content["parts"]
        assert parts, content
        answered = [part["functionResponse"]["id"] for part in parts if "functionResponse" in part]
        assert answered == asked, f"asked for {asked}, answered {answered}"
        assert all("functionResponse" in part for part in parts[: len(answered)]), "results come first"
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        assert not calls or content["role"] == "model", content
        for call in calls:
            assert NAME.fullmatch(call["name"]), call
            assert isinstance(call["args"], dict), call
        asked = [call["id"] for call in calls]
    for one, other in pairwise(contents):
        assert one["role"] != other["role"], f"roles do not take turns: {one} {other}"
    assert not asked, f"calls {asked} have no results"
