"""A message at every point of a turn in which a tool asks: it is applied once, and read once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from halter import CancellationToken, Session
from halter.events import QuestionAsked
from halter.testing import interrupt_everywhere
from halter.toolbox.clarify import Clarify
from tests.support.sessions import agent_of, call, data_of, model_of
from tests.support.turn_scenarios import is_near_a_decision
from tests.support.valid_history import judge_session

ASK = call("clarify", "q1", json.dumps({"question": "Which colour?"}))
TEXT = "dark green"


def is_tried(place: str) -> bool:
    """Whether messages, questions and turns are decided about here; the rest is tried by its own tests."""
    return is_near_a_decision(place) or place.removeprefix("halter/").startswith(("toolbox/clarify", "tools/context"))


def judge(session: Session) -> None:
    """Judge that the message is applied once, and read by the model once."""
    applied = [each for each in data_of(session, "message.applied") if each.id == "m"]
    assert len(applied) == 1
    told = [str(message).count(TEXT) for message in model_of(session).requests[-1].messages]
    assert sum(told) == 1, told
    answered = data_of(session, "question.answered")
    assert len(answered) == len(data_of(session, "question.asked"))
    judge_session(session, model_of(session).requests)


async def answer_if_open(session: Session) -> None:
    """Answer the question by its id, unless the message came first."""
    with session.subscribe() as listener:
        async for event in listener:
            if isinstance(event.data, QuestionAsked):
                await asyncio.sleep(0)
                session.answer(event.data.id, "Red")
                return


def scenario_of(do: Callable[[Session], Any]) -> Callable[[CancellationToken], Any]:
    async def scenario(token: CancellationToken) -> None:
        async with agent_of(ASK, "one", "two", "three", tools=Clarify().tools).session() as session:
            answering = asyncio.ensure_future(answer_if_open(session))
            with token.on_cancel(lambda: do(session)):
                await asyncio.sleep(0)
                await session.arun("begin")
            if not data_of(session, "message.accepted")[1:]:
                session.post(TEXT, "steer", id="m")  # it was not interrupted
            session.release()
            await session.arun("go on")
            answering.cancel()  # if the question was never asked
            judge(session)

    return scenario


WAYS: dict[str, Callable[[Session], Any]] = {
    "queue": lambda session: session.post(TEXT, id="m"),
    "steer": lambda session: session.post(TEXT, "steer", id="m"),
    "message, then stop": lambda session: (session.post(TEXT, "steer", id="m"), session.stop()),
    "stop, then message": lambda session: (session.stop(), session.post(TEXT, "steer", id="m")),
    "interrupt": lambda session: session.post(TEXT, "interrupt", id="m"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_message_at_every_point_is_applied_once(way: str) -> None:
    """Wherever in a turn with a question a message comes, alone or with a stop, it is applied and read exactly once."""
    report = interrupt_everywhere(scenario_of(WAYS[way]), repeat=1, only=is_tried)
    assert len(report.points) > 200
