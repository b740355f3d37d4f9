"""What enters the log is fit for every provider, whatever the model or the user sent."""

from __future__ import annotations

import asyncio
import itertools

import msgspec
import pytest

from halter.models import Answer, Audio, Image, Message, Reasoning, Text, ToolCall, ToolMessage, UserMessage
from halter.models.sanitize import clean_answer, clean_event, clean_message, clean_text
from halter.models.types import Part, TextDelta, ToolCallAsSent
from halter.testing import ScriptedModel
from tests.support.model_calls import Log, exchange_for
from tests.support.valid_history import judge

HALF = "caf\udcff \ud83d"
NAMES = ["search", "functions.search", "", " ", "näme", "a" * 200, "x\ny", "a/b:c.d", HALF, "mcp__srv-1__look", "🙂"]
IDS = ["", "c1", "c1", "functions.search:0", "a" * 200, "a" * 200, HALF, "call 1", "ü", "c1-2"]
ARGUMENTS = [
    "",
    "  ",
    "{}",
    '{"q": 1}',
    '{"q": ',
    "null",
    "[1]",
    "5",
    '"text"',
    '"{\\"q\\": 1}"',
    '{"q": NaN}',
    '{"q": "\\ud800"}',
    f'{{"q": "{HALF}"}}',
    "[" * 5000,
    "x" * 10_000,
    "<tool>search</tool>",
]


def test_lone_surrogates_are_replaced() -> None:
    """Half a pair becomes U+FFFD; everything else stays, pairs that are whole included."""
    assert clean_text(HALF) == "caf\ufffd \ufffd"
    for text in ("plain", "é 🙂 \x00 \ufffd", ""):
        assert clean_text(text) is text or clean_text(text) == text
    parts: list[Part] = [Text(HALF), Image(b"x", None, HALF), Image(None, HALF), Audio(b"x", HALF)]
    judge([clean_message(UserMessage(parts))])
    assert clean_event(TextDelta(HALF)) == TextDelta("caf\ufffd \ufffd")


def test_what_a_model_streams_is_clean_before_anybody_hears_of_it() -> None:
    """The events that are logged and the answer that is built from them say the same."""
    log = Log()
    answer = asyncio.run(exchange_for(ScriptedModel([HALF, "end"]), log).run())
    assert answer.text == log.text == "caf\ufffd \ufffdend"


def test_garbage_of_every_kind_makes_a_valid_history() -> None:
    """Every mix of names, ids and arguments passes the strict judge of both wires, and what was sent is kept."""
    messages: list[Message] = [UserMessage.of("go")]
    used: set[str] = set()
    for names, ids, arguments in itertools.zip_longest(
        _threes(NAMES * 4),
        _threes(IDS * 4),
        _threes(ARGUMENTS * 4),
        fillvalue=("x", "x", "x"),
    ):
        calls = [ToolCall(*each) for each in zip(ids, names, arguments, strict=False)]
        sent = Answer(HALF, [Reasoning(HALF, "signed"), Reasoning("fine", "signed")], calls, calls, detail=HALF)
        answer = clean_answer(sent, used, {"search"})
        assert not used & {call.id for call in answer.calls}
        used |= {call.id for call in answer.calls}
        assert answer.reasoning == [Reasoning("caf\ufffd \ufffd"), Reasoning("fine", "signed")]
        messages.append(answer.message)
        messages += [ToolMessage.of(call, "result") for call in answer.calls]
        assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer) == answer  # it can be logged
        for call, original in zip(answer.calls, calls, strict=True):
            written = call.as_written
            assert (written.id, written.name, written.arguments) == (
                clean_text(original.id),
                clean_text(original.name),
                clean_text(original.arguments),
            )
        judge(messages)
    assert len(used) == sum(isinstance(message, ToolMessage) for message in messages)


def _threes(values: list[str]) -> list[tuple[str, ...]]:
    return [tuple(values[at : at + 3]) for at in range(0, len(values), 3)]


def test_what_is_fit_is_left_alone() -> None:
    """Good calls are not copied, and have nothing beside them."""
    call = ToolCall("c1", "look", '{ "a" : 1 }')
    assert clean_answer(Answer(calls=[call]), ()).calls[0] is call


@pytest.mark.parametrize(
    ("name", "tools", "cleaned"),
    [
        ("functions.search", {"search"}, "search"),
        ("functions:search ", {"search"}, "search"),
        ("default_api/search", {"search"}, "search"),
        ("functions.search", {"search", "functions_search"}, "functions_search"),
        ("functions.search", {"find"}, "functions_search"),
        ("web search", {"web_search"}, "web_search"),
        ("", {"find"}, "unnamed"),
    ],
)
def test_a_name_with_a_namespace_means_the_tool_without_it(name: str, tools: set[str], cleaned: str) -> None:
    """Unless there is a tool that is closer; names that nobody knows are only made valid."""
    [call] = clean_answer(Answer(calls=[ToolCall("c", name)]), (), tools).calls
    assert call == ToolCall("c", cleaned, "{}", ToolCallAsSent("c", name, "{}"))


@pytest.mark.parametrize(
    ("arguments", "cleaned"),
    [
        ("", "{}"),
        ("null", "{}"),
        ('"{\\"q\\": 1}"', '{"q": 1}'),
        ('""', "{}"),
        ('{"q": ', '{"unreadable_arguments":"{\\"q\\": "}'),
        ("[1]", '{"unreadable_arguments":"[1]"}'),
    ],
)
def test_arguments_are_always_a_json_object(arguments: str, cleaned: str) -> None:
    """What can be understood is kept in its meaning; what cannot is shown to the model again, as text."""
    [call] = clean_answer(Answer(calls=[ToolCall("c", "look", arguments)]), ()).calls
    assert call == ToolCall("c", "look", cleaned, ToolCallAsSent("c", "look", arguments))


def test_ids_are_unique_over_the_whole_conversation() -> None:
    """An id that was used gets a number, within the length that providers take."""
    calls = [ToolCall(call_id, "look") for call_id in ("c1", "c1", "", "", "a" * 60, "a" * 60)]
    ids = [call.id for call in clean_answer(Answer(calls=calls), {"c1", "call"}).calls]
    assert ids == ["c1-2", "c1-3", "call-2", "call-3", "a" * 40, "a" * 38 + "-2"]
