"""The request handlers. The name of a route is that of the method here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from halter.gateway.http.errors import Problem
from halter.gateway.http.keys import Key
from halter.gateway.http.media import find_media, is_sound
from halter.gateway.http.openapi import document
from halter.gateway.http.pdf_text import PdfReader
from halter.gateway.http.peer import client_of
from halter.gateway.http.schemas import (
    AnswerBody,
    EditBody,
    MessageBody,
    RollbackBody,
    StopAllBody,
    StopBody,
    read_body,
    read_file,
    read_form,
)
from halter.gateway.http.session_schemas import (
    AgentList,
    BranchBody,
    RetryBody,
    SessionBody,
    SessionEditBody,
    SessionList,
    SessionView,
)
from halter.gateway.http.static_files import StaticFiles
from halter.gateway.http.websocket import SessionWebSocket
from halter.gateway.observe.metrics import CONTENT_TYPE_LATEST, Metrics
from halter.gateway.sessions.catalog import Catalog
from halter.gateway.sessions.limits import LimitExceeded
from halter.gateway.sessions.requests import (
    AnswerQuestion,
    BranchSession,
    ChangeSession,
    CompactContext,
    EditMessage,
    EraseSession,
    PostMedia,
    PostMessage,
    ReadChanges,
    ReadInbox,
    ReadSession,
    RemoveMessage,
    RetryTurn,
    Rollback,
    Speak,
    StopTurn,
    UndoRollback,
)
from halter.gateway.sessions.views import add_live, view_agent
from halter.models.image_types import IMAGE_TYPES

if TYPE_CHECKING:
    from collections.abc import Collection

    from halter.gateway.http.sse import EventStreams
    from halter.gateway.observe.tracing import Tracing
    from halter.gateway.sessions.placement import FollowedSession, Sessions
    from halter.gateway.sessions.registry import SessionRegistry
    from halter.gateway.sessions.requests import SessionRequest

__all__ = ["KEY", "Handlers"]

KEY: Final = web.RequestKey("key", Key)
_MAX_LISTED: Final = 1_000
_LISTED: Final = 100
_MAX_SEARCH: Final = 200
_MAX_NUMBER: Final = 0xFFFFFFFF
_UNKNOWN: Final = "application/octet-stream"
# Media are for the page only, and must not run as a page themselves. Deleted media must not stay in a browser's cache,
# and the same URL may have another image later.
_OF_MEDIA: Final = {
    "Cache-Control": "no-store",
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}
_encode = msgspec.json.Encoder().encode


class Handlers:
    """One method for each route."""

    def __init__(
        self,
        registry: SessionRegistry,
        sessions: Sessions,
        streams: EventStreams,
        metrics: Metrics,
        tracing: Tracing,
        *,
        notices: Collection[str] = (),
    ) -> None:
        self._registry = registry
        self._sessions = sessions
        self._notices = list(notices)
        self._streams = streams
        self._metrics = metrics
        self._tracing = tracing
        self._page = StaticFiles()
        self._pdfs = PdfReader()
        self._catalog = Catalog(registry.store)
        self._document = b""
        self.sockets = 0

    # -- without a session ---------------------------------------------------------------------------------------------

    async def page(self, request: web.Request) -> web.Response:
        return self._page.response(request, "index.html")

    async def page_file(self, request: web.Request) -> web.Response:
        return self._page.response(request, request.match_info["file"])

    async def health(self, _request: web.Request) -> web.Response:
        if self._registry.is_draining:
            raise Problem(503, "the gateway is shutting down", kind="draining", retry_after=5.0)
        if not self._sessions.is_connected:
            raise Problem(503, "the servers of the cluster cannot be reached", kind="cluster", retry_after=1.0)
        return web.json_response({"status": "ok"})

    async def openapi(self, _request: web.Request) -> web.Response:
        self._document = self._document or document()
        return web.Response(body=self._document, content_type="application/json")

    async def metrics(self, _request: web.Request) -> web.Response:
        registry = self._registry
        now = {
            "sessions_awake": ("Loaded sessions.", len(registry.live_sessions)),
            "turns_running": ("Running turns.", sum(live.session.is_running for live in registry.busy)),
            "streams_open": ("Open event streams.", len(self._streams)),
            "sockets_open": ("Open WebSockets.", self.sockets),
            "events_sent": ("Events sent to streams and WebSockets.", self._streams.dispatcher.sent),
        }
        return web.Response(body=self._metrics.text(now), headers={"Content-Type": CONTENT_TYPE_LATEST})

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def create(self, request: web.Request) -> web.Response:
        body: SessionBody = await read_body(request, SessionBody, self._registry.limits, may_be_empty=True)
        view, is_new = await self._sessions.create(request[KEY], body)
        return _json(view, status=201 if is_new else 200)

    async def sessions(self, request: web.Request) -> web.Response:
        limit = _number(request.query.get("limit"), "limit", _LISTED, _MAX_LISTED)
        words = request.query.get("search", "")
        if len(words) > _MAX_SEARCH:
            raise Problem(422, f"at most {_MAX_SEARCH} characters", field="search", kind="field")
        found = await self._catalog.search(words, request[KEY], limit) if words.strip() else None
        views = []
        elsewhere = await self._sessions.states()
        for info, agent, title in await self._catalog.list(limit, request[KEY], found):
            live = self._registry.live_sessions.get(info.id)
            view = SessionView(
                id=info.id,
                agent=agent or next(iter(self._registry.agents)),
                state="asleep",
                title=title,
                waiting=info.waiting,
                events=info.events,
                created_at=info.created_at,
                updated_at=info.updated_at,
            )
            if live is not None:
                add_live(view, live)
            elif info.id in elsewhere:
                other = elsewhere[info.id]
                view.state, view.turn = "running" if other.is_running else "idle", other.turn
            views.append(view)
        return _json(SessionList(sessions=views, notices=self._notices, found=found or {}))

    async def agents(self, _request: web.Request) -> web.Response:
        registry = self._registry
        agents = [view_agent(name, agent) for name, agent in registry.agents.items()]
        return _json(AgentList(agents=agents, models=list(registry.models)))

    async def pdf(self, request: web.Request) -> web.Response:
        return _json(await self._pdfs.read(await read_file(request, "application/pdf", self._registry.limits)))

    async def change(self, request: web.Request) -> web.Response:
        body: SessionEditBody = await read_body(request, SessionEditBody, self._registry.limits)
        return await self._do(request, ChangeSession(body=body))

    async def retry(self, request: web.Request) -> web.Response:
        body: RetryBody = await read_body(request, RetryBody, self._registry.limits, may_be_empty=True)
        return await self._do(request, RetryTurn(body=body), status=202)

    async def branch(self, request: web.Request) -> web.Response:
        body: BranchBody = await read_body(request, BranchBody, self._registry.limits, may_be_empty=True)
        return await self._do(request, BranchSession(body=body), status=201)

    async def compact(self, request: web.Request) -> web.Response:
        return await self._do(request, CompactContext(), status=202)

    async def session(self, request: web.Request) -> web.Response:
        return await self._do(request, ReadSession())

    async def erase(self, request: web.Request) -> web.Response:
        await self._sessions.do(request.match_info["session"], request[KEY], EraseSession())
        return web.Response(status=204)

    # -- messages ----------------------------------------------------------------------------------------------------

    async def message(self, request: web.Request) -> web.Response:
        if request.content_type == "multipart/form-data":
            return await self.media_message(request)
        body: MessageBody = await read_body(request, MessageBody, self._registry.limits)
        body = self._tracing.continue_trace(request.headers, request.match_info["session"], body)
        return await self._do(request, PostMessage(body=body), status=202)

    async def media_message(self, request: web.Request) -> web.Response:
        async with self._follow(request):  # before the upload: nobody sends one to a session that does not exist
            form, parts = await read_form(request, self._registry.limits)
            form = self._tracing.continue_trace(request.headers, request.match_info["session"], form)
            return await self._do(request, PostMedia(form=form, parts=parts), status=202)

    async def inbox(self, request: web.Request) -> web.Response:
        return await self._do(request, ReadInbox())

    async def edit(self, request: web.Request) -> web.Response:
        body: EditBody = await read_body(request, EditBody, self._registry.limits)
        return await self._do(request, EditMessage(message=request.match_info["message"], body=body))

    async def remove(self, request: web.Request) -> web.Response:
        return await self._do(request, RemoveMessage(message=request.match_info["message"]))

    async def stop(self, request: web.Request) -> web.Response:
        body: StopBody = await read_body(request, StopBody, self._registry.limits, may_be_empty=True)
        return await self._do(request, StopTurn(body=body))

    async def stop_all(self, request: web.Request) -> web.Response:
        body: StopAllBody = await read_body(request, StopAllBody, self._registry.limits, may_be_empty=True)
        return _json(await self._sessions.stop_all(request[KEY], body))

    async def rollback(self, request: web.Request) -> web.Response:
        body: RollbackBody = await read_body(request, RollbackBody, self._registry.limits, may_be_empty=True)
        return await self._do(request, Rollback(body=body))

    async def undo_rollback(self, request: web.Request) -> web.Response:
        return await self._do(request, UndoRollback())

    async def changes(self, request: web.Request) -> web.Response:
        scope = request.query.get("scope", "turn")
        if scope not in ("turn", "session"):
            raise Problem(422, "must be turn or session", field="scope", kind="field")
        return await self._do(request, ReadChanges(whole=scope == "session"))

    async def answer(self, request: web.Request) -> web.Response:
        body: AnswerBody = await read_body(request, AnswerBody, self._registry.limits)
        asked, client = request.match_info["request"], client_of(request)
        return await self._do(request, AnswerQuestion(request=asked, value=body.value, client=client))

    async def speech(self, request: web.Request) -> web.Response:
        sound = await self._sessions.do(request.match_info["session"], request[KEY], Speak())
        return web.Response(body=sound.data, content_type=sound.media_type)

    async def media(self, request: web.Request) -> web.Response:
        place = request.match_info
        event, number = (_number(place[name], name, 0, _MAX_NUMBER) for name in ("event", "number"))
        async with self._follow(request) as source:
            found = await self._registry.read(source.id, event)
        medium = find_media(found, number) if found is not None else None
        if medium is None:
            raise Problem(404, "there is no such image or recording", field="number", kind="no-media")
        kind = medium.media_type if medium.media_type in IMAGE_TYPES or is_sound(medium.media_type) else _UNKNOWN
        return web.Response(body=medium.data, headers=_OF_MEDIA | {"Content-Type": kind})

    # -- events ------------------------------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.StreamResponse:
        after = self._after(request)
        async with self._follow(request) as source:
            return await self._streams.send(request, source, request[KEY], after)

    async def socket(self, request: web.Request) -> web.StreamResponse:
        after = self._after(request)
        async with self._follow(request) as source:
            self.sockets += 1
            try:
                socket = SessionWebSocket(request, source, request[KEY], self._registry, self._sessions, self._streams)
                return await socket.serve(after)
            finally:
                self.sockets -= 1

    async def _do(self, request: web.Request, asked: SessionRequest, status: int = 200) -> web.Response:
        """Do something to the session of the request, if its key may use it."""
        return _json(await self._sessions.do(request.match_info["session"], request[KEY], asked), status)

    def _follow(self, request: web.Request) -> FollowedSession:
        """The events of the session of the request, if its key may use it."""
        return self._sessions.follow(request.match_info["session"], request[KEY])

    def _after(self, request: web.Request) -> int:
        """The number of the last event that the client has; checks the limit of streams."""
        if len(self._streams) + self.sockets >= self._registry.limits.streams:
            msg = "too many event streams are open"
            raise LimitExceeded(msg, "streams")
        header = request.headers.get("Last-Event-ID")
        if header:
            return _number(header, "Last-Event-ID", 0, _MAX_NUMBER)
        return _number(request.query.get("after"), "after", 0, _MAX_NUMBER)


def _number(text: str | None, field: str, default: int, maximum: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(maximum)) and int(text) <= maximum):
        raise Problem(422, f"must be an integer from 0 to {maximum}", field=field, kind="field")
    return int(text)


def _json(view: object, status: int = 200) -> web.Response:
    return web.Response(body=_encode(view), status=status, content_type="application/json")
