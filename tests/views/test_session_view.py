"""What every face shows of a session: the reducer passes the fixture that the page's JavaScript passes too."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halter import Agent
from halter.events import Event
from halter.testing import Gate, ScriptedModel
from halter.views.session_view import SessionDisplay
from tests.support.display_dump import dump

FIXTURE = Path(__file__).parent / "fixture.json"
CASES = json.loads(FIXTURE.read_text("utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_fixture(case: dict[str, Any]) -> None:
    """After each step of events the state is the expected one."""
    display = SessionDisplay()
    for step in case["steps"]:
        for event in step["events"]:
            display.apply(msgspec.convert(event, Event))
        assert json.loads(json.dumps(dump(display))) == step["expect"]


def test_an_event_that_comes_twice_counts_once() -> None:
    """A face that was behind may get an event again; it changes nothing."""
    display = SessionDisplay()
    events = [msgspec.convert(event, Event) for step in CASES[0]["steps"] for event in step["events"]]
    for event in events:
        display.apply(event)
        assert display.apply(event) is None
    assert json.loads(json.dumps(dump(display))) == CASES[0]["steps"][-1]["expect"]


def test_a_real_session() -> None:
    """The display of a real log: the answer so far, how the turn ended, and the held message."""
    gate = Gate()
    with Agent(ScriptedModel("One.", ["Two, ", gate])).session() as session:
        session.run("first")

        def stop() -> None:
            gate.wait_reached()
            session.post("later")
            session.stop()

        threading.Thread(target=stop).start()
        session.run("second")
        display = SessionDisplay(max_turns=1)
        for event in session.events():
            display.apply(event)
    (turn,) = display.turns
    assert (turn.text, turn.status, turn.reason) == ("Two, ", "interrupted", "stop")
    assert [message.state for message in display.queue.values()] == ["held"]
    assert (display.state, display.title) == ("idle", "first")
