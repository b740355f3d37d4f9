"""JSON-RPC 2.0 over lines, in both directions.

Each request of the client runs in a task of its own, under a token of its own. Notifications are handled at once and in
order, so a cancellation always finds the request that came before it. What cannot be understood is answered with an
error, and the connection goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from halter.cancel.token import CancellationToken, Cancelled
from halter.errors import HalterError
from halter.protocols.line_stream import MAX_LINE, LineTooLong

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from halter.protocols.line_stream import LineStream

__all__ = ["IncomingRequest", "RequestHandler", "RpcConnection", "RpcError", "decode"]

_log = logging.getLogger(__name__)
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800
_MAX_OPEN: Final = 256  # requests of the client that are not answered yet
_CANCEL: Final = "$/cancel_request"
_Id: TypeAlias = int | str | None
T = TypeVar("T")


class RpcError(Exception):
    """An error that is the answer to a request."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class _ErrorObject(Struct):
    code: int = INTERNAL_ERROR
    message: str = ""


class _Message(Struct):
    """A request, a notification or a response."""

    id: _Id | UnsetType = UNSET
    method: str | UnsetType = UNSET
    params: Raw = Raw(b"{}")
    result: Raw | UnsetType = UNSET
    error: _ErrorObject | UnsetType | None = UNSET


class _CancelParams(Struct, rename="camel"):
    request_id: _Id


class IncomingRequest:
    """A request of the client while it runs."""

    def __init__(self, token: CancellationToken) -> None:
        self.token = token
        self.on_stop: Callable[[str, str], object] | None = None  # called with reason and detail, before the token

    def stop(self, reason: str, detail: str) -> None:
        """Stop it, with what it has started. It is answered all the same."""
        if self.on_stop is not None:
            self.on_stop(reason, detail)
        self.token.cancel(reason, detail=detail)


RequestHandler: TypeAlias = "tuple[type[Struct], Callable[[Any, IncomingRequest], Awaitable[object]]]"
NotificationHandler: TypeAlias = "tuple[type[Struct], Callable[[Any], object]]"


def decode(raw: Raw, kind: type[T]) -> T:
    """Read parameters or a result of the client. Raises `RpcError`."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RpcError(INVALID_PARAMS, f"Invalid parameters: {error}") from error


class RpcConnection:
    """The connection to one client."""

    def __init__(
        self,
        stream: LineStream,
        requests: Mapping[str, RequestHandler],
        notifications: Mapping[str, NotificationHandler],
    ) -> None:
        """*requests* and *notifications* give, for each method, the type of its parameters and what handles it."""
        self.stream = stream
        self._requests = requests
        self._notifications: dict[str, NotificationHandler] = {
            _CANCEL: (_CancelParams, self._on_cancel),
            **notifications,
        }
        self._open: dict[_Id, IncomingRequest] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: dict[int, asyncio.Future[Raw]] = {}  # for answers of the client
        self._last_id = 0

    async def run(self) -> None:
        """Handle what the client sends until it is disconnected. Then stop its requests."""
        async for line in self.stream.lines():
            self._receive(line)
        token = self.stream.token
        for request in list(self._open.values()):
            request.stop(token.reason or "disconnect", token.detail)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(RpcError(REQUEST_CANCELLED, token.detail))

    async def wait(self, seconds: float) -> None:
        """Wait until all requests are answered, *seconds* at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    # -- what we send ------------------------------------------------------------------------------------------------

    def notify(self, method: str, params: object) -> None:
        """Send a notification. Never waits."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def request(self, method: str, params: object, token: CancellationToken) -> Raw:
        """Send a request and wait for its result. Raises `RpcError`, and `Cancelled` if *token* is cancelled first."""
        self._last_id += 1
        number = self._last_id
        answer: asyncio.Future[Raw] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        try:
            async with token.scope():
                return await answer
        except Cancelled:
            self.notify(_CANCEL, {"requestId": number})
            raise
        finally:
            del self._waiting[number]

    def _send(self, message: dict[str, Any]) -> None:
        try:
            line = msgspec.json.encode(message)
        except UnicodeEncodeError:  # a lone surrogate: only JSON's escapes can carry it
            line = json.dumps(msgspec.to_builtins(message)).encode()
        self.stream.write(line)

    def _send_error(self, request_id: _Id, code: int, message: str) -> None:
        self._send({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}})

    # -- what we receive ---------------------------------------------------------------------------------------------

    def _receive(self, line: bytes | LineTooLong) -> None:
        if isinstance(line, LineTooLong):
            self._send_error(None, INVALID_REQUEST, f"The message has more than {MAX_LINE:,} bytes")
            return
        if not line.strip():
            return
        try:
            message = msgspec.json.decode(line, type=_Message)
        except msgspec.ValidationError as error:
            self._send_error(None, INVALID_REQUEST, f"Invalid message: {error}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._send_error(None, PARSE_ERROR, f"The line is not JSON: {error}")
        else:
            self._handle(message)

    def _handle(self, message: _Message) -> None:
        if message.method is UNSET:
            if message.result is UNSET and message.error is UNSET:
                request_id = None if message.id is UNSET else message.id
                self._send_error(request_id, INVALID_REQUEST, "The message is neither a request nor a response")
            else:
                self._take_answer(message)
        elif message.id is UNSET:
            self._take_notification(message.method, message.params)
        else:
            self._take_request(message.id, message.method, message.params)

    def _take_answer(self, message: _Message) -> None:
        answer = self._waiting.get(message.id) if isinstance(message.id, int) else None
        if answer is None or answer.done():
            return  # it was asked for by an earlier process, or is too late
        if isinstance(message.error, _ErrorObject):
            answer.set_exception(RpcError(message.error.code, message.error.message))
        else:
            answer.set_result(message.result if isinstance(message.result, Raw) else Raw(b"null"))

    def _take_notification(self, method: str, params: Raw) -> None:
        handler = self._notifications.get(method)
        if handler is None:
            return
        try:
            handler[1](decode(params, handler[0]))
        except RpcError as error:
            _log.warning("notification %s: %s", method, error)

    def _on_cancel(self, params: _CancelParams) -> None:
        request = self._open.get(params.request_id)
        if request is not None:
            request.stop("stop", _CANCEL)

    def _take_request(self, request_id: _Id, method: str, params: Raw) -> None:
        handler = self._requests.get(method)
        if handler is None:
            self._send_error(request_id, METHOD_NOT_FOUND, f"There is no method {method!r:.80}")
        elif request_id in self._open:
            self._send_error(request_id, INVALID_REQUEST, "A request with this id is open")
        elif len(self._open) >= _MAX_OPEN:
            self._send_error(request_id, INTERNAL_ERROR, f"{_MAX_OPEN} requests are open; wait for an answer")
        else:
            self._begin(request_id, handler, params)

    def _begin(self, request_id: _Id, handler: RequestHandler, params: Raw) -> None:
        """Begin a request. Its handler is called now, before the next message: that may cancel it."""
        request = IncomingRequest(CancellationToken(name="request"))
        try:
            work = handler[1](decode(params, handler[0]), request)
        except RpcError as error:
            self._send_error(request_id, error.code, error.message)
        else:
            self._open[request_id] = request
            task = asyncio.create_task(self._answer(request_id, work, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, request_id: _Id, work: Awaitable[object], request: IncomingRequest) -> None:
        """Finish a request and send its answer. A boundary: every error becomes an answer."""
        try:
            result = await work
        except RpcError as error:
            self._send_error(request_id, error.code, error.message)
        except Cancelled as stop:
            if not stop.belongs_to(request.token):
                raise
            self._send_error(request_id, REQUEST_CANCELLED, f"The request was cancelled: {stop.reason}")
        except HalterError as error:
            self._send_error(request_id, INTERNAL_ERROR, str(error))
        except Exception:  # noqa: BLE001
            _log.exception("a request failed")
            self._send_error(request_id, INTERNAL_ERROR, "Internal error; see the standard error of the program")
        else:
            self._send({"jsonrpc": "2.0", "id": request_id, "result": result})
        finally:
            del self._open[request_id]
