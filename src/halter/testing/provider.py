"""A model provider for tests: a real HTTP server that follows a script and records what its clients did.

It speaks OpenAI's chat completions and responses, Anthropic's messages and Gemini's own API, streaming and not, on a
free port of the loopback address, from a thread and an event loop of its own, so that tests of every kind can use it:

    with FakeProvider(answer("hello"), status(429), hang_mid_stream()) as provider:
        model = OpenAIModel("any", base_url=provider.openai_url, api_key="any")

What it records is what a server sees: when each request was complete, when the client ended the connection (noticed at
once, also while the script hangs), whether the reply had been sent to its end. Leaving the block ends everything,
waits for the thread, and raises what went wrong inside the script, if anything did.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import deque
from typing import TYPE_CHECKING, TypeAlias, cast

from halter.cancel.loop_bridge import run_in_thread
from halter.testing.encoders import stream_events, whole_answer, wire_of
from halter.testing.replies import ScriptedReply, answer
from halter.testing.server_record import SeenConnection, SeenRequest, ServerRecord

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from types import ModuleType, TracebackType
    from typing import Self

__all__ = ["FakeProvider"]

_TIMEOUT = 10.0  # seconds
_ACCEPT_TIMEOUT = 1.0  # for TLS with clients that have just connected
_OK = 200
_NOT_FOUND = 404


Scripted: TypeAlias = "ScriptedReply | Callable[[SeenRequest], ScriptedReply]"


class FakeProvider:
    """A provider that follows a script: one reply for each request, in order, and `default` after the last.

    `pages` are what it answers to GET, as JSON by path; these are not part of the script, and not among `requests`.
    """

    def __init__(
        self,
        *script: Scripted,
        default: Scripted | None = None,
        tls: ssl.SSLContext | None = None,
        pages: Mapping[str, object] | None = None,
    ) -> None:
        self.port = 0
        self._record = ServerRecord()
        self._connections: set[_Connection] = set()
        self._default = default if default is not None else answer("ok")
        self._script: deque[Scripted] = deque(script)
        self._tls = tls
        self._pages = dict(pages or {})
        self.pages_read: list[str] = []
        """The paths that were asked for by GET, in order."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Event

    @property
    def requests(self) -> list[SeenRequest]:
        """All requests, in the order in which they were complete."""
        return self._record.requests

    @property
    def connections(self) -> list[SeenConnection]:
        """All connections, in the order in which they were opened."""
        return self._record.connections

    @property
    def errors(self) -> list[BaseException]:
        """Errors in the script."""
        return self._record.errors

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        """The `base_url` for `OpenAIModel` and `OpenAIResponsesModel`."""
        return f"{self.url}/v1"

    @property
    def anthropic_url(self) -> str:
        """The `base_url` for `AnthropicModel`."""
        return self.url

    def script(self, *replies: Scripted) -> None:
        """Add replies to the script."""
        with self._record.changed:
            self._script.extend(replies)

    def start(self) -> Self:
        """Start serving."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="halter-fake-provider", daemon=True)
        self._thread.start()
        if not ready.wait(_TIMEOUT) or self.errors:
            raise RuntimeError("the fake provider did not start") from (self.errors[0] if self.errors else None)
        return self

    def close(self) -> None:
        """End all connections and the thread. Can be called again."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(self._end)
        thread.join(_TIMEOUT)
        self._loop = self._thread = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None and self.errors:
            raise self.errors[0]

    async def __aenter__(self) -> Self:
        return await run_in_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await run_in_thread(self.close)
        if error is None and self.errors:
            raise self.errors[0]

    def wait_for_request(self, n: int = 1, timeout: float = _TIMEOUT) -> SeenRequest:
        """Wait until `n` requests have come, and return the last of them. From async code: `await_request`."""
        self._record.wait(lambda: len(self.requests) >= n, f"request {n}", timeout)
        return self.requests[n - 1]

    def wait_for_close(self, n: int = 1, timeout: float = _TIMEOUT) -> float:
        """Wait until clients have ended `n` connections, and return the time of the last one."""
        self._record.wait(lambda: len(self.closes) >= n, f"close {n} by the client", timeout)
        return self.closes[n - 1]

    def wait_for_pieces(self, n: int, request: int = 1, timeout: float = _TIMEOUT) -> SeenRequest:
        """Wait until `n` chunks of content of the reply to that request have been sent."""
        self._record.wait(
            lambda: len(self.requests) >= request and self.requests[request - 1].pieces >= n, f"piece {n}", timeout
        )
        return self.requests[request - 1]

    def wait_for_finish(self, n: int = 1, timeout: float = _TIMEOUT) -> None:
        """Wait until `n` replies have been sent completely. A client may have its answer slightly before."""
        self._record.wait(
            lambda: sum(request.finished is not None for request in self.requests) >= n, f"whole reply {n}", timeout
        )

    async def await_request(self, n: int = 1, timeout: float = _TIMEOUT) -> SeenRequest:  # noqa: ASYNC109 - like the blocking version
        """Wait as `wait_for_request` does, without blocking the loop."""
        return await run_in_thread(lambda: self.wait_for_request(n, timeout))

    async def await_close(self, n: int = 1, timeout: float = _TIMEOUT) -> float:  # noqa: ASYNC109 - like the blocking version
        """Wait as `wait_for_close` does, without blocking the loop."""
        return await run_in_thread(lambda: self.wait_for_close(n, timeout))

    async def await_pieces(self, n: int, request: int = 1, timeout: float = _TIMEOUT) -> SeenRequest:  # noqa: ASYNC109
        """Wait as `wait_for_pieces` does, without blocking the loop."""
        return await run_in_thread(lambda: self.wait_for_pieces(n, request, timeout))

    async def await_finish(self, n: int = 1, timeout: float = _TIMEOUT) -> None:  # noqa: ASYNC109 - like the blocking version
        """Wait as `wait_for_finish` does, without blocking the loop."""
        await run_in_thread(lambda: self.wait_for_finish(n, timeout))

    @property
    def closes(self) -> list[float]:
        """When clients ended connections, in order."""
        with self._record.changed:
            return self._record.closes()

    def _next(self, request: SeenRequest) -> ScriptedReply:
        with self._record.changed:
            scripted = self._script.popleft() if self._script else self._default
        return scripted if isinstance(scripted, ScriptedReply) else scripted(request)

    def _page(self, path: str) -> bytes | None:
        self.pages_read.append(path)
        return json.dumps(self._pages[path]).encode() if path in self._pages else None

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as exc:  # noqa: BLE001 - a boundary: kept for the test
            self.errors.append(exc)
            ready.set()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        server = await self._loop.create_server(
            lambda: _Connection(self._record, self._connections, self._next, self._page),
            "127.0.0.1",
            0,
            ssl=self._tls,
            backlog=1024,
        )
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        try:
            await self._ended.wait()
        finally:
            await self._accept_no_more(server)
            server.close()
            tasks = self._replies()
            for connection in list(self._connections):
                connection.end()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Transports are closed in the next iteration of the loop.
            await asyncio.sleep(0)

    async def _accept_no_more(self, server: asyncio.Server) -> None:
        """Let connections that were just accepted get their transports: asyncio forgets them if it is closed first."""
        loop = asyncio.get_running_loop()
        try:
            for each in server.sockets:
                loop.remove_reader(each.fileno())
        except NotImplementedError:  # the loop of Windows
            return
        accepting = asyncio.all_tasks() - {asyncio.current_task()} - self._replies()
        if accepting:
            await asyncio.wait(accepting, timeout=_ACCEPT_TIMEOUT)

    def _replies(self) -> set[asyncio.Task[None]]:
        return {each.task for each in self._connections if each.task is not None}

    def _end(self) -> None:
        self._ended.set()


class _Connection(asyncio.Protocol):
    """One connection."""

    def __init__(
        self,
        record: ServerRecord,
        connections: set[_Connection],
        next_reply: Callable[[SeenRequest], ScriptedReply],
        page: Callable[[str], bytes | None],
    ) -> None:
        self._record = record
        self._connections = connections
        self._next_reply = next_reply
        self._page = page
        self.task: asyncio.Task[None] | None = None
        self._buffer = bytearray()
        self._transport: asyncio.Transport
        self._seen: SeenConnection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._seen = self._record.opened()
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not found or (self.task is not None and not self.task.done()):
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        if len(rest) < length:
            return
        self._buffer = bytearray(rest[length:])
        method, path = lines[0].split(" ")[:2]
        if method == "GET":
            body = self._page(path)
            kind = {"content-type": "application/json" if body is not None else "text/plain"}
            self._head(_OK if body is not None else _NOT_FOUND, kind, body or b"no such path here")
        else:
            self._request(path, headers, rest[:length])

    def eof_received(self) -> bool:
        self._record.closed(self._seen, "client")
        return False

    def connection_lost(self, _exc: Exception | None) -> None:
        self._record.closed(self._seen, "client")
        if self.task is not None:
            self.task.cancel()
        self._connections.discard(self)

    def end(self) -> None:
        """Close it from the server's side."""
        self._record.closed(self._seen, "server")
        if self.task is not None:
            self.task.cancel()
        self._transport.abort()

    def _request(self, path: str, headers: dict[str, str], body: bytes) -> None:
        try:
            data = json.loads(body or b"{}")
        except ValueError:
            data = {"unreadable": body.decode("utf-8", "replace")}
        request = self._record.received(self._seen, path, headers, data)
        self.task = asyncio.get_running_loop().create_task(self._reply(request))

    async def _reply(self, request: SeenRequest) -> None:
        """Play the script. A boundary: its error is kept for the test and sent to the client."""
        try:
            await self._play(request)
        except Exception as exc:  # noqa: BLE001 - raised when the provider is closed
            self._record.errors.append(exc)
            self._head(500, {"content-type": "text/plain"}, f"the script failed: {exc!r}".encode())

    async def _play(self, request: SeenRequest) -> None:
        wire = wire_of(request.path)
        reply = self._next_reply(request)
        if reply.delay:
            await asyncio.sleep(reply.delay)
        if reply.fault == "silent":
            await asyncio.Event().wait()
        if wire is None:
            self._head(_NOT_FOUND, {"content-type": "text/plain"}, b"no such path here")
        elif reply.body is not None:
            self._head(reply.status, {"content-type": "application/json", **reply.headers}, reply.body)
        elif reply.pieces is None and not request.is_streaming and not reply.fault:
            body = whole_answer(reply, wire, request.model)
            self._head(_OK, {"content-type": "application/json", **reply.headers}, body)
        else:
            await self._stream(reply, request, wire)
        self._record.finished(self._seen, request)

    async def _stream(self, reply: ScriptedReply, request: SeenRequest, wire: ModuleType) -> None:
        first, content, last = (
            (b"", reply.pieces, ()) if reply.pieces is not None else stream_events(reply, wire, request.model)
        )
        self._head(reply.status, {"content-type": "text/event-stream", **reply.headers}, None)
        self._chunk(first)
        for number, piece in enumerate(content):
            if reply.fault and number >= reply.after:
                break
            if number and reply.interval:
                await asyncio.sleep(reply.interval)
            self._chunk(piece)
            self._record.sent_piece(request)
            # Sends each chunk separately, and lets the loop notice a client that has gone.
            await asyncio.sleep(0)
        if reply.fault == "drop":
            self._record.closed(self._seen, "server")
            self._transport.close()
            await asyncio.Event().wait()
        if reply.fault == "hang":
            await asyncio.Event().wait()
        # In one write: clients wait only briefly for the end of the body once they have the end of the answer.
        self._transport.write(b"".join(_chunked(piece) for piece in last if piece) + b"0\r\n\r\n")

    def _head(self, status: int, headers: dict[str, str], body: bytes | None) -> None:
        framing = {"transfer-encoding": "chunked"} if body is None else {"content-length": str(len(body))}
        lines = [f"HTTP/1.1 {status} Scripted", *(f"{key}: {value}" for key, value in (headers | framing).items())]
        self._transport.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))

    def _chunk(self, data: bytes) -> None:
        if data:
            self._transport.write(_chunked(data))


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
