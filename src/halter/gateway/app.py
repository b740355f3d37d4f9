"""The gateway: it begins, it answers, and it ends.

Every request goes the same way: is this the host that was meant, is there a key, does it allow this, and then the
handler. Whatever goes wrong is answered with a problem; whatever a client sends, it is the client that is told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from aiohttp import web

from halter.agent import Agent
from halter.gateway.guard import Guard, is_loopback
from halter.gateway.hall import Hall
from halter.gateway.handlers import KEY, Handlers
from halter.gateway.limits import Limits
from halter.gateway.logs import log_event
from halter.gateway.metrics import Metrics
from halter.gateway.platforms.porter import Porter
from halter.gateway.problems import Problem, of_error, of_status
from halter.gateway.routes import ROUTES, Route
from halter.gateway.speech import Speech
from halter.gateway.streams import Streams
from halter.gateway.traces import Traces
from halter.voice.hearing import Hearing
from halter.voice.transcriber import Transcriber

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from aiohttp.web_protocol import RequestHandler

    from halter.events import Event
    from halter.gateway.keys import Keys
    from halter.gateway.platforms.platform import Platform
    from halter.gateway.room import Room
    from halter.stores.store import Store

__all__ = ["Gateway"]

_log = logging.getLogger(__name__)
_IDLE: Final = 300.0
_LAST_WORDS: Final = 0.4  # of the time for closing, to show in chats how it ended
_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Gateway:
    """Sessions of one agent, or of several by their names, over HTTP. Use it in an `async with` block.

    It runs in the event loop in which it is started, and so do the sessions. *port* 0 is one that is free. A session
    that nobody has asked for in *idle_after* seconds is put to sleep. *hearing* transcribes voice messages, and is
    closed with the gateway; without one, that is done on this machine. *platforms* are chats of their own.
    """

    def __init__(  # noqa: PLR0913  (each is the user's to set, and most have a default)
        self,
        agents: Agent | Mapping[str, Agent],
        store: Store,
        keys: Keys,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: Limits | None = None,
        idle_after: float = _IDLE,
        hearing: Hearing | None = None,
        spoken_replies: bool = False,
        platforms: Sequence[Platform] = (),
    ) -> None:
        if not is_loopback(host) and not keys.are_explicit:
            msg = f"{host} can be reached by others: that needs a key which you have set or made"
            raise ValueError(msg)
        named = {agents.name: agents} if isinstance(agents, Agent) else dict(agents)
        limits = limits or Limits()
        self.metrics = Metrics()
        self._traces = Traces()
        self.streams = Streams(store)
        self.hearing = hearing or Hearing(Transcriber())
        self.hall = Hall(
            named,
            store,
            limits,
            watch=self._see,
            kinds=self._traces.kinds,
            hearing=self.hearing,
            idle_after=idle_after,
        )
        speech = Speech(is_on=spoken_replies)
        self._handlers = Handlers(self.hall, self.streams, self.metrics, speech)
        self._porters = [Porter(platform, self.hall, speech) for platform in platforms]
        self._guard = Guard(keys, host)
        self._host = host
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def start(self) -> None:
        """Listen, and go on with what waits in the store. Raises `OSError` if the address can not be had."""
        app = web.Application()
        for route in ROUTES:
            app.router.add_route(route.method, route.path, self._answering(route.path, self._guarded(route)))
        app.router.add_route("*", "/{nowhere:.*}", self._answering("none", _refuse))
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port, backlog=1024).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._hear_of_the_lost(runner)
        self._runner = runner
        self._port = runner.addresses[0][1]
        self.streams.begin()
        self.hall.wake_waiting()
        for porter in self._porters:
            porter.begin()

    def _hear_of_the_lost(self, runner: web.AppRunner) -> None:
        """End a stream as soon as its client has gone.

        aiohttp would cancel the handlers of all that go (`handler_cancellation`), a stop that was just sent with them.
        """
        server = runner.server
        assert server is not None
        lost = server.connection_lost

        def connection_lost(handler: RequestHandler, exc: BaseException | None = None) -> None:
            self.streams.lost(handler)
            lost(handler, exc)

        server.connection_lost = connection_lost  # type: ignore[method-assign]

    async def stop(self, patience: float = 0.0, closing: float = 5.0) -> int:
        """Begin no turn any more, let those that run have *patience* seconds, stop the rest, and let go of all.

        Gives how many turns were stopped by it. Bounded.
        """
        resting = asyncio.gather(*(porter.rest() for porter in self._porters))
        left = await self.hall.drain(patience, closing)
        await resting
        await self.hearing.close()
        await asyncio.gather(*(porter.close(closing * _LAST_WORDS) for porter in self._porters))
        await self.streams.end()
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

    def _see(self, room: Room, event: Event) -> None:
        self.metrics.take(event)
        self._traces.take(event)
        log_event(event)
        for porter in self._porters:
            porter.see(room.session, event)

    # -- around every request ----------------------------------------------------------------------------------------

    def _guarded(self, route: Route) -> _Handler:
        """The handler of an address, for those who may use it."""
        handle: _Handler = getattr(self._handlers, route.name)

        async def guarded(request: web.Request) -> web.StreamResponse:
            self._guard.check_host(request)
            if route.scope is not None:
                request[KEY] = self._guard.let_in(request, route.scope)
            return await handle(request)

        return guarded

    def _answering(self, route: str, handle: _Handler) -> _Handler:
        """A handler that answers, whatever happens.

        A boundary: what nobody has foreseen is logged, and the client is told no more. Not a middleware of aiohttp:
        that would be one more layer on a stop's way.
        """

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                response = await handle(request)
            except Problem as problem:
                if problem.kind == "limit":
                    self.metrics.refused(problem.field or "")
                response = problem.response()
            except web.HTTPException as error:
                response = of_status(error).response()
                if "Allow" in error.headers:
                    response.headers["Allow"] = error.headers["Allow"]
            except ConnectionError:
                raise  # the client has gone: there is nobody to answer
            except Exception as error:  # noqa: BLE001
                response = self._failed(route, error).response()
            self.metrics.answered(request.method, route, response.status)
            return response

        return answer

    @staticmethod
    def _failed(route: str, error: Exception) -> Problem:
        problem = of_error(error)
        if problem is None:
            _log.error("a request failed", exc_info=error, extra={"route": route})
            return Problem(500, "the gateway has a defect; its log says more")
        if problem.kind == "store":
            _log.warning("%s", error, extra={"route": route})
        return problem


async def _refuse(request: web.Request) -> web.StreamResponse:
    """Refuse what is asked for at no address of ours, or in no way that it knows."""
    here = request.match_info.route.resource
    methods: set[str] = set()
    for resource in request.app.router.resources():
        if resource is not here:
            methods |= (await resource.resolve(request))[1]
    if methods:
        raise web.HTTPMethodNotAllowed(request.method, methods)
    raise web.HTTPNotFound
