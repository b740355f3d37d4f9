"""Halter's agents as tools of an MCP server: `ask` runs one turn and returns its answer.

The SDK has the protocol. The streams are ours, so that neither a client that does not read nor a signal has to wait for
a thread. A turn runs in a task of its own: when the client cancels its request, or is disconnected, the turn is stopped
and sealed.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import weakref
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool
from mcp_types.jsonrpc import jsonrpc_message_adapter
from pydantic import ValidationError

from halter._version import __version__
from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.token import CancellationToken
from halter.errors import HalterError
from halter.events import QuestionAsked, ToolFinished, ToolStarted
from halter.protocols.line_stream import LineTooLong
from halter.tools.external import fit_name
from halter.views.call_text import call_text
from halter.views.items import CallItem
from halter.views.session_view import SessionDisplay
from halter.views.text import CANNOT_ASK
from halter.views.turn_text import turn_end_text

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.server.context import ServerRequestContext
    from mcp_types import CallToolRequestParams, PaginatedRequestParams

    from halter.agent import Agent
    from halter.protocols.line_stream import LineStream
    from halter.session.session import Session
    from halter.stores.base import Store

__all__ = ["McpServer"]

_TOOL: Final = "ask"
_CLOSING: Final = 5.0  # seconds to close one session
_MAX_ID: Final = 200  # characters
_PARAMETERS: Final = {
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "The message for the agent."},
        "session": {
            "type": "string",
            "description": "The session to continue, as an earlier answer named it. Leave it out to begin a new one.",
        },
    },
    "required": ["text"],
}


class _AskParams(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    session: str | None = None


class McpServer:
    """Serves one client."""

    def __init__(self, agents: Mapping[str, Agent], store: Store) -> None:
        """*agents* are by name; the first is the tool `ask`, each other one `ask_NAME`."""
        names = list(agents)
        self._agents = {fit_name(f"{_TOOL}_{name}") if name != names[0] else _TOOL: agents[name] for name in names}
        self._store = store
        self._turns: set[asyncio.Task[CallToolResult]] = set()
        # Turns of one session run one after the other.
        self._orders: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def run(self, stream: LineStream, seconds: float) -> None:
        """Serve until the client is disconnected. Ending takes *seconds* at most."""
        server: Server[Any] = Server(
            "halter",
            version=__version__,
            on_list_tools=self._list,
            on_call_tool=lambda ctx, params: self._call(ctx, params, stream),
        )
        to_server, from_client = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_client, from_server = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as group:
            group.start_soon(_read, stream, to_server)
            group.start_soon(_write, stream, from_server)
            await server.run(from_client, to_client, server.create_initialization_options())
        if self._turns:
            await asyncio.wait(self._turns, timeout=seconds)

    async def _list(self, _ctx: ServerRequestContext[Any], _params: PaginatedRequestParams | None) -> ListToolsResult:
        tools = [
            Tool(name=name, description=_description(agent), input_schema=_PARAMETERS)
            for name, agent in self._agents.items()
        ]
        return ListToolsResult(tools=tools)

    async def _call(
        self, ctx: ServerRequestContext[Any], params: CallToolRequestParams, stream: LineStream
    ) -> CallToolResult:
        agent = self._agents.get(params.name)
        if agent is None:
            return _failed(f"there is no tool {params.name!r:.80}; known: {', '.join(self._agents)}")
        try:
            given = msgspec.convert(params.arguments or {}, _AskParams)
        except msgspec.ValidationError as error:
            return _failed(f"invalid arguments: {error}")
        if len(given.session or "") > _MAX_ID:
            return _failed(f"a session id has at most {_MAX_ID} characters")
        session_id = given.session or secrets.token_hex(8)
        asked = _AskedTurn(agent, self._store, session_id, ctx.session.report_progress)
        order = self._orders.setdefault(session_id, asyncio.Lock())
        # Not in the scope of the request: cancelling that must not keep the turn from being sealed.
        task = asyncio.create_task(asked.run(given.text, order))
        self._turns.add(task)
        task.add_done_callback(self._turns.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if stream.token.is_cancelled:
                asked.stop(stream.token.reason or "disconnect", stream.token.detail)
            else:
                asked.stop("stop", "notifications/cancelled")
            raise


class _AskedTurn:
    """One call of a tool: a session, opened for one turn."""

    def __init__(
        self,
        agent: Agent,
        store: Store,
        session_id: str,
        report: Callable[[float, float | None, str | None], Awaitable[None]],
    ) -> None:
        self._agent = agent
        self._store = store
        self._session_id = session_id
        self._report = report
        self._token = CancellationToken(name="ask")
        self._session: Session | None = None
        self._display = SessionDisplay(max_turns=1)
        self._reported = 0

    def stop(self, reason: str, detail: str) -> None:
        """Stop the turn; also if it has not begun."""
        if self._session is not None:
            self._session.interrupt(reason=reason, detail=detail, by="the MCP client")
        self._token.cancel(reason, detail=detail)

    async def run(self, text: str, order: asyncio.Lock) -> CallToolResult:
        """Run the turn once it has *order*; gives its answer, or why there is none."""
        async with order:
            return await self._run(text)

    async def _run(self, text: str) -> CallToolResult:
        try:
            session = await run_in_thread(lambda: self._agent.session(self._session_id, self._store))
            self._session = session
            session.use_tool_loop()
            try:
                with self._token.bind():
                    await self._run_turn(session, text)
                return self._result(session)
            finally:
                await session.aclose(_CLOSING)
        except (HalterError, ValueError) as error:
            return _failed(str(error))

    async def _run_turn(self, session: Session, text: str) -> None:
        async for event in session.stream(text):
            shown = self._display.apply(event)
            if isinstance(event.data, QuestionAsked):
                await run_in_thread(functools.partial(session.answer, event.data.id, CANNOT_ASK))
            is_told = isinstance(event.data, (ToolStarted, ToolFinished)) and not self._token.is_cancelled
            if is_told and isinstance(shown, CallItem):
                self._reported += 1
                await self._report(self._reported, None, call_text(shown))

    def _result(self, session: Session) -> CallToolResult:
        turn = session.turn
        assert turn is not None  # it has run
        answer = turn.text
        if turn.status != "done":
            shown = next((each for each in self._display.turns if each.id == turn.id), None)
            ended = turn_end_text(shown) if shown is not None else turn.detail
            answer = f"{answer}\n[{ended}]".lstrip()
        told = f"[session {session.id}: pass it as `session` to continue]"
        return CallToolResult(
            content=[TextContent(type="text", text=answer), TextContent(type="text", text=told)],
            structured_content={"answer": turn.text, "session": session.id, "status": turn.status},
            is_error=turn.status != "done",
        )


def _description(agent: Agent) -> str:
    tools = f" It has the tools {', '.join(agent.tools)}." if agent.tools else ""
    return (
        f"Give a task or a question to the agent {agent.name!r}, which works in its own session until it is done, and "
        f"get its answer.{tools}"
    )


def _failed(why: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=why)], is_error=True)


async def _read(stream: LineStream, to_server: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    """Pass on the messages of the client until it is disconnected. What is none is answered with an error."""
    async with to_server:
        async for line in stream.lines():
            if isinstance(line, LineTooLong):
                _send_error(stream, -32600, "The message is too long")
            elif line.strip():
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValidationError as error:
                    _send_error(stream, -32700, f"Not a message: {error.errors()[0]['msg']}")
                else:
                    await to_server.send(SessionMessage(message))


async def _write(stream: LineStream, from_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with from_server:
        async for each in from_server:
            stream.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode())


def _send_error(stream: LineStream, code: int, message: str) -> None:
    stream.write(msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}))
