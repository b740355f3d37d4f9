"""No message is ever lost: typed while it starts, while something is asked, or when it cannot be kept."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable

import pytest

from halter.events import MessageApplied, QuestionAnswered
from halter.events.tools import ApprovalAnswered
from halter.models import ToolCall
from halter.testing import FakeProvider, ScriptedReply, answer, hang_mid_stream, tool_calls
from tests.support.chat_screen import ALT_ENTER, ALT_UP, CTRL_U, ENTER, ESC, ChatScreen
from tests.support.cli_program import Home

ASK = ToolCall("1", "ask", "{}")
LAUNCH = ToolCall("1", "launch", '{"what": "rocket"}')


def held(until: threading.Event, reply: ScriptedReply) -> Callable[[object], ScriptedReply]:
    """A reply that the provider holds back until then."""

    def reply_then(_request: object) -> ScriptedReply:
        assert until.wait(60)
        return reply

    return reply_then


def test_typed_while_it_starts(home: Home, provider: FakeProvider) -> None:
    """What is typed before the line is there, Enter included, is a message as any other, and not shown twice."""
    provider.script(answer("Here I am."))
    with ChatScreen(home) as chat:
        chat.type(f"Are you there?{ENTER}and this is half a")
        chat.wait_for("» Are you there?", "Here I am.")
        chat.wait_for_line("> and this is half a")
    assert provider.requests[0].body["messages"][-1]["content"] == "Are you there?"


def test_a_message_answers_a_question(home: Home, provider: FakeProvider) -> None:
    """While a tool asks, the question and its choices stand above the line. A number is its choice, other words are
    what they are; both go to the tool, and not to the model beside it.
    """
    with ChatScreen(home, HALTER_BUSY="interrupt") as chat:
        chat.wait_ready()
        for typed, given in (("2", "blue"), ("green", "green")):
            provider.script(tool_calls([ASK]), answer(f"So {given}."))
            chat.send("Paint.")
            chat.wait_for("? Which colour?", "1. red", "2. blue")
            chat.send(typed)
            chat.wait_for(f"» {given}", "answered the question", f"So {given}.")
            chat.wait_ready()
    answers = [event.data.value for event in home.events() if isinstance(event.data, QuestionAnswered)]
    assert answers == ["blue", "green"]


def test_a_stop_withdraws_a_question(home: Home, provider: FakeProvider) -> None:
    """Esc withdraws what is asked, and says so; what is typed then is a message, and the model is told of both."""
    provider.script(tool_calls([ASK]), answer("Fine."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("Paint.")
        chat.wait_for("? Which colour?")
        chat.type("red")
        chat.wait_for_line("> red")
        chat.type(ESC)
        chat.wait_for("Which colour? · withdrawn")
        chat.wait_gone("1. red")
        chat.type(ENTER)
        chat.wait_for("» red", "Fine.")
    applied = [event.data for event in home.events() if isinstance(event.data, MessageApplied)]
    assert [each.question for each in applied] == ["", ""]


def test_allowing_a_call(home: Home, provider: FakeProvider) -> None:
    """A call that needs approval is shown with its arguments; y allows it, n does not, any other words are a message,
    and a stop withdraws it.
    """
    with ChatScreen(home) as chat:
        chat.wait_ready()
        for typed, outcome in (("y", "✓ launch rocket"), ("no", "✗ launch rocket · denied")):
            provider.script(tool_calls([LAUNCH]), answer(f"After {typed}."))
            chat.send("Launch.")
            chat.wait_for("Allow launch?", "what: rocket", "y: Allow once")
            chat.send(typed)
            chat.wait_for(outcome, f"After {typed}.")
            chat.wait_ready()
        provider.script(tool_calls([LAUNCH]), answer("Not yet, then."))
        chat.send("Launch.")
        chat.wait_state("needs you")
        chat.send("wait for the weather")
        chat.wait_for("» wait for the weather", "Not yet, then.")
        chat.wait_ready()
        provider.script(tool_calls([LAUNCH]))
        chat.send("Launch.")
        chat.wait_state("needs you")
        chat.type(ESC)
        chat.wait_for("■ stopped in")
        chat.wait_ready()
        chat.wait_gone("y: Allow once")
    answers = [event.data for event in home.events() if isinstance(event.data, ApprovalAnswered)]
    assert [each.granted for each in answers] == [True, False, False, False]
    assert [each.by for each in answers[:2]] == ["terminal", "terminal"]


@pytest.mark.parametrize("word", ["y", "n", "always"])
def test_a_second_answer_is_no_message(home: Home, provider: FakeProvider, word: str) -> None:
    """An answer that is typed once more right after the approval does not steer the call that it has allowed; the chat
    says so, and Alt+Enter sends it all the same.
    """
    home.write_module(
        """
import asyncio
from halter import ToolContext, tool

@tool(approval=True)
async def fly(ctx: ToolContext) -> str:
    "Fly."
    ctx.report("in the air")
    await asyncio.sleep(1000)
"""
    )
    home.env["HALTER_TOOLS"] = "mytools:fly"
    provider.script(tool_calls([ToolCall("1", "fly", "{}")]), answer("Landed."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("Go.")
        chat.wait_state("needs you")
        chat.type(f"y{ENTER}{word}{ENTER}")
        chat.wait_for("in the air")
        chat.wait(
            lambda: "was not sent: the question was already answered" in chat.text or "no longer open" in chat.text
        )
        assert len(provider.requests) == 1
        assert "steer" not in chat.text
        chat.type(word)
        chat.wait_for_line(f"> {word}")
        chat.type(ALT_ENTER)
        chat.wait_for(f"queued    {word}")


def test_a_long_call_is_read_to_its_end(home: Home, provider: FakeProvider) -> None:
    """A yes counts when the last page was shown, else it shows the next one, as Enter does; a stop withdraws it."""
    long = ToolCall("l", "launch", json.dumps({"what": "rocket\n" * 30 + "and the moon"}))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        provider.script(tool_calls([long]), answer("Gone."))
        chat.send("Launch.")
        chat.wait_for("Enter: next page (1 more)")
        chat.send("y")
        chat.wait_for("and the moon", "read it to the end first", "y: Allow once")
        chat.send("n, it rains")
        chat.wait_for("the answer was no: it rains", "Gone.")
        chat.wait_ready()
        provider.script(tool_calls([long]), answer("Up."))
        chat.send("Again.")
        chat.wait_for("Enter: next page (1 more)")
        chat.type(ENTER)
        chat.wait_for("y: Allow once")
        chat.send("s")
        chat.wait_for("allowed (approved for this session)", "Up.")
        chat.wait_ready()
        provider.script(tool_calls([ToolCall("m", "guarded", json.dumps({"what": "x\n" * 30}))]))
        chat.send("And more.")
        chat.wait_for("Enter: next page (1 more)")
        chat.type(ESC)
        chat.wait_for("■ stopped in")
        chat.wait_gone("Enter: next page (1 more)")
    answers = [event.data for event in home.events() if isinstance(event.data, ApprovalAnswered)]
    assert [each.scope for each in answers] == ["once", "session", "once"]


def test_a_prefix_is_allowed_for_always(home: Home, provider: FakeProvider) -> None:
    """The person at the terminal may keep it in the settings, where `halter config` shows it."""
    home.env["HALTER_TOOLS"] = "Terminal"
    with ChatScreen(home) as chat:
        chat.wait_ready()
        provider.script(tool_calls([ToolCall("t", "terminal", '{"command": "mkdir made"}')]), answer("Made."))
        chat.send("Make it.")
        chat.wait_for("mkdir may change something. Run this command?", "a: Always")
        chat.send("a")
        chat.wait_for("Made.", "added to approve_prefixes")
        chat.wait_ready()
    assert 'approve_prefixes = ["mkdir"]' in home.run("config", "show").out


def test_a_word_typed_before_the_question_does_not_allow(home: Home, provider: FakeProvider) -> None:
    """Somebody types "y" as something comes up that asks for it: Enter allows nothing that was not there when they
    began to type; it says so, and the next Enter is the answer.
    """
    typed = threading.Event()
    provider.script(held(typed, tool_calls([LAUNCH])), answer("Done."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("Launch.")
        chat.wait_state("waiting")
        chat.type("y")
        chat.wait_for_line("> y")
        assert "Allow launch" not in chat.text
        typed.set()
        chat.wait_for("Allow launch?")
        chat.type(ENTER)
        chat.wait_notice("this question appeared while you typed: press Enter again to answer it")
        chat.wait_for_line("> y")
        chat.type(ENTER)
        chat.wait_for("✓ launch rocket", "Done.")


def test_what_cannot_be_kept_stays_in_the_line(home: Home, provider: FakeProvider) -> None:
    """If the store refuses a message, it is still in the line, beside the reason, and nothing was sent."""
    with ChatScreen(home) as chat:
        chat.wait_ready()
        provider.script(answer("Yes."))
        chat.send("One.")
        chat.wait_for("Yes.")
        chat.wait_ready()
        with sqlite3.connect(home.path / "sessions.db") as other:
            other.execute("UPDATE session SET generation = generation + 1")
        other.close()
        chat.send("Two.")
        chat.wait_notice("not sent:")
        chat.wait_for_line("> Two.")
    assert len(provider.requests) == 1


def test_editing_what_waits(home: Home, provider: FakeProvider) -> None:
    """Alt+Up takes the last message that waits into the line, again the one before; emptied it is removed; a clear
    leaves it as it was; and one that was sent meanwhile stays in the line, as what it then is: another message.
    """
    provider.script(hang_mid_stream(1, text="Once upon a "), answer("Well."), answer("Good."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("A story.")
        chat.wait_for("Once upon a")
        for text in ("first", "second", "third"):
            chat.type(f"{text}\x1b\r")
            chat.wait_for(f"queued    {text}")
        chat.type(ALT_UP)
        chat.wait_for_line("> third")
        chat.type(ALT_UP)
        chat.wait_for_line("> second")
        chat.type(CTRL_U)
        chat.wait_gone("> second")
        chat.type(ENTER)
        chat.wait_notice("removed")
        chat.wait_gone("queued    second")
        chat.type(ALT_UP)
        chat.wait_for_line("> third")
        chat.type("!")
        chat.wait_for_line("> third!")
        chat.type("\x03")
        chat.wait_notice("message unchanged")
        chat.wait_for("queued    third")
        chat.type(ALT_UP)
        chat.wait_for_line("> third")
        chat.type(" time")
        chat.wait_for_line("> third time")
        chat.type(ESC)
        chat.wait_for("held      first", "held      third")
        chat.wait_for_line("> third time")
        chat.type(ENTER)
        chat.wait_for("held      third time")
        chat.type(ENTER)
        chat.wait_for("» first", "» third time", "Well.")


def test_a_command_while_a_message_is_edited(home: Home, provider: FakeProvider) -> None:
    """A command in place of the edited text is a command; the message that waits is as it was."""
    provider.script(hang_mid_stream(1, text="Once upon a "), hang_mid_stream(1, text="Ahoy, it was "))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("A story.")
        chat.wait_for("Once upon a")
        chat.type("more\x1b\r")
        chat.wait_for("queued    more")
        chat.type(ALT_UP)
        chat.wait_for_line("> more")
        chat.type(CTRL_U)
        chat.wait_gone("> more")
        chat.send("/steer like a pirate")
        chat.wait_for("» like a pirate", "Ahoy, it was", "queued    more")


def test_a_stop_phrase(home: Home, provider: FakeProvider) -> None:
    """A message that only says stop stops the turn that runs, and is not sent; when nothing runs, it is a message."""
    provider.script(hang_mid_stream(1, text="Once upon a "), answer("Stop what?"))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("A story.")
        chat.wait_for("Once upon a")
        chat.send("Stop!")
        chat.wait_for("■ stopped in")
        chat.wait_ready()
        chat.send("Stop!")
        chat.wait_for("Stop what?")


def test_a_message_that_is_sent_while_it_is_edited(home: Home, provider: FakeProvider) -> None:
    """A message that leaves the inbox while it is in the line to be changed was sent as it was. The change stays in the
    line, and it says so: it is another message now.
    """
    edited = threading.Event()
    provider.script(held(edited, answer("One two.")), answer("Well."), answer("Good."))
    with ChatScreen(home) as chat:
        chat.wait_ready()
        chat.send("Count.")
        chat.wait_state("waiting")
        chat.type("more\x1b\r")
        chat.wait_for("queued    more")
        chat.type(ALT_UP)
        chat.wait_for_line("> more")
        chat.type("!")
        chat.wait_for_line("> more!")
        edited.set()
        chat.wait_for("» more", "Well.")
        chat.wait_for_line("> more!")
        chat.type(ENTER)
        chat.wait_notice("it was sent in the meantime")
        chat.type(ENTER)
        chat.wait_for("» more!", "Good.")
