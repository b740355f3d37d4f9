"""A turn whose tool asks a question, and someone who answers it: what an answer and a stop are tried on together.

Only what is in this file and in Halter itself is stopped at.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from halter import Agent, CancellationToken, Session, ToolContext, tool
from halter.events import QuestionAnswered, QuestionAsked
from halter.stores import MemoryStore, Store
from tests.support.stopped_turn import FIRST, NEXT, Obedient, check_log, check_messages
from tests.support.valid_history import judge as check_history

ANSWER = "file-a"


@tool
async def asks(ctx: ToolContext) -> str:
    """Ask."""
    return f"the user wants {await ctx.ask('Which?')}"


def open_session(store: Store | None = None) -> Session:
    return Agent(Obedient(["asks"]), [asks]).session(store=MemoryStore() if store is None else store)


def answered_then(stop: Callable[[Session], object]) -> Callable[[CancellationToken], object]:
    """Make a scenario: the question is answered as soon as it is asked, and somewhere *stop* comes."""

    async def scenario(token: CancellationToken) -> None:
        session = open_session()
        accepted: list[bool] = []
        registration = token.on_cancel(lambda: stop(session))
        with session.subscribe(only=[QuestionAsked]) as questions:
            task = asyncio.ensure_future(session.arun(FIRST))
            task.add_done_callback(lambda _: questions.end())
            async for event in questions:
                assert isinstance(event.data, QuestionAsked)
                accepted.append(session.answer(event.data.id, ANSWER))
            await task
        registration()
        await judge_answers(session, any(accepted))

    return scenario


def stopped_then_answered(stop: Callable[[Session], object]) -> Callable[[CancellationToken], object]:
    """Make a scenario: *stop* comes as soon as the question is asked, and somewhere another thread answers."""

    async def scenario(token: CancellationToken) -> None:
        session = open_session()
        accepted: list[bool] = []
        answering: list[threading.Thread] = []

        def answer() -> None:
            for asked in session.questions:
                assert isinstance(asked, QuestionAsked)
                accepted.append(session.answer(asked.id, ANSWER))

        def start() -> None:
            answering.append(threading.Thread(target=answer, daemon=True))
            answering[0].start()

        registration = token.on_cancel(start)
        with session.subscribe(only=[QuestionAsked]) as questions:
            task = asyncio.ensure_future(session.arun(FIRST))
            task.add_done_callback(lambda _: questions.end())
            async for _ in questions:
                stop(session)
            await task
        registration()
        for thread in answering:
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()
        await judge_answers(session, any(accepted))

    return scenario


async def judge_answers(session: Session, accepted: bool) -> None:
    """Check that an answer that was accepted is in the log, and told to the model in the next request at the latest."""
    session.release()
    await session.arun(NEXT)
    events = session.events()
    answers = [event.data.value for event in events if isinstance(event.data, QuestionAnswered)]
    assert answers.count(ANSWER) == accepted, (accepted, answers)
    told = sum(ANSWER in message.text for message in session.history)
    assert told >= accepted, session.history
    assert accepted or not told
    asked = sum(isinstance(event.data, QuestionAsked) for event in events)
    assert asked == sum(isinstance(event.data, QuestionAnswered) for event in events)
    assert not session.questions
    check_log(events)
    check_history(session.history)
    check_messages(session)
    await session.aclose()
