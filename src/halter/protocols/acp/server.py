"""The methods of the Agent Client Protocol, version 1, for one client.

Sessions are stored like those of the chat, and outlive the connection. When the client is disconnected, all turns are
stopped and sealed.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from halter._version import __version__
from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.threads.blocking import run_blocking_async
from halter.cancel.token import NEVER
from halter.events import MessageAccepted, SessionCreated
from halter.protocols.acp.editor_session import EditorSession, PreparedAgent
from halter.protocols.acp.json_rpc import INVALID_PARAMS, INVALID_REQUEST, IncomingRequest, RpcConnection, RpcError
from halter.protocols.acp.schema import (
    ClientMcpServer,
    InitializeParams,
    ListParams,
    LoadParams,
    NewParams,
    PromptParams,
    SessionParams,
)
from halter.views.text import shorten

if TYPE_CHECKING:
    from halter.protocols.acp.json_rpc import RequestHandler
    from halter.protocols.line_stream import LineStream
    from halter.stores.base import SessionInfo, Store

__all__ = ["AcpServer", "PrepareAgent"]

PrepareAgent: TypeAlias = Callable[[Path, list[ClientMcpServer]], PreparedAgent]
"""Makes the agent of a session, for a workspace and the client's MCP servers. Blocks. Raises `ValueError`."""

_VERSION: Final = 1
_NOT_FOUND: Final = -32002
_PAGE: Final = 50  # sessions in one answer
_TITLE: Final = 60
_CLOSING: Final = 5.0  # seconds to close one session


class AcpServer:
    """Serves one client."""

    def __init__(self, stream: LineStream, store: Store, prepare: PrepareAgent) -> None:
        self._store = store
        self._prepare = prepare
        self._has_forms = False
        self._sessions: dict[str, EditorSession] = {}
        requests: dict[str, RequestHandler] = {
            "initialize": (InitializeParams, self._initialize),
            "session/new": (NewParams, self._new),
            "session/load": (LoadParams, self._load),
            "session/resume": (LoadParams, self._resume),
            "session/list": (ListParams, self._list),
            "session/prompt": (PromptParams, self._prompt),
            "session/close": (SessionParams, self._close),
        }
        self._connection = RpcConnection(stream, requests, {"session/cancel": (SessionParams, self._cancel)})

    async def run(self, seconds: float) -> None:
        """Serve until the client is disconnected. Ending takes *seconds* at most."""
        await self._connection.run()
        await self._connection.wait(seconds / 2)
        closing = [asyncio.create_task(each.close(seconds / 2)) for each in self._sessions.values()]
        if closing:
            await asyncio.wait(closing, timeout=seconds / 2)

    # -- methods -----------------------------------------------------------------------------------------------------

    async def _initialize(self, params: InitializeParams, _request: IncomingRequest) -> dict[str, Any]:
        client = params.client_capabilities
        self._has_forms = client is not None and client.elicitation is not None and client.elicitation.form is not None
        return {
            "protocolVersion": _VERSION,
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "audio": True, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": False},
                "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
            },
            "agentInfo": {"name": "halter", "title": "Halter", "version": __version__},
            "authMethods": [],
        }

    async def _new(self, params: NewParams, request: IncomingRequest) -> dict[str, Any]:
        session_id = secrets.token_hex(8)
        await self._open(session_id, params.cwd, params.mcp_servers, request)
        return {"sessionId": session_id}

    async def _load(self, params: LoadParams, request: IncomingRequest) -> dict[str, Any]:
        await self._reopen(params, request)
        await self._sessions[params.session_id].replay()
        return {}

    async def _resume(self, params: LoadParams, request: IncomingRequest) -> dict[str, Any]:
        await self._reopen(params, request)
        return {}

    def _prompt(self, params: PromptParams, request: IncomingRequest) -> Awaitable[dict[str, Any]]:
        return self._found(params.session_id).prompt(params, request)

    def _cancel(self, params: SessionParams) -> None:
        session = self._sessions.get(params.session_id)
        if session is not None:
            session.cancel()

    async def _close(self, params: SessionParams, _request: IncomingRequest) -> dict[str, Any]:
        session = self._found(params.session_id)
        del self._sessions[params.session_id]
        session.cancel()
        await session.close(_CLOSING)
        return {}

    async def _list(self, params: ListParams, _request: IncomingRequest) -> dict[str, Any]:
        found = await run_in_thread(lambda: self._read_list(params.cwd))
        start = 0
        if params.cursor is not None:
            names = [each["sessionId"] for each in found]
            if params.cursor not in names:
                raise RpcError(INVALID_PARAMS, "Invalid cursor")
            start = names.index(params.cursor) + 1
        page = found[start : start + _PAGE]
        more = {"nextCursor": page[-1]["sessionId"]} if start + _PAGE < len(found) else {}
        return {"sessions": page, **more}

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _found(self, session_id: str) -> EditorSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise RpcError(_NOT_FOUND, f"Session {session_id!r:.80} is not open; create or load it first")
        return session

    async def _reopen(self, params: LoadParams, request: IncomingRequest) -> None:
        """Open a stored session, again if it is open here."""
        known = self._sessions.get(params.session_id)
        if known is not None and known.is_busy:
            raise RpcError(INVALID_REQUEST, "A prompt of this session is running; cancel it first")
        if not await run_in_thread(lambda: self._store.read(params.session_id, limit=1)):
            raise RpcError(_NOT_FOUND, f"There is no session {params.session_id!r:.80}")
        if known is not None:
            del self._sessions[params.session_id]
            await known.close(_CLOSING)
        await self._open(params.session_id, params.cwd, params.mcp_servers, request)

    async def _open(self, session_id: str, cwd: str, servers: list[ClientMcpServer], request: IncomingRequest) -> None:
        workspace = Path(cwd)
        prepared = await run_blocking_async(self._prepared, workspace, servers, token=NEVER)
        try:
            request.token.raise_if_cancelled()
            session = await run_in_thread(lambda: prepared.agent.session(session_id, self._store))
        except BaseException:
            await run_in_thread(prepared.close)
            raise
        self._sessions[session_id] = EditorSession(
            session, prepared, workspace, self._connection, has_forms=self._has_forms
        )

    def _prepared(self, workspace: Path, servers: list[ClientMcpServer]) -> PreparedAgent:
        """The agent for a session. Blocks."""
        if not workspace.is_absolute() or not workspace.is_dir():
            raise RpcError(INVALID_PARAMS, f"cwd must be the absolute path of a directory, not {str(workspace)!r:.200}")
        try:
            return self._prepare(workspace, servers)
        except ValueError as error:
            raise RpcError(INVALID_PARAMS, str(error)) from error

    def _read_list(self, cwd: str | None) -> list[dict[str, Any]]:
        """The stored sessions, the last used first; only those of one workspace if *cwd* is given. Blocks."""
        known = {info.id: info for info in self._store.sessions()}
        listed = [self._describe(info) for name, info in known.items() if name.rpartition("/")[0] not in known]
        return [each for each in listed if cwd is None or each["cwd"] == cwd]

    def _describe(self, info: SessionInfo) -> dict[str, Any]:
        first = self._store.read(info.id, limit=2)
        texts = [each.data.message.text for each in first if isinstance(each.data, MessageAccepted)]
        workspace = next((each.data.workspace for each in first if isinstance(each.data, SessionCreated)), "")
        return {
            "sessionId": info.id,
            "cwd": workspace or str(Path.cwd()),
            "title": shorten(texts[0], _TITLE) if texts else None,
            "updatedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(info.updated_at)),
        }
