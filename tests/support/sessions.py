"""What the tests of sessions share: agents that follow a script, their events, and the history at each of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from halter import Agent, Session
from halter.events import Event, EventData
from halter.models import Backoff, Message, ToolCall, UserMessage
from halter.session.log import SessionSnapshot, SessionState
from halter.session.subscription import Subscription
from halter.testing import ScriptedModel

AT_MOST = 30.0


def agent_of(*script: Any, tools: Sequence[Any] = (), **options: Any) -> Agent:
    """Make an agent whose model follows a script, and which retries at once."""
    agent = Agent(ScriptedModel(*script), tools=tools, **options)
    agent.backoff = Backoff(base=0.0)
    return agent


def session_of(*script: Any, tools: Sequence[Any] = (), **options: Any) -> Session:
    return agent_of(*script, tools=tools, **options).session()


def model_of(session: Session) -> ScriptedModel:
    assert isinstance(session.agent.model, ScriptedModel)
    return session.agent.model


def call(name: str, call_id: str = "c1", arguments: str = "{}") -> ToolCall:
    return ToolCall(call_id, name, arguments)


def kinds(events: Iterable[Event]) -> list[str]:
    return [event.kind for event in events]


def data_of(session: Session, kind: str) -> list[Any]:
    """What the log has of one kind of event."""
    return [event.data for event in session.events() if event.kind == kind]


def said(messages: Iterable[Message]) -> list[str]:
    """The texts of the user's messages, in order."""
    return [message.text for message in messages if isinstance(message, UserMessage)]


def wait_for(listener: Subscription, kind: str, count: int = 1) -> Event:
    """Wait in this thread for the next event of a kind."""
    while True:
        event = listener.get(AT_MOST)
        assert event is not None, f"no {kind} within {AT_MOST} s"
        count -= event.kind == kind
        if count == 0:
            return event


async def next_event(listener: Subscription, kind: str) -> Event:
    """Wait in this loop for the next event of a kind; the test around it is bounded."""
    async for event in listener:
        if event.kind == kind:
            return event
    raise AssertionError(f"the listener ended without {kind}")


def replay(session: Session) -> Iterable[tuple[EventData, list[Message]]]:
    """Give the history after each event of a session's log, as it was at that instant."""
    state = SessionState()
    for event in session.events():
        state.apply(event)
        yield event.data, SessionSnapshot(state).history.messages
