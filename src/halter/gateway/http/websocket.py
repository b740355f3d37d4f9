"""A WebSocket of one session: the events of an event stream, and the commands of the HTTP API.

What the client sends has a `type`, and may have a `ref`, which is returned with the answer:

    {"type": "message", "ref": 1, "text": "Hello.", "mode": "steer"}
    {"type": "stop", "ref": 2, "wait": true}        also "rollback", "answer", "edit" and "remove"

It receives events, which have a `seq`; {"type": "answer", "ref": 1, "body": {...}}; or {"type": "problem", "ref": 1,
"body": {...}}.

Commands are done in order, but a stop waits for none of them: it is done as soon as it is read. It is done again after
each message that it overtook, so that these are held too. What was read is also done if the client disconnects then.
At most `_MAX_WAITING` commands and as many stops of a connection can be waiting; others are refused.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from halter.gateway.http.auth import PROTOCOL, check_scope, invalid_key
from halter.gateway.http.errors import Problem, problem_of_error
from halter.gateway.http.event_feed import EventFeed, log_failure
from halter.gateway.http.media import replace_media
from halter.gateway.http.peer import client_of
from halter.gateway.http.schemas import (
    AnswerCommand,
    Command,
    EditBody,
    EditCommand,
    MessageBody,
    MessageCommand,
    ReceiptView,
    RemoveCommand,
    RollbackBody,
    StopBody,
    StopCommand,
    decode,
)
from halter.gateway.sessions.limits import LimitExceeded
from halter.gateway.sessions.requests import (
    AnswerQuestion,
    EditMessage,
    PostMessage,
    RemoveMessage,
    Rollback,
    StopTurn,
    body_of,
)
from halter.views.event_json import encode_event

if TYPE_CHECKING:
    from halter.events import Event
    from halter.gateway.http.keys import Key
    from halter.gateway.http.sse import EventStreams
    from halter.gateway.sessions.placement import EventSource, Sessions
    from halter.gateway.sessions.registry import SessionRegistry
    from halter.gateway.sessions.requests import SessionRequest

__all__ = ["SessionWebSocket"]

_log = logging.getLogger(__name__)
_HEARTBEAT: Final = 20.0  # seconds
_MAX_WAITING: Final = 100  # commands of one connection that are not done yet; and stops
_TWO_BYTE_LENGTH: Final = 126  # bytes; a frame of this size or more has a length field of two bytes
_EIGHT_BYTE_LENGTH: Final = 65_536  # the same for eight bytes
_encode = msgspec.json.Encoder().encode


class _Ref(msgspec.Struct):
    ref: Any = None


class _Waiting:
    """A command that is not done yet, and the stops that have overtaken it."""

    __slots__ = ("command", "stops")

    def __init__(self, command: Command) -> None:
        self.command = command
        self.stops: collections.deque[StopBody] = collections.deque(maxlen=_MAX_WAITING)


class SessionWebSocket:
    """One connection."""

    def __init__(
        self,
        request: web.Request,
        source: EventSource,
        key: Key,
        registry: SessionRegistry,
        sessions: Sessions,
        streams: EventStreams,
    ) -> None:
        self._request = request
        self._source = source
        self._key = key
        self._registry = registry
        self._sessions = sessions
        self._streams = streams
        self._commands: dict[asyncio.Task[None], _Waiting] = {}
        self._order = asyncio.Lock()  # of the commands
        self._stops: set[asyncio.Task[None]] = set()
        self._socket = web.WebSocketResponse(
            protocols=(PROTOCOL,), heartbeat=_HEARTBEAT, max_msg_size=registry.limits.body, compress=False
        )

    async def serve(self, after: int) -> web.WebSocketResponse:
        """Send events and do commands, until one side closes. That stops nothing."""
        dispatcher = self._streams.dispatcher
        feed = EventFeed(self._request, self._source, self._registry.store, after, pack=_pack, dispatcher=dispatcher)
        await feed.load()
        try:
            await self._socket.prepare(self._request)
        except BaseException:
            feed.end()
            raise
        sending = asyncio.create_task(self._send_events(feed))
        try:
            async for message in self._socket:
                if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    await self._take(message.data)
            if self._commands:
                await asyncio.wait(self._commands)
        finally:
            feed.end()
            for task in (sending, *self._commands):
                task.cancel()
            await asyncio.wait({sending, *self._commands})
        return self._socket

    async def _send_events(self, feed: EventFeed) -> None:
        """Send the events, then close. A boundary: an error is logged, and closes the WebSocket too."""
        code, why = WSCloseCode.OK, b"the session was closed"
        with contextlib.suppress(ConnectionError):
            try:
                with self._streams.end_if_revoked(feed, self._key):
                    await feed.run()
                if not self._streams.keys.is_valid(self._key):
                    code, why = WSCloseCode.POLICY_VIOLATION, b"the key is not valid any more"
            except ConnectionError:
                raise  # the client has disconnected
            except Exception as error:  # noqa: BLE001
                log_failure(error, self._source.id)
                code, why = WSCloseCode.INTERNAL_ERROR, b"internal error; see the gateway log"
            await self._socket.close(code=code, message=why)

    async def _take(self, data: str | bytes) -> None:
        """Start what the client has sent, without waiting for it; a stop with nothing to overtake is done here."""
        try:
            command: Command = decode(data, Command)
        except Problem as problem:
            await self._send("problem", _ref(data), problem.body())
            return
        if len(self._stops if isinstance(command, StopCommand) else self._commands) >= _MAX_WAITING:
            many = LimitExceeded("too many commands are waiting on this connection", "connection")
            await self._send("problem", command.ref, many.body())
        elif isinstance(command, StopCommand) and not (self._commands or command.patience):
            await self._answer(_Waiting(command))  # now: a task would begin only in the next iteration of the loop
        elif isinstance(command, StopCommand):
            again = StopBody(reason=command.reason, scope=command.scope, expect_turn=command.expect_turn)
            if command.scope != "call" and command.call_id is None:
                for waiting in self._commands.values():
                    waiting.stops.append(again)
            stop = asyncio.create_task(self._stop(command, again))
            self._stops.add(stop)
            stop.add_done_callback(self._stops.discard)
            self._streams.keep(stop)
        else:
            waiting = _Waiting(command)
            task = asyncio.create_task(self._do_in_order(waiting))
            self._commands[task] = waiting
            task.add_done_callback(self._commands.pop)

    async def _stop(self, command: StopCommand, again: StopBody) -> None:
        receipt = await self._answer(_Waiting(command))
        if isinstance(receipt, ReceiptView) and receipt.turn_id == command.expect_turn:
            again.expect_turn = None  # the turn is over, and what was queued behind it is held

    async def _do_in_order(self, waiting: _Waiting) -> None:
        async with self._order:  # an asyncio.Lock is fair
            await self._answer(waiting)

    async def _answer(self, waiting: _Waiting) -> object:
        """Do a command and answer; returns the result, if there is one. A boundary, like the one around a request."""
        command, ref = waiting.command, waiting.command.ref
        try:
            self._check_key()
            body = await self._do(self._request_of(command))
            if isinstance(command, (MessageCommand, EditCommand)):  # it may start a turn
                for stop in list(waiting.stops):
                    await self._do(StopTurn(body=stop))
        except Problem as problem:
            await self._send("problem", ref, problem.body())
        except Exception as error:  # noqa: BLE001
            await self._send("problem", ref, self._failed(error).body())
        else:
            await self._send("answer", ref, body)
            return body
        return None

    def _check_key(self) -> None:
        """Raise `Problem` if the key was revoked since the WebSocket was opened, or may only read."""
        if not self._streams.keys.is_valid(self._key):
            raise invalid_key()
        check_scope(self._key, "write")

    def _failed(self, error: Exception) -> Problem:
        problem = problem_of_error(error)
        if problem is None:
            _log.error("a command failed", exc_info=error, extra={"session": self._source.id})
            return Problem(500, "internal error; see the gateway log")
        return problem

    async def _do(self, request: SessionRequest) -> object:
        return await self._sessions.do(self._source.id, self._key, request)

    def _request_of(self, command: Command) -> SessionRequest:
        if isinstance(command, MessageCommand):
            return PostMessage(body=body_of(MessageBody, command))
        if isinstance(command, StopCommand):
            return StopTurn(body=body_of(StopBody, command))
        if isinstance(command, AnswerCommand):
            return AnswerQuestion(request=command.request, value=command.value, client=client_of(self._request))
        if isinstance(command, EditCommand):
            return EditMessage(message=command.message, body=body_of(EditBody, command))
        if isinstance(command, RemoveCommand):
            return RemoveMessage(message=command.message)
        return Rollback(body=body_of(RollbackBody, command))

    async def _send(self, kind: str, ref: object, body: object) -> None:
        with contextlib.suppress(ConnectionError):  # the client has disconnected
            await self._socket.send_str(_encode({"type": kind, "ref": ref, "body": body}).decode())


def _ref(data: str | bytes) -> object:
    try:
        return msgspec.json.decode(data, type=_Ref).ref
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _pack(events: list[Event]) -> bytes:
    return b"".join([_frame(encode_event(replace_media(event))) for event in events])


def _frame(text: bytes) -> bytes:
    """A text as a WebSocket frame of a server: one piece, neither masked nor compressed."""
    size = len(text)
    if size < _TWO_BYTE_LENGTH:
        return b"\x81%c%b" % (size, text)
    if size < _EIGHT_BYTE_LENGTH:
        return b"\x81\x7e%b%b" % (size.to_bytes(2), text)
    return b"\x81\x7f%b%b" % (size.to_bytes(8), text)
