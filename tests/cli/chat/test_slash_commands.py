"""The commands of the chat."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from halter.cli.chat.input_line.completion import complete
from halter.cli.chat.input_line.file_references import Completion
from halter.cli.chat.slash_commands import COMMANDS
from halter.models import ToolCall
from halter.testing import FakeProvider, answer, hang_mid_stream, tool_calls
from tests.support.chat_screen import ENTER, ESC, TAB, ChatScreen
from tests.support.cli_program import Home


@pytest.fixture
def chat(home: Home) -> Iterator[ChatScreen]:
    with ChatScreen(home, rows=40) as chat:
        chat.wait_ready()
        yield chat


def test_all_that_were_promised_are_there() -> None:
    """The commands are these; and each one that is typed in part can be completed."""
    promised = (
        "stop steer queue busy undo redo retry rollback diff compact context cost why tools mcp init model sessions "
        "resume new export theme help quit"
    )
    assert list(COMMANDS) == promised.split()
    assert complete("/re") == Completion(0, ["/redo", "/retry", "/resume"])
    assert complete("/stop now") is complete("stop") is complete(" /stop") is None


def test_completing_and_unknown_ones(chat: ChatScreen, provider: FakeProvider) -> None:
    """The commands that a line may become are shown as it is typed; Tab completes; one that is not known is an error
    that names the nearest, and nothing is sent; a line that begins with a space is a message.
    """
    chat.type("/re")
    chat.wait_for("/retry  /resume")
    chat.type("s" + TAB)
    chat.wait_for_line("> /resume")
    chat.type("\x15/qeue" + ENTER)
    chat.wait_for("unknown command /qeue; did you mean /queue")
    chat.wait_for_line("> /qeue")
    chat.type("\x15")
    chat.send("/etc/passwd is a file")
    chat.wait_for("unknown command /etc/passwd")
    assert not provider.requests
    chat.type("\x15 /etc/passwd is a file" + ENTER)
    assert provider.wait_for_request(1).body["messages"][-1]["content"] == " /etc/passwd is a file"


def test_steering_queueing_and_stopping(chat: ChatScreen, provider: FakeProvider) -> None:
    """/steer and /queue send as they say, whatever Enter does; /busy changes that; /stop stops, and /queue lists."""
    provider.script(hang_mid_stream(1, text="Once upon a "), hang_mid_stream(1, text="Ahoy, it was "), answer("End."))
    chat.send("A story.")
    chat.wait_for("Once upon a")
    chat.send("/busy queue")
    chat.wait_for("(busy = queue)")
    chat.send("like a pirate")
    chat.wait_for("queued    like a pirate")
    chat.send("/steer now")
    chat.wait_for("steered, interrupted the answer", "Ahoy, it was")
    chat.send("/queue and more")
    chat.wait_for("queued    and more")
    chat.send("/stop")
    chat.wait_for("■ stopped in", "held      like a pirate", "held      and more")
    chat.send("/queue")
    chat.wait_for("held     queue     like a pirate", "held     queue     and more")
    chat.send("/why")
    chat.wait_for("Stop requested by stop() (stop: /stop)", "request test", "cancelled")


def test_a_pause(chat: ChatScreen, provider: FakeProvider) -> None:
    """/stop step ends the turn behind its running step."""
    provider.script(tool_calls([ToolCall("1", "ask", "{}")]))
    chat.send("Ask.")
    chat.wait_for("Which colour?")
    chat.send("/stop step")
    chat.wait_for("pausing after the running step")
    chat.send("red")
    chat.wait_for("paused after the step")
    assert len(provider.requests) == 1


def test_taking_back(chat: ChatScreen, provider: FakeProvider) -> None:
    """/retry asks the same again, /undo gives the text back into the line, /rollback only takes the turn out; the model
    does not hear of what was taken back; and when there is nothing left, it says so.
    """
    provider.script(answer("Bad."), answer("Better."), answer("Good."))
    chat.send("Try.")
    chat.wait_for("Bad.")
    chat.wait_ready()
    chat.send("/retry")
    chat.wait_for("Better.")
    chat.wait_ready()
    assert [each["content"] for each in provider.requests[1].body["messages"][1:]] == ["Try."]
    chat.send("/undo")
    chat.wait_for_line("> Try.")
    chat.type(" Again.")
    chat.wait_for_line("> Try. Again.")
    chat.type(ENTER)
    chat.wait_for("Good.")
    chat.wait_ready()
    assert [each["content"] for each in provider.requests[2].body["messages"][1:]] == ["Try. Again."]
    chat.send("/rollback")
    chat.wait(lambda: chat.text.count("the turn was removed from the conversation") == 3)
    chat.send("/undo")
    chat.wait_for("no turn to remove")


def test_taking_back_what_runs(chat: ChatScreen, provider: FakeProvider) -> None:
    """/undo while a turn runs stops it, takes it out, and gives all its texts back."""
    provider.script(hang_mid_stream(1, text="Once upon a "), hang_mid_stream(1, text="Ahoy, it was "))
    chat.send("A story.")
    chat.wait_for("Once upon a")
    chat.send("Like a pirate.")
    chat.wait_for("Ahoy")
    chat.send("/undo")
    chat.wait_for("stopped and rolled back", "the turn was removed from the conversation")
    chat.wait_for_line("Like a pirate.")
    chat.wait_for("> A story.")


def test_compacting(chat: ChatScreen, home: Home, provider: FakeProvider) -> None:
    """/compact has older messages summarised before the next request, and the chat says what it did."""
    long = f"{'Word. ' * 3_000}Firstly."
    provider.script(answer(long), answer("Secondly."), answer("## Goal\nWords."), answer("Last answer."))
    for text in ("First", "Second"):
        chat.send(f"{text}.")
        chat.wait_for(f"{text}ly.")
        chat.wait_ready()
    chat.send("/compact")
    chat.wait_for("the context is compacted before the next request")
    chat.send("Third.")
    chat.wait_for("context compacted from about", "older messages were summarised", "Last answer.")
    first = provider.wait_for_request(4).body["messages"][1]
    assert "Words." in str(first)
    assert "context.compacted" in [event.kind for event in home.events()]


def test_looking_around(chat: ChatScreen, home: Home, provider: FakeProvider) -> None:
    """/tools, /model, /help and /why tell what there is; /model changes it for the next turn; a bad name does not."""
    chat.send("/tools")
    chat.wait_for("launch               Launch something.")
    chat.send("/model")
    chat.wait_for("using test;")
    chat.send("/model nonsense")
    chat.wait_for("/model: there is no model named 'nonsense'")
    chat.send("/model openai:other")
    chat.wait_for("using openai:other from the next turn on")
    chat.send("Hello.")
    assert provider.wait_for_request(1).body["model"] == "other"
    chat.wait_ready()
    chat.send("/help")
    chat.wait_for("Alt+Up", "/rollback")
    chat.send("/why")
    chat.wait_for("no turn of this session was stopped")


def test_sessions(chat: ChatScreen, home: Home, provider: FakeProvider) -> None:
    """/new begins another session, /sessions lists them, /resume goes back by how the id begins and shows where it was;
    not while a turn runs; /export writes the conversation to a new file.
    """
    provider.script(answer("First answer."), hang_mid_stream(1, text="Second answer "))
    chat.send("First.")
    chat.wait_for("First answer.")
    chat.wait_ready()
    first = home.events()[0].session
    chat.send("/new")
    chat.wait_for("New session.")
    chat.send("Second.")
    chat.wait_for("Second answ")
    chat.send(f"/resume {first[:6]}")
    chat.wait_for("a turn is running: stop it first")
    chat.type(ESC)
    chat.wait_for("■ stopped in")
    chat.send("/sessions")
    chat.wait_for("FIRST MESSAGE", "First.", "Second.")
    chat.send("/resume nothing")
    chat.wait_for("there is no session 'nothing'")
    chat.send(f"/resume {first[:6]}")
    chat.wait_for(f"Session {first}, where you left off:")
    path = home.path / "talk.md"
    chat.send(f"/export {path}")
    chat.wait_for("2 messages written to")
    assert re.search("## You\n\nFirst.\n\n## Halter\n\nFirst answer.", path.read_text())
    chat.send(f"/export {path}")
    chat.wait_for("/export: [Errno 17] File exists")
    provider.script(answer("Third answer."))
    chat.send("Third.")
    chat.wait_for("Third answer.")
    assert "Second" not in str(provider.requests[-1].body["messages"])
