"""A WebSocket of one session: the events that an event stream has, and the commands that HTTP has.

What the client sends has a `type`, and may have a `ref`, which comes back with the answer:

    {"type": "message", "ref": 1, "text": "Hello.", "mode": "steer"}
    {"type": "stop", "ref": 2, "wait": true}        also "rollback", "answer", "edit" and "remove"

What it gets is an event, which has a `seq`; or {"type": "answer", "ref": 1, "body": {...}}; or {"type": "problem",
"ref": 1, "body": {...}}. Commands are done in their order; one that waits holds up no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from halter.gateway.feed import Feed, encode_event
from halter.gateway.guard import PROTOCOL, Guard
from halter.gateway.limits import TooMany
from halter.gateway.messages import (
    AnswerCommand,
    AnswerView,
    Command,
    EditCommand,
    MessageCommand,
    RemoveCommand,
    StopCommand,
    decode,
)
from halter.gateway.problems import Problem, of_error

if TYPE_CHECKING:
    from halter.events import Event
    from halter.gateway.commands import Commands
    from halter.gateway.hall import Hall
    from halter.gateway.keys import Key
    from halter.gateway.room import Room
    from halter.gateway.streams import Streams

__all__ = ["Socket"]

_log = logging.getLogger(__name__)
_BEAT: Final = 20.0
_MOST_AT_WORK: Final = 100  # commands that wait, for the end of a turn
_SHORT: Final = 126  # bytes, from which on a frame says its size in two more
_LONG: Final = 65_536  # and from which on in eight
_encode = msgspec.json.Encoder().encode


class _Ref(msgspec.Struct):
    ref: Any = None


class Socket:
    """One connection."""

    def __init__(
        self, request: web.Request, room: Room, key: Key, hall: Hall, commands: Commands, streams: Streams
    ) -> None:
        self._request = request
        self._room = room
        self._key = key
        self._hall = hall
        self._commands = commands
        self._streams = streams
        self._at_work: set[asyncio.Task[None]] = set()
        self._socket = web.WebSocketResponse(
            protocols=(PROTOCOL,), heartbeat=_BEAT, max_msg_size=hall.limits.body, compress=False
        )

    async def serve(self, after: int) -> web.WebSocketResponse:
        """Send events and do commands, until one side closes. That stops nothing."""
        dispatch = self._streams.dispatch
        feed = Feed(self._request, self._room.session, self._hall.store, after, pack=_pack, dispatch=dispatch)
        try:
            await self._socket.prepare(self._request)
        except BaseException:
            feed.end()
            raise
        telling = asyncio.create_task(self._tell(feed))
        try:
            async for message in self._socket:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    await self._take(message.data)
        finally:
            feed.end()
            for task in (telling, *self._at_work):
                task.cancel()
            await asyncio.wait({telling, *self._at_work})
        return self._socket

    async def _tell(self, feed: Feed) -> None:
        """Send the events; close when there are no more. A boundary: what fails is logged, and closes it too."""
        code, why = WSCloseCode.OK, b"the session was closed"
        with contextlib.suppress(ConnectionError):
            try:
                await feed.run()
            except ConnectionError:
                raise  # the client has gone
            except Exception:  # noqa: BLE001
                _log.exception("a WebSocket failed", extra={"session": self._room.session.id})
                code, why = WSCloseCode.INTERNAL_ERROR, b"the gateway has a defect; its log says more"
            await self._socket.close(code=code, message=why)

    async def _take(self, data: str | bytes) -> None:
        try:
            command: Command = decode(data, Command)
        except Problem as problem:
            await self._send("problem", _ref(data), problem.body())
            return
        if not (isinstance(command, StopCommand) and command.patience):
            await self._answer(command)
        elif len(self._at_work) < _MOST_AT_WORK:
            task = asyncio.create_task(self._answer(command))
            self._at_work.add(task)
            task.add_done_callback(self._at_work.discard)
        else:
            many = TooMany("too many stops are waited for on this connection", "wait")
            await self._send("problem", command.ref, many.body())

    async def _answer(self, command: Command) -> None:
        """Do a command, and answer. A boundary, as the one around a request."""
        ref = command.ref
        try:
            Guard.check_scope(self._key, "write")
            body = await self._do(command)
        except Problem as problem:
            await self._send("problem", ref, problem.body())
        except Exception as error:  # noqa: BLE001
            await self._send("problem", ref, self._failed(error).body())
        else:
            await self._send("answer", ref, body)

    def _failed(self, error: Exception) -> Problem:
        problem = of_error(error)
        if problem is None:
            _log.error("a command failed", exc_info=error, extra={"session": self._room.session.id})
            return Problem(500, "the gateway has a defect; its log says more")
        return problem

    async def _do(self, command: Command) -> object:
        room, commands = self._room, self._commands
        if isinstance(command, MessageCommand):
            return commands.message(room, self._key, command)
        if isinstance(command, StopCommand):
            return await commands.stop(room, self._key, command)
        if isinstance(command, AnswerCommand):
            commands.answer(room, command.request, command.value)
            return AnswerView(answered=True)
        if isinstance(command, EditCommand):
            return commands.edit(room, command.message, command)
        if isinstance(command, RemoveCommand):
            return commands.remove(room, command.message)
        return commands.rollback(room)

    async def _send(self, kind: str, ref: object, body: object) -> None:
        with contextlib.suppress(ConnectionError):  # who has gone is not told
            await self._socket.send_str(_encode({"type": kind, "ref": ref, "body": body}).decode())


def _ref(data: str | bytes) -> object:
    try:
        return msgspec.json.decode(data, type=_Ref).ref
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _pack(events: list[Event]) -> bytes:
    return b"".join([_frame(encode_event(event)) for event in events])


def _frame(text: bytes) -> bytes:
    """A text as a frame of a WebSocket, as a server sends it: whole, and neither masked nor compressed."""
    size = len(text)
    if size < _SHORT:
        return b"\x81%c%b" % (size, text)
    if size < _LONG:
        return b"\x81\x7e%b%b" % (size.to_bytes(2), text)
    return b"\x81\x7f%b%b" % (size.to_bytes(8), text)
