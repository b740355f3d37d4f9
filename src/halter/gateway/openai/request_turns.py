"""Runs one turn for one request, in a session that lives as long as the request.

The client sends the whole conversation, so nothing is stored. A closed connection stops the turn at once: the
provider's connection is closed, and processes of tools are killed. Nobody can be asked, so approvals are denied.
"""

from __future__ import annotations

import contextlib
import copy
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from halter.cancel.loop_bridge import run_in_thread
from halter.events import ApprovalAsked, Event, QuestionAsked, SessionCreated
from halter.gateway.http.errors import Problem
from halter.gateway.http.handlers import KEY
from halter.gateway.http.schemas import MessageForm
from halter.gateway.sessions.live_session import LiveSession
from halter.gateway.sessions.transient_sessions import stop_transient
from halter.stores.closed_sessions import copy_events
from halter.stores.memory import MemoryStore
from halter.views.text import CANNOT_ASK

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from aiohttp import web

    from halter.agent import Agent
    from halter.events import EventData
    from halter.gateway.http.connections import Connections
    from halter.gateway.observe.tracing import Tracing
    from halter.gateway.openai.conversation import SentConversation
    from halter.gateway.openai.turn_request import TurnRequest
    from halter.gateway.sessions.commands import Commands
    from halter.gateway.sessions.registry import SessionRegistry
    from halter.session.session import Session

__all__ = ["RequestTurns", "RunningTurn"]

_LOST: Final = ("disconnect", "the client closed the connection", "closed connection")


class RunningTurn(NamedTuple):
    """The events of a turn, and whether its answer has a type: then only the last answer counts."""

    events: AsyncGenerator[EventData, None]
    has_output_type: bool


class RequestTurns:
    """Runs turns for requests, within the limits of the gateway."""

    def __init__(
        self, registry: SessionRegistry, commands: Commands, connections: Connections, tracing: Tracing
    ) -> None:
        self._registry = registry
        self._commands = commands
        self._connections = connections
        self._tracing = tracing

    @contextlib.asynccontextmanager
    async def run(self, request: web.Request, asked: TurnRequest, name: str) -> AsyncIterator[RunningTurn]:
        """Run a turn in a session of this name. Leaving the block stops it, and closes the session.

        Raises `Problem` if there is no such agent, or a limit is reached.
        """
        agent = self._agent(asked)
        # In a thread, as a conversation may be long.
        session = await run_in_thread(lambda: _open_session(agent, name, asked.conversation))
        key = request[KEY]
        created = Event(0, time.time(), name, "", SessionCreated(asked.model, key.id))
        live = LiveSession(session, asked.model, [created], self._registry.limits)
        live.key = key.id
        try:
            self._commands.admit(live, key)
            watched = self._connections.watch(request.protocol, lambda: stop_transient(session, *_LOST))
            with self._registry.run_transient(live), watched:
                prompt = asked.conversation.prompt
                if prompt is not None:
                    message = self._tracing.continue_trace(request.headers, name, MessageForm())
                    await session.apost(prompt, id=message.id)
                async with contextlib.aclosing(_events(session)) as events:
                    yield RunningTurn(events, agent.output_type is not None)
        finally:
            await session.aclose()

    def _agent(self, asked: TurnRequest) -> Agent:
        """The agent with what is different in this request."""
        agent = self._registry.agents.get(asked.model)
        if agent is None:
            msg = f"there is no agent {asked.model!r}; known: {', '.join(self._registry.agents)}"
            raise Problem(404, msg, field="model", kind="no-model")
        agent = copy.copy(agent)
        agent.settings = msgspec.structs.replace(agent.settings, **asked.settings)
        agent.instructions = _joined(agent.instructions, asked.instructions)
        if agent.approve == "ask":
            agent.approve = None
        if asked.output is not None:
            if agent.output_type is not None:
                raise Problem(
                    422, "this agent has an output type of its own: leave out the format", field="model", kind="format"
                )
            agent.output_type = asked.output
        return agent


def _open_session(agent: Agent, name: str, conversation: SentConversation) -> Session:
    store = MemoryStore()
    copy_events(store, name, conversation.events)
    session = agent.session(name, store)
    session.use_tool_loop()
    return session


def _joined(own: str | Callable[[], str], more: str) -> str | Callable[[], str]:
    if not more:
        return own
    if callable(own):
        return lambda: "\n\n".join(filter(None, (own(), more)))
    return "\n\n".join(filter(None, (own, more)))


async def _events(session: Session) -> AsyncGenerator[EventData, None]:
    """The events of the turn. What its tools, or its sub-agents, ask a person is answered here."""
    async with contextlib.aclosing(session.stream()) as events:
        async for event in events:
            data = event.data
            if isinstance(data, QuestionAsked):
                session.answer(data.id, CANNOT_ASK)
            elif isinstance(data, ApprovalAsked):
                session.answer(data.request.id, {"deny": CANNOT_ASK})
            yield data
