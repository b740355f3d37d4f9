"""What the HTTP providers have in common: one request, one stream of events, one end.

A wire says how a request is written and gives a `Reader` for the answer; everything else is here once. Streaming or
not, the events are the same. However the stream is left, its connection is closed before control is back, unless the
answer was read to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from halter.models.errors import UNREADABLE, ProviderError, StreamBroken, provider_error
from halter.models.sse import MAX_EVENT_BYTES, ServerSentEvents
from halter.models.transport import Reply, post

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import AsyncGenerator, Mapping

    from halter.models.model import ModelEvent, ModelRequest

__all__ = ["HTTPModel", "Reader"]

_FIRST_FAILURE = 300
_WHOLE = frozenset({"application/json", "text/html"})
_ERROR_BYTES = 64 * 1024
_ERROR_WAIT = 2.0
_SECRET_HEADERS = frozenset({"authorization", "x-api-key", "api-key", "proxy-authorization"})
_SHORTEST_SECRET = 6


class Reader(Protocol):
    """Turns one answer into events.

    Raises one of `UNREADABLE` for what it can not read, and a bare `ProviderError` with the provider's words as its
    body for an error that it met; the wire makes the whole error of it.
    """

    finished: bool
    """Whether the provider has said that the answer is whole."""

    def take(self, name: str, data: bytes) -> list[ModelEvent]:
        """Read one event of a stream."""
        ...

    def whole(self, body: bytes) -> list[ModelEvent]:
        """Read an answer that came in one piece."""
        ...

    def end(self) -> list[ModelEvent]:
        """Give the last events, now that nothing follows. Raises `StreamBroken` if the answer is not whole."""
        ...


class HTTPModel(ABC):
    """A model behind HTTP.

    `max_retries`, `stale_timeout` and `first_byte_timeout` (seconds) are what the layer above shall do with this model;
    nothing here retries or times. For `stale_timeout` any byte counts, pings and comments too. `ssl` is an SSL context,
    or False to trust any certificate.
    """

    key_variable: str
    url_variable: str
    default_url: str

    def __init__(  # noqa: PLR0913 - each is the user's to set, and all but the name have a default
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        max_retries: int = 2,
        stale_timeout: float = 180.0,
        first_byte_timeout: float = 300.0,
        stream: bool = True,
        headers: Mapping[str, str] | None = None,
        ssl: tls.SSLContext | bool = True,
    ) -> None:
        self.name = name
        self.base_url = (base_url or os.environ.get(self.url_variable) or self.default_url).rstrip("/")
        self.max_retries = max_retries
        self.stale_timeout = stale_timeout
        self.first_byte_timeout = first_byte_timeout
        self.streaming = stream
        self._api_key = os.environ.get(self.key_variable, "") if api_key is None else api_key
        self._extra_headers = dict(headers or {})
        self._ssl = ssl

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self.base_url!r})"

    @abstractmethod
    def body(self, request: ModelRequest) -> dict[str, Any]:
        """Write `request` as the provider's JSON."""

    @abstractmethod
    def url(self) -> str:
        """Where requests go."""

    @abstractmethod
    def auth_headers(self) -> dict[str, str]:
        """Say who asks."""

    @abstractmethod
    def reader(self) -> Reader:
        """Make a reader for one answer."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer `request`, event by event."""
        body = {key: value for key, value in (self.body(request) | request.extra).items() if value is not None}
        reply = await post(self.url(), headers=self._headers(), body=msgspec.json.encode(body), tls=self._ssl)
        try:
            if reply.status >= _FIRST_FAILURE:
                raise await self._refused(reply)
            reader = self.reader()
            if not self._is_stream(reply):
                for event in await self._whole(reply, reader):
                    yield event
                return
            decoder = ServerSentEvents()
            while not reader.finished and (chunk := await reply.read()):
                for name, data in decoder.feed(chunk):
                    for event in self._take(reader, name, data):
                        yield event
                    if reader.finished:
                        break
            for event in reader.end():
                yield event
            await reply.finish()
        finally:
            reply.close()

    def _is_stream(self, reply: Reply) -> bool:
        """Tell a stream from a whole answer: by its type, or, if that says nothing, by what was asked for."""
        if reply.content_type == "text/event-stream":
            return True
        return self.streaming and reply.content_type not in _WHOLE

    def _take(self, reader: Reader, name: str, data: bytes) -> list[ModelEvent]:
        try:
            return reader.take(name, data)
        except UNREADABLE as exc:
            message = f"the provider sent an event that can not be read: {self._scrub(data)[:200]!r}"
            raise StreamBroken(message) from exc
        except ProviderError as exc:
            # The words are the provider's, and a provider may repeat the key that it was given.
            raise provider_error(exc.body.encode(), status=exc.status, secrets=self._secrets()) from None

    async def _whole(self, reply: Reply, reader: Reader) -> list[ModelEvent]:
        body = await reply.read_all(MAX_EVENT_BYTES)
        try:
            return [*reader.whole(body), *reader.end()]
        except UNREADABLE as exc:
            message = f"the provider sent an answer that can not be read: {self._scrub(body)[:200]!r}"
            raise StreamBroken(message) from exc
        except ProviderError as exc:
            raise provider_error(
                exc.body.encode(), status=exc.status, headers=reply.headers, secrets=self._secrets()
            ) from None

    async def _refused(self, reply: Reply) -> ProviderError:
        body = b""
        # The status is enough to know. The words are worth a moment, not a wait that a server could draw out.
        with contextlib.suppress(StreamBroken, TimeoutError):
            async with asyncio.timeout(_ERROR_WAIT):
                body = await reply.read_all(_ERROR_BYTES)
        return provider_error(body, status=reply.status, headers=reply.headers, secrets=self._secrets())

    def _headers(self) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if self.streaming else "application/json",
            # A compressed stream waits in the compressor until a block is full.
            "accept-encoding": "identity",
            "user-agent": "halter",
            **self.auth_headers(),
        }
        for key, value in self._extra_headers.items():
            headers[key.lower()] = value
        return headers

    def _secrets(self) -> list[str]:
        secrets = [self._api_key]
        for key, value in self._extra_headers.items():
            if key.lower() in _SECRET_HEADERS:
                secrets += [value, value.rpartition(" ")[2]]
        # A key of a letter or two is a placeholder, and would black out half of the message.
        return [secret for secret in secrets if len(secret) >= _SHORTEST_SECRET]

    def _scrub(self, data: bytes) -> str:
        text = data.decode("utf-8", "replace")
        for secret in self._secrets():
            text = text.replace(secret, "[key]")
        return text
