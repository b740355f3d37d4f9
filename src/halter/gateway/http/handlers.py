"""The request handlers. The name of a route is that of the method here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec
from aiohttp import web

from halter.gateway.http.errors import Problem
from halter.gateway.http.keys import Key
from halter.gateway.http.media import find_media, is_sound
from halter.gateway.http.openapi import document
from halter.gateway.http.peer import client_of
from halter.gateway.http.schemas import (
    AnswerBody,
    AnswerView,
    EditBody,
    MessageBody,
    RollbackBody,
    SessionBody,
    SessionList,
    SessionView,
    StopAllBody,
    StopBody,
    TurnView,
    read_body,
    read_form,
    view_inbox_message,
)
from halter.gateway.http.static_files import StaticFiles
from halter.gateway.http.websocket import SessionWebSocket
from halter.gateway.observe.metrics import CONTENT_TYPE_LATEST, Metrics
from halter.gateway.sessions.commands import Commands
from halter.gateway.sessions.limits import LimitExceeded
from halter.models.image_types import IMAGE_TYPES

if TYPE_CHECKING:
    from collections.abc import Collection

    from halter.gateway.http.sse import EventStreams
    from halter.gateway.observe.tracing import Tracing
    from halter.gateway.sessions.commands import KeepPrefixes
    from halter.gateway.sessions.live_session import LiveSession
    from halter.gateway.sessions.registry import SessionLease, SessionRegistry
    from halter.gateway.sessions.spoken_replies import SpokenReplies

__all__ = ["KEY", "Handlers"]

KEY: Final = web.RequestKey("key", Key)
_MOST_LISTED: Final = 1_000
_LISTED: Final = 100
_MOST_EVENTS: Final = 0xFFFFFFFF
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
        streams: EventStreams,
        metrics: Metrics,
        tracing: Tracing,
        speech: SpokenReplies,
        *,
        reserved: Collection[str] = (),
        keep_prefixes: KeepPrefixes | None = None,
        notices: Collection[str] = (),
    ) -> None:
        self._registry = registry
        self._notices = list(notices)
        self._streams = streams
        self._metrics = metrics
        self._tracing = tracing
        self._speech = speech
        self._commands = Commands(registry, reserved, keep_prefixes)
        self._page = StaticFiles()
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
        live, is_new = await self._commands.create(request[KEY], body)
        return _json(_view(live), status=201 if is_new else 200)

    async def sessions(self, request: web.Request) -> web.Response:
        most = _number(request.query.get("limit"), "limit", _LISTED, _MOST_LISTED)
        views = []
        for info, agent, title in await self._registry.list(most, request[KEY]):
            live = self._registry.live_sessions.get(info.id)
            view = SessionView(
                id=info.id,
                agent=agent,
                state="asleep",
                title=title,
                waiting=info.waiting,
                events=info.events,
                created_at=info.created_at,
                updated_at=info.updated_at,
            )
            if live is not None:
                view.state, view.turn = _state(live), _turn(live)
            views.append(view)
        return _json(SessionList(sessions=views, notices=self._notices))

    async def session(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            return _json(_view(live))

    async def erase(self, request: web.Request) -> web.Response:
        await self._registry.erase(request.match_info["session"])
        return web.Response(status=204)

    # -- messages ----------------------------------------------------------------------------------------------------

    async def message(self, request: web.Request) -> web.Response:
        if request.content_type == "multipart/form-data":
            return await self.media_message(request)
        async with self._lease(request) as live:
            body: MessageBody = await read_body(request, MessageBody, self._registry.limits)
            body = self._tracing.continue_trace(request.headers, live.session.id, body)
            return _json(await self._commands.message(live, request[KEY], body), status=202)

    async def media_message(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            form, parts = await read_form(request, self._registry.limits)
            form = self._tracing.continue_trace(request.headers, live.session.id, form)
            return _json(await self._commands.message_with_media(live, request[KEY], form, parts), status=202)

    async def inbox(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            return _json([view_inbox_message(pending) for pending in live.session.inbox])

    async def edit(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            body: EditBody = await read_body(request, EditBody, self._registry.limits)
            return _json(await self._commands.edit(live, request.match_info["message"], body))

    async def remove(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            return _json(await self._commands.remove(live, request.match_info["message"]))

    async def stop(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            body: StopBody = await read_body(request, StopBody, self._registry.limits, may_be_empty=True)
            return _json(await self._commands.stop(live, request[KEY], body))

    async def stop_all(self, request: web.Request) -> web.Response:
        body: StopAllBody = await read_body(request, StopAllBody, self._registry.limits, may_be_empty=True)
        return _json(await self._commands.stop_all(request[KEY], body))

    async def rollback(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            body: RollbackBody = await read_body(request, RollbackBody, self._registry.limits, may_be_empty=True)
            return _json(await self._commands.rollback(live, body))

    async def undo_rollback(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            return _json(await self._commands.undo_rollback(live))

    async def changes(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            return _json(await self._commands.changes(live))

    async def answer(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            body: AnswerBody = await read_body(request, AnswerBody, self._registry.limits)
            client = client_of(request)
            await self._commands.answer(live, request[KEY], request.match_info["request"], body.value, client)
            return _json(AnswerView(answered=True))

    async def speech(self, request: web.Request) -> web.Response:
        async with self._lease(request) as live:
            sound = await self._speech.say(live.session)
            return web.Response(body=sound.data, content_type=sound.media_type)

    async def media(self, request: web.Request) -> web.Response:
        place = request.match_info
        event, number = (_number(place[name], name, 0, _MOST_EVENTS) for name in ("event", "number"))
        async with self._lease(request) as live:
            found = await self._registry.read(live.session.id, event)
        medium = find_media(found, number) if found is not None else None
        if medium is None:
            raise Problem(404, "there is no such image or recording", field="number", kind="no-media")
        kind = medium.media_type if medium.media_type in IMAGE_TYPES or is_sound(medium.media_type) else _UNKNOWN
        return web.Response(body=medium.data, headers=_OF_MEDIA | {"Content-Type": kind})

    # -- events ------------------------------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.StreamResponse:
        after = self._after(request)
        async with self._lease(request) as live:
            return await self._streams.send(request, live.session, after)

    async def socket(self, request: web.Request) -> web.StreamResponse:
        after = self._after(request)
        async with self._lease(request) as live:
            self.sockets += 1
            try:
                socket = SessionWebSocket(request, live, request[KEY], self._registry, self._commands, self._streams)
                return await socket.serve(after)
            finally:
                self.sockets -= 1

    def _lease(self, request: web.Request) -> SessionLease:
        """The session of the request, if its key may use it."""
        return self._registry.lease(request.match_info["session"], request[KEY])

    def _after(self, request: web.Request) -> int:
        """The number of the last event that the client has; checks the limit of streams."""
        if len(self._streams) + self.sockets >= self._registry.limits.streams:
            msg = "too many event streams are open"
            raise LimitExceeded(msg, "streams")
        header = request.headers.get("Last-Event-ID")
        if header:
            return _number(header, "Last-Event-ID", 0, _MOST_EVENTS)
        return _number(request.query.get("after"), "after", 0, _MOST_EVENTS)


def _number(text: str | None, field: str, default: int, most: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most):
        raise Problem(422, f"must be an integer from 0 to {most}", field=field, kind="field")
    return int(text)


def _json(view: object, status: int = 200) -> web.Response:
    return web.Response(body=_encode(view), status=status, content_type="application/json")


def _state(live: LiveSession) -> Literal["running", "idle"]:
    return "running" if live.session.is_running else "idle"


def _turn(live: LiveSession) -> TurnView | None:
    turn = live.session.turn
    if turn is None:
        return None
    return TurnView(
        id=turn.id,
        status=turn.status,
        stopping=turn.is_stopping,
        reason=turn.reason or "",
        detail=turn.detail,
        text=live.session.text if turn.status == "running" else turn.text,
    )


def _view(live: LiveSession) -> SessionView:
    return SessionView(
        id=live.session.id,
        agent=live.agent,
        state=_state(live),
        title=live.title,
        waiting=len(live.session.inbox),
        created_at=live.created_at,
        updated_at=live.updated_at,
        turn=_turn(live),
    )
