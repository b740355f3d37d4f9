"""Messages that are typed at the very end of a turn: each of them is answered, exactly once."""

from __future__ import annotations

import collections
import os
import random
import threading
from pathlib import Path

import pytest

from halter.events import MessageAccepted, MessageApplied, TurnFinished
from halter.events.requests import RequestFinished
from halter.testing import FakeProvider, SeenRequest, answer
from halter.testing.replies import ScriptedReply
from tests.support.chat_screen import ENTER, ESC, ChatScreen
from tests.support.cli_program import Home
from tests.support.turn_scenarios import EVERY_POINT
from tests.support.waiting import wait_until

ROUNDS = 500 if os.environ.get(EVERY_POINT) else 60
DELAY = 0.004  # of each answer


def reply(_request: SeenRequest) -> ScriptedReply:
    return answer("Yes.", delay=DELAY)


@pytest.mark.parametrize("busy", ["steer", "interrupt", "queue"])
def test_a_message_in_the_last_milliseconds_of_a_turn(tmp_path: Path, busy: str) -> None:
    """Typed around the end of the turn before it, at a random moment, every message is accepted once, applied once, in
    order, and answered; none is lost between two turns, and none is in two.
    """
    chance = random.Random(busy)
    pause = threading.Event()
    with FakeProvider(default=reply) as provider:
        home = Home(tmp_path, provider)
        with ChatScreen(home, HALTER_BUSY=busy) as chat:
            chat.wait_ready()
            for number in range(ROUNDS):
                text = f"message {number}."
                chat.type(text + ENTER)
                wait_until(lambda: any(_asks(request, text) for request in provider.requests[-3:]))
                pause.wait(chance.uniform(0, 2.5 * DELAY))  # the answer is on its way: each round is another moment
            wait_until(lambda: _is_over(home, ROUNDS))
            chat.wait_ready()
        events = [event.data for event in home.events()]
    texts = [f"message {number}." for number in range(ROUNDS)]
    accepted = {data.id: data.message.text for data in events if isinstance(data, MessageAccepted)}
    applied = [data.id for data in events if isinstance(data, MessageApplied)]
    assert list(accepted.values()) == texts
    assert [accepted[each] for each in applied] == texts
    last = provider.requests[-1].body["messages"]
    said = collections.Counter(
        line for each in last if each["role"] == "user" for line in str(each["content"]).split("\n") if line in texts
    )
    assert set(said.values()) == {1}
    assert len(said) == ROUNDS
    assert any(isinstance(data, RequestFinished) for data in events[-3:])
    assert isinstance(events[-1], TurnFinished)
    assert events[-1].status == "done"


def _is_over(home: Home, messages: int) -> bool:
    """Whether so many messages have been applied, and the last turn is over."""
    events = home.events()
    applied = sum(isinstance(event.data, MessageApplied) for event in events)
    return applied == messages and isinstance(events[-1].data, TurnFinished)


def _asks(request: SeenRequest, text: str) -> bool:
    return any(text in str(each["content"]) for each in request.body["messages"] if each["role"] == "user")


def test_a_stop_in_the_last_milliseconds_of_a_turn(tmp_path: Path) -> None:
    """Esc around the end of a turn stops that turn or nothing: the message that follows it is answered in any case, and
    what was held by the stop is released, not lost.
    """
    chance = random.Random(1)
    pause = threading.Event()
    rounds = ROUNDS // 5
    with FakeProvider(default=reply) as provider:
        home = Home(tmp_path, provider)
        with ChatScreen(home) as chat:
            chat.wait_ready()
            for number in range(rounds):
                text = f"message {number}."
                chat.type(text + ENTER)
                wait_until(lambda: any(_asks(request, text) for request in provider.requests[-3:]))
                pause.wait(chance.uniform(0, 2 * DELAY))
                chat.type(ESC)
                pause.wait(0.06)  # or the key behind it would make it an Alt
            wait_until(lambda: _is_over(home, rounds))
            chat.wait_ready()
        events = [event.data for event in home.events()]
    accepted = {data.id: data.message.text for data in events if isinstance(data, MessageAccepted)}
    applied = [accepted[data.id] for data in events if isinstance(data, MessageApplied)]
    assert applied == [f"message {number}." for number in range(rounds)]
    ends = collections.Counter(data.status for data in events if isinstance(data, TurnFinished))
    assert ends["failed"] == 0
    assert sum(ends.values()) == rounds
