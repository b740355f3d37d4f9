"""The gateway server: start, stop, and what is done around every request.

Each request is checked for its host, then for a key that allows it, then handled. Every error is answered with a
problem body; on OpenAI's routes, in OpenAI's form.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from aiohttp import web

from halter.agent import Agent
from halter.gateway.chat.bridge import ChatBridge
from halter.gateway.http.auth import Authenticator, is_loopback
from halter.gateway.http.connections import ACCEPTED_AT_ONCE, BACKLOG, Connections, bind, connection_limit
from halter.gateway.http.errors import Problem, problem_of_error, problem_of_status
from halter.gateway.http.handlers import KEY, Handlers
from halter.gateway.http.routes import ROUTES, Route
from halter.gateway.http.sse import EventStreams
from halter.gateway.observe import logs
from halter.gateway.observe.metrics import Metrics
from halter.gateway.observe.tracing import Tracing
from halter.gateway.openai.errors import error_response
from halter.gateway.openai.handlers import OpenAIHandlers
from halter.gateway.openai.request_turns import RequestTurns
from halter.gateway.sessions.commands import Commands
from halter.gateway.sessions.limits import GatewayLimits
from halter.gateway.sessions.placement import Sessions
from halter.gateway.sessions.registry import SessionRegistry
from halter.gateway.sessions.spoken_replies import SpokenReplies
from halter.voice.transcriber import Transcriber
from halter.voice.voice_messages import VoiceMessages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from socket import socket
    from types import TracebackType
    from typing import Self

    from aiohttp.web_protocol import RequestHandler

    from halter.events import Event
    from halter.gateway.chat.adapter import ChatAdapter
    from halter.gateway.cluster.cluster import Cluster
    from halter.gateway.http.keys import Keys
    from halter.gateway.sessions.commands import KeepPrefixes
    from halter.gateway.sessions.live_session import LiveSession
    from halter.stores.base import Store

__all__ = ["Gateway"]

_log = logging.getLogger(__name__)
_IDLE: Final = 300.0
_FLUSH_SHARE: Final = 0.4  # of the time for closing, to send the last chat messages
_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """Serves the sessions of one agent, or of several by name. Use it in an `async with` block.

    The gateway and its sessions run in the event loop in which it is started. *port* 0 picks a free one. Behind a proxy
    with TLS, *public_name* is the host of the public address. A session that is idle for *idle_after* seconds is
    unloaded. *voice_messages* transcribes recordings and is closed with the gateway; by default that is done on this
    machine. *platforms* are chat platforms. *keep_prefixes* is called with the prefixes of commands that an admin
    allows permanently. *notices* are told to every user at the start, as that there is no sandbox. *sockets* are
    listening already, instead of *host* and *port*.
    """

    def __init__(  # noqa: PLR0913  (each is the user's to set, and most have a default)
        self,
        agents: Agent | Mapping[str, Agent],
        store: Store,
        keys: Keys,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        public_name: str = "",
        limits: GatewayLimits | None = None,
        idle_after: float = _IDLE,
        voice_messages: VoiceMessages | None = None,
        spoken_replies: bool = False,
        platforms: Sequence[ChatAdapter] = (),
        keep_prefixes: KeepPrefixes | None = None,
        notices: Sequence[str] = (),
        sockets: Sequence[socket] | None = None,
    ) -> None:
        if (public_name or not is_loopback(host)) and not keys.are_explicit:
            msg = f"{public_name or host} can be reached from other machines: set or create a key first"
            raise ValueError(msg)
        named = {agents.name: agents} if isinstance(agents, Agent) else dict(agents)
        limits = limits or GatewayLimits()
        self.metrics = Metrics()
        self._tracing = Tracing()
        self._connections = Connections(connection_limit(limits.connections))
        self.streams = EventStreams(store, self._connections, keys)
        self.voice_messages = voice_messages or VoiceMessages(Transcriber())
        self.registry = SessionRegistry(
            named,
            store,
            limits,
            watch=self._see,
            kinds=(*logs.KINDS, *self._tracing.kinds),
            voice_messages=self.voice_messages,
            idle_after=idle_after,
        )
        speech = SpokenReplies(is_on=spoken_replies)
        commands = Commands(self.registry, speech, [each.name for each in platforms], keep_prefixes)
        self._cluster = _cluster_of(store, self.registry, commands)
        self._sessions = Sessions(self.registry, commands, self._cluster)
        self._handlers = Handlers(
            self.registry, self._sessions, self.streams, self.metrics, self._tracing, notices=notices
        )
        self._openai_handlers = OpenAIHandlers(
            self.registry, RequestTurns(self.registry, commands, self._connections, self._tracing)
        )
        self._bridges = [ChatBridge(platform, self.registry, speech, notices) for platform in platforms]
        self._guard = Authenticator(keys, host, public_name)
        self._host = host
        self._port = port
        self._sockets = sockets
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The base URL."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def start(self) -> None:
        """Listen, and resume sessions with queued messages. Raises `CannotListen` if the address is not available."""
        app = web.Application()
        for route in ROUTES:
            respond = error_response if route.is_openai else Problem.response
            handle = self._answering(route.path, self._guarded(route), respond, is_vital=route.is_vital)
            app.router.add_route(route.method, route.path, handle)
        app.router.add_route("*", "/{nowhere:.*}", self._answering("none", _refuse))
        limits = self.registry.limits
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, keepalive_timeout=limits.header_timeout)
        sockets = bind(self._host, self._port) if self._sockets is None else self._sockets
        try:
            if self._cluster is not None:
                await self._cluster.start(self._sessions)
            await runner.setup()
            self._watch_connections(runner)
            for each in sockets:
                await web.SockSite(runner, each, backlog=ACCEPTED_AT_ONCE).start()
                each.listen(BACKLOG)  # asyncio has one number for both
        except BaseException:
            for each in sockets:
                each.close()
            await runner.cleanup()
            if self._cluster is not None:
                await self._cluster.close()
            raise
        self._runner = runner
        self._port = runner.addresses[0][1]
        self.streams.begin()
        self.registry.resumption.resume()
        for bridge in self._bridges:
            bridge.start()

    def _watch_connections(self, runner: web.AppRunner) -> None:
        """Count connections, and tell requests that watch theirs as soon as the client has disconnected.

        aiohttp's `handler_cancellation` would cancel every handler of a lost connection, also that of a stop.
        """
        server = runner.server
        assert server is not None
        made, lost = server.connection_made, server.connection_lost

        def connection_made(handler: RequestHandler, transport: asyncio.Transport) -> None:
            made(handler, transport)
            self._connections.opened(handler, transport)

        def connection_lost(handler: RequestHandler, exc: BaseException | None = None) -> None:
            self._connections.closed(handler)
            lost(handler, exc)

        server.connection_made = connection_made  # type: ignore[method-assign]
        server.connection_lost = connection_lost  # type: ignore[method-assign]

    async def stop(self, patience: float = 0.0, closing: float = 5.0) -> int:
        """Start no more turns, give running ones *patience* seconds, stop the rest, and close everything.

        Returns the number of turns that had to be stopped. Bounded.
        """
        resting = asyncio.gather(*(bridge.stop_receiving() for bridge in self._bridges))
        left = await self.registry.drain(patience, closing)
        await resting
        await self.voice_messages.close()
        await asyncio.gather(*(bridge.close(closing * _FLUSH_SHARE) for bridge in self._bridges))
        await self.streams.end()
        if self._cluster is not None:
            await self._cluster.close()
        if self._runner is not None:
            await self._runner.cleanup()
        return left

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    def _see(self, live: LiveSession, event: Event) -> None:
        self.metrics.count(event)
        self._tracing.record(event, live.session.agent)
        logs.log_event(event)
        for bridge in self._bridges:
            bridge.observe(live.session, event)

    # -- around every request ----------------------------------------------------------------------------------------

    def _guarded(self, route: Route) -> _Handler:
        """A handler that checks host and key first."""
        handlers = self._openai_handlers if route.is_openai else self._handlers
        handle: _Handler = getattr(handlers, route.name)

        async def guarded(request: web.Request) -> web.StreamResponse:
            self._guard.check_host(request)
            if route.scope is not None:
                request[KEY] = self._guard.authenticate(request, route.scope)
            return await handle(request)

        return guarded

    def _answering(
        self,
        route: str,
        handle: _Handler,
        respond: Callable[[Problem], web.Response] = Problem.response,
        *,
        is_vital: bool = False,
    ) -> _Handler:
        """A handler that turns every error into an answer.

        A boundary: an unexpected error is logged, and the client gets a 500 without details. Not an aiohttp middleware,
        which would add a layer to the path of every stop.
        """
        connections = self._connections

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                connections.begin(request.protocol, is_vital=is_vital)
                response = await handle(request)
            except Problem as problem:
                if problem.kind == "limit":
                    self.metrics.refused(problem.field or "")
                response = respond(problem)
                if problem.kind == "connections":
                    response.force_close()
            except web.HTTPException as error:
                response = respond(problem_of_status(error))
                if "Allow" in error.headers:
                    response.headers["Allow"] = error.headers["Allow"]
            except ConnectionError:
                raise  # the client has disconnected
            except Exception as error:  # noqa: BLE001
                response = respond(self._failed(route, error))
            finally:
                connections.end(request.protocol)
            self.metrics.answered(request.method, route, response.status)
            return response

        return answer

    @staticmethod
    def _failed(route: str, error: Exception) -> Problem:
        problem = problem_of_error(error)
        if problem is None:
            _log.error("the request failed", exc_info=error, extra={"route": route})
            return Problem(500, "internal error; see the gateway log")
        if problem.kind == "store":
            _log.warning("%s", error, extra={"route": route})
        return problem


def _cluster_of(store: Store, registry: SessionRegistry, commands: Commands) -> Cluster | None:
    """The cluster that the store belongs to, if it does."""
    if getattr(store, "process", None) is None:
        return None
    from halter.gateway.cluster.cluster import Cluster
    from halter.stores import NATSStore

    assert isinstance(store, NATSStore)
    return Cluster(store, registry, commands)


async def _refuse(request: web.Request) -> web.StreamResponse:
    """Answer 404, or 405 if the path exists with other methods."""
    here = request.match_info.route.resource
    methods: set[str] = set()
    for resource in request.app.router.resources():
        if resource is not here:
            methods |= (await resource.resolve(request))[1]
    if methods:
        raise web.HTTPMethodNotAllowed(request.method, methods)
    raise web.HTTPNotFound
