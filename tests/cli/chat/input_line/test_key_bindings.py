"""Every key in every state: what it does, and that it says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from halter.events import MessageAccepted, MessageApplied, TurnStopping
from halter.models import ToolCall
from halter.testing import FakeProvider, answer, hang_before_first_byte, hang_mid_stream, tool_calls
from tests.support.chat_screen import ALT_ENTER, ALT_UP, CTRL_C, CTRL_D, ENTER, ESC, TAB, UP, ChatScreen
from tests.support.cli_program import Home

WORKING = {
    "waiting": (hang_before_first_byte, "waiting for the model"),
    "answering": (lambda: hang_mid_stream(2, text="Once upon a time there was"), "answering"),
    "tool": (lambda: tool_calls([ToolCall("1", "dig", '{"place": "garden"}')]), "running 1 tool"),
    "question": (lambda: tool_calls([ToolCall("1", "ask", "{}")]), "needs you"),
    "approval": (lambda: tool_calls([ToolCall("1", "launch", '{"what": "rocket"}')]), "needs you"),
}


@pytest.fixture
def chat(home: Home) -> Iterator[ChatScreen]:
    with ChatScreen(home) as chat:
        chat.wait_ready()
        yield chat


class Work:
    """Has the agent work, again and again, in one of its ways."""

    def __init__(self, chat: ChatScreen, provider: FakeProvider, kind: str) -> None:
        self._chat = chat
        self._provider = provider
        self._reply, self._state = WORKING[kind]
        self.number = 0

    def begin(self) -> None:
        self.number += 1
        seen = len(self._provider.requests)
        self._provider.script(self._reply())
        self._chat.send(f"work {self.number}")
        self._provider.wait_for_request(seen + 1)
        self._chat.wait_state(self._state)

    def wait_stopped(self, times: int) -> None:
        """Wait until so many turns have been stopped by now, and it is ready."""
        self._chat.wait(lambda: self._chat.text.count("■ stopped in") >= times, f"{times} stops")
        self._chat.wait_ready()


@pytest.mark.parametrize("kind", WORKING)
def test_stopping_and_queueing_while_it_works(chat: ChatScreen, home: Home, provider: FakeProvider, kind: str) -> None:
    """Whatever runs: Esc and Ctrl+C stop it, what was queued is held and shown, text in the line is only cleared, and
    the held message can be edited, and sent by Enter on the empty line.
    """
    work = Work(chat, provider, kind)
    work.begin()
    chat.type("half a thought")
    chat.wait_for_line("half a thought")
    chat.type(CTRL_C)
    chat.wait_notice("line cleared")
    chat.wait_gone("half a thought")
    chat.type(UP)
    chat.wait_for_line("half a thought")
    chat.type(CTRL_C)
    chat.wait_gone("half a thought")
    chat.type(ESC)
    work.wait_stopped(1)

    work.begin()
    chat.type(CTRL_C)
    work.wait_stopped(2)

    if kind != "question":  # there it would be the answer
        work.begin()
        for text in ("the first", "by alt enter"):
            chat.type(text)
            chat.wait_for_line(text)
            chat.type(ALT_ENTER)
            chat.wait_for(f"queued    {text}")
        chat.type(ESC)
        work.wait_stopped(3)
        chat.wait_for("held      the first", "held      by alt enter")
        chat.type(ALT_UP)
        chat.wait_for_line("> by alt enter")
        chat.type(", changed")
        chat.wait_for_line(", changed")
        chat.type(ENTER)
        chat.wait_for("held      by alt enter, changed")
        chat.wait_notice("changed")
        provider.script(answer("Here you are."))
        chat.type(ENTER)
        chat.wait_for("» the first", "» by alt enter, changed", "Here you are.")
        chat.wait_ready()
    stops = [event.data for event in home.events() if isinstance(event.data, TurnStopping)]
    assert [(stop.reason, stop.detail) for stop in stops[:2]] == [("stop", "Esc"), ("stop", "Ctrl+C")]


def test_enter_while_it_works_steers(chat: ChatScreen, home: Home, provider: FakeProvider) -> None:
    """Enter while a tool runs breaks it off, and while it answers the answer; each time it says so, with the time."""
    provider.script(
        tool_calls([ToolCall("1", "dig", '{"place": "garden"}')]),
        hang_mid_stream(2, text="The cellar is a deep place"),
        answer("Done."),
    )
    chat.send("Dig.")
    chat.wait_for("dig garden", "one metre deep")
    chat.send("No, in the cellar.")
    chat.wait_for("» No, in the cellar.")
    chat.wait_for_match(r"steered, interrupted dig \(\d+\.\d+ m?s\)")
    chat.wait_for("The cellar is a deep pla")
    chat.send("Enough.")
    chat.wait_for_match(r"steered, interrupted the answer \(\d+\.\d+ m?s\)")
    chat.wait_for("Done.")
    applied = [event.data.mode for event in home.events() if isinstance(event.data, MessageApplied)]
    assert applied == ["queue", "steer", "steer"]


@pytest.mark.parametrize(("busy", "mode"), [("interrupt", "interrupt"), ("queue", "queue")])
def test_enter_does_what_busy_says(home: Home, provider: FakeProvider, busy: str, mode: str) -> None:
    """The setting decides what Enter does while a turn runs: it is stopped and the message is next, or it waits."""
    provider.script(hang_mid_stream(1, text="Once upon a "), answer("Yes?"))
    with ChatScreen(home, HALTER_BUSY=busy) as chat:
        chat.wait_ready()
        chat.send("A story.")
        chat.wait_for("Once upon a")
        chat.send("Wait.")
        if busy == "queue":
            chat.wait_for("queued    Wait.")
            assert len(provider.requests) == 1
            chat.type(ESC)
            chat.wait_for("held      Wait.")
            chat.type(ENTER)
        else:
            chat.wait_for("interrupted in")
        chat.wait_for("» Wait.", "Yes?")
    accepted = [event.data.mode for event in home.events() if isinstance(event.data, MessageAccepted)]
    assert accepted == ["queue", mode]


def test_what_a_stop_says(chat: ChatScreen, provider: FakeProvider) -> None:
    """A stop tells how long it took, how many calls kept partial results and how many were abandoned."""
    calls = [ToolCall("1", "search", '{"query": "a"}'), ToolCall("2", "search", '{"query": "b"}')]
    provider.script(tool_calls([*calls, ToolCall("3", "wedge", "{}")]))
    chat.send("Go.")
    chat.wait_state("running 3 tools")
    chat.wait_for("wedged now", "found by a", "found by b")
    chat.type(ESC)
    chat.wait_for_match(r"stopped in \d+\.\d ms; 2 calls kept partial results; 1 abandoned")
    chat.wait_for("search a · partial result kept", "wedge · abandoned: it did not end, and may still have effects")


def test_keys_when_nothing_runs(chat: ChatScreen, provider: FakeProvider) -> None:
    """Idle, Esc and Ctrl+C say that nothing runs; Tab sends nothing, Alt+Enter does; Alt+Up says that nothing waits;
    Enter on the empty line does nothing.
    """
    chat.type(ESC)
    chat.wait_notice("nothing is running")
    chat.type(ALT_UP)
    chat.wait_notice("no messages are queued")
    chat.type(ENTER)
    provider.script(answer("Answer one."))
    chat.type("one")
    chat.wait_for_line("one")
    chat.type(TAB)
    chat.wait_notice("Tab completes /commands and @files; Alt+Enter queues a message")
    chat.wait_for_line("> one")
    assert not provider.requests
    chat.type(ALT_ENTER)
    chat.wait_for("» one", "Answer one.")
    chat.wait_ready()
    chat.type(CTRL_C)
    chat.wait_notice("Nothing is running. Press Ctrl+C again to quit.")
    assert len(provider.requests) == 1


def test_a_new_line(chat: ChatScreen, provider: FakeProvider) -> None:
    """A backslash in front of Enter makes a new line, and both lines are one message."""
    chat.type("first\\" + ENTER + "second")
    chat.wait_for_line("second")
    assert not provider.requests
    chat.type(ENTER)
    assert provider.wait_for_request(1).body["messages"][-1]["content"] == "first\nsecond"


def leave_by_ctrl_d(chat: ChatScreen) -> None:
    chat.type(CTRL_D)


def leave_by_ctrl_c(chat: ChatScreen) -> None:
    chat.type(CTRL_C)
    chat.wait(lambda: "Nothing is running" in chat.text or "■ stopped" in chat.text)
    chat.type(CTRL_C)


def leave_by_command(chat: ChatScreen) -> None:
    chat.send("/quit")


@pytest.mark.parametrize(("leave", "code"), [(leave_by_ctrl_d, 0), (leave_by_ctrl_c, 130), (leave_by_command, 0)])
@pytest.mark.parametrize("kind", [None, "tool"])
def test_leaving(
    chat: ChatScreen, provider: FakeProvider, kind: str | None, leave: Callable[[ChatScreen], None], code: int
) -> None:
    """Ctrl+D, Ctrl+C twice and /quit leave, whatever runs: it says so at once, stops what runs, and names the session
    if there is one.
    """
    if kind is not None:
        Work(chat, provider, kind).begin()
    leave(chat)
    assert chat.end() == code
    assert "Shutting down…" in chat.text
    assert ("To continue: python -m halter --session" in chat.text) == (kind is not None)
    assert "Traceback" not in chat.text
