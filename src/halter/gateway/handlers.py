"""What each address does. Its name in `routes` is that of the method here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec
from aiohttp import web

from halter.gateway.commands import Commands
from halter.gateway.keys import Key
from halter.gateway.limits import TooMany
from halter.gateway.media import IMAGES, find_media, is_sound
from halter.gateway.messages import (
    AnswerBody,
    AnswerView,
    EditBody,
    MessageBody,
    SessionBody,
    SessionList,
    SessionView,
    StopAllBody,
    StopBody,
    TurnView,
    read_body,
    read_form,
    view_letter,
)
from halter.gateway.openapi import document
from halter.gateway.problems import Problem
from halter.gateway.socket import Socket
from halter.gateway.static import Page

if TYPE_CHECKING:
    from halter.gateway.hall import Hall
    from halter.gateway.metrics import Metrics
    from halter.gateway.room import Room
    from halter.gateway.speech import Speech
    from halter.gateway.streams import Streams

__all__ = ["KEY", "Handlers"]

KEY: Final = web.RequestKey("key", Key)
_MOST_LISTED: Final = 1_000
_LISTED: Final = 100
_MOST_EVENTS: Final = 0xFFFFFFFF
_UNKNOWN: Final = "application/octet-stream"
# Shown by the page alone: as a page of its own it could do nothing. What is erased is not to stay in a browser, and
# under the same address there may be another picture then.
_OF_MEDIA: Final = {
    "Cache-Control": "no-store",
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
}
_encode = msgspec.json.Encoder().encode


class Handlers:
    """All of them."""

    def __init__(self, hall: Hall, streams: Streams, metrics: Metrics, speech: Speech) -> None:
        self._hall = hall
        self._streams = streams
        self._metrics = metrics
        self._speech = speech
        self._commands = Commands(hall)
        self._page = Page()
        self._document = b""
        self.sockets = 0

    # -- for everybody -----------------------------------------------------------------------------------------------

    async def page(self, request: web.Request) -> web.Response:
        return self._page.response(request, "index.html")

    async def page_file(self, request: web.Request) -> web.Response:
        return self._page.response(request, request.match_info["file"])

    async def health(self, _request: web.Request) -> web.Response:
        if self._hall.is_draining:
            raise Problem(503, "the gateway is shutting down", kind="draining", retry_after=5.0)
        return web.json_response({"status": "ok"})

    async def openapi(self, _request: web.Request) -> web.Response:
        self._document = self._document or document()
        return web.Response(body=self._document, content_type="application/json")

    async def metrics(self, _request: web.Request) -> web.Response:
        hall = self._hall
        now = {
            "sessions_awake": ("Sessions that are loaded.", len(hall.rooms)),
            "turns_running": ("Turns that run.", sum(room.session.is_running for room in hall.busy)),
            "streams_open": ("Event streams that are open.", len(self._streams)),
            "sockets_open": ("WebSockets that are open.", self.sockets),
            "events_sent": ("Events that were sent to streams and WebSockets.", self._streams.dispatch.sent),
        }
        return web.Response(text=self._metrics.text(now), headers={"Content-Type": "text/plain; version=0.0.4"})

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def create(self, request: web.Request) -> web.Response:
        body: SessionBody = await read_body(request, SessionBody, self._hall.limits, may_be_empty=True)
        room, is_new = await self._commands.create(request[KEY], body)
        return _json(_view(room), status=201 if is_new else 200)

    async def sessions(self, request: web.Request) -> web.Response:
        most = _number(request.query.get("limit"), "limit", _LISTED, _MOST_LISTED)
        views = []
        for info, agent, title in await self._hall.list(most):
            room = self._hall.rooms.get(info.id)
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
            if room is not None:
                view.state, view.turn = _state(room), _turn(room)
            views.append(view)
        return _json(SessionList(sessions=views))

    async def session(self, request: web.Request) -> web.Response:
        async with self._hall.visit(request.match_info["session"]) as room:
            return _json(_view(room))

    async def erase(self, request: web.Request) -> web.Response:
        await self._hall.erase(request.match_info["session"])
        return web.Response(status=204)

    # -- messages ----------------------------------------------------------------------------------------------------

    async def message(self, request: web.Request) -> web.Response:
        limits = self._hall.limits
        async with self._hall.visit(request.match_info["session"]) as room:
            if request.content_type == "multipart/form-data":
                form, parts = await read_form(request, limits)
                return _json(await self._commands.hear(room, request[KEY], form, parts), status=202)
            body: MessageBody = await read_body(request, MessageBody, limits)
            return _json(self._commands.message(room, request[KEY], body), status=202)

    async def inbox(self, request: web.Request) -> web.Response:
        async with self._hall.visit(request.match_info["session"]) as room:
            return _json([view_letter(letter) for letter in room.session.inbox])

    async def edit(self, request: web.Request) -> web.Response:
        async with self._hall.visit(request.match_info["session"]) as room:
            body: EditBody = await read_body(request, EditBody, self._hall.limits)
            return _json(self._commands.edit(room, request.match_info["message"], body))

    async def remove(self, request: web.Request) -> web.Response:
        async with self._hall.visit(request.match_info["session"]) as room:
            return _json(self._commands.remove(room, request.match_info["message"]))

    async def stop(self, request: web.Request) -> web.Response:
        async with self._hall.visit(request.match_info["session"]) as room:
            body: StopBody = await read_body(request, StopBody, self._hall.limits, may_be_empty=True)
            return _json(await self._commands.stop(room, request[KEY], body))

    async def stop_all(self, request: web.Request) -> web.Response:
        body: StopAllBody = await read_body(request, StopAllBody, self._hall.limits, may_be_empty=True)
        return _json(await self._commands.stop_all(request[KEY], body))

    async def rollback(self, request: web.Request) -> web.Response:
        async with self._hall.visit(request.match_info["session"]) as room:
            return _json(self._commands.rollback(room))

    async def answer(self, request: web.Request) -> web.Response:
        async with self._hall.visit(request.match_info["session"]) as room:
            body: AnswerBody = await read_body(request, AnswerBody, self._hall.limits)
            self._commands.answer(room, request.match_info["request"], body.value)
            return _json(AnswerView(answered=True))

    async def speech(self, request: web.Request) -> web.Response:
        async with self._hall.visit(request.match_info["session"]) as room:
            sound = await self._speech.say(room.session)
            return web.Response(body=sound.data, content_type=sound.media_type)

    async def media(self, request: web.Request) -> web.Response:
        place = request.match_info
        event, number = (_number(place[name], name, 0, _MOST_EVENTS) for name in ("event", "number"))
        async with self._hall.visit(place["session"]) as room:
            found = await self._hall.read(room.session.id, event)
        medium = find_media(found, number) if found is not None else None
        if medium is None:
            raise Problem(404, "there is no such picture or recording", field="number", kind="no-media")
        kind = medium.media_type if medium.media_type in IMAGES or is_sound(medium.media_type) else _UNKNOWN
        return web.Response(body=medium.data, headers=_OF_MEDIA | {"Content-Type": kind})

    # -- events ------------------------------------------------------------------------------------------------------

    async def events(self, request: web.Request) -> web.StreamResponse:
        after = self._after(request)
        async with self._hall.visit(request.match_info["session"]) as room:
            return await self._streams.send(request, room.session, after)

    async def socket(self, request: web.Request) -> web.StreamResponse:
        after = self._after(request)
        async with self._hall.visit(request.match_info["session"]) as room:
            self.sockets += 1
            try:
                socket = Socket(request, room, request[KEY], self._hall, self._commands, self._streams)
                return await socket.serve(after)
            finally:
                self.sockets -= 1

    def _after(self, request: web.Request) -> int:
        """From which event on; and whether there is room for one more who listens."""
        if len(self._streams) + self.sockets >= self._hall.limits.streams:
            msg = "as many event streams are open as this gateway has"
            raise TooMany(msg, "streams")
        header = request.headers.get("Last-Event-ID")
        if header:
            return _number(header, "Last-Event-ID", 0, _MOST_EVENTS)
        return _number(request.query.get("after"), "after", 0, _MOST_EVENTS)


def _number(text: str | None, field: str, default: int, most: int) -> int:
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most):
        raise Problem(422, f"this is a whole number from 0 to {most}", field=field, kind="field")
    return int(text)


def _json(view: object, status: int = 200) -> web.Response:
    return web.Response(body=_encode(view), status=status, content_type="application/json")


def _state(room: Room) -> Literal["running", "idle"]:
    return "running" if room.session.is_running else "idle"


def _turn(room: Room) -> TurnView | None:
    turn = room.session.turn
    if turn is None:
        return None
    return TurnView(
        id=turn.id,
        status=turn.status,
        stopping=turn.is_stopping,
        reason=turn.reason or "",
        detail=turn.detail,
        text=room.session.text if turn.status == "running" else turn.text,
    )


def _view(room: Room) -> SessionView:
    return SessionView(
        id=room.session.id,
        agent=room.agent,
        state=_state(room),
        title=room.title,
        waiting=len(room.session.inbox),
        created_at=room.created_at,
        updated_at=room.updated_at,
        turn=_turn(room),
    )
