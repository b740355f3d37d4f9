"""The base class of models behind HTTP: one request, one stream of events.

A subclass writes the request body and provides a `Reader` for the answer. The events are the same with and without
streaming. However the stream is left, its connection is closed before control returns, unless the answer was read to
its end.

This is our own code, and not the vendors' SDKs, because a stop has to abort one connection at once, because retries are
decided in one place above, and because a streamed chunk costs an SDK over ten times the CPU (`bench/stream.py`).
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec

from halter.models.errors import (
    UNREADABLE,
    ConnectionFailed,
    ModelError,
    ProviderError,
    StreamBroken,
    provider_error,
    readable,
)
from halter.models.http.client import Reply, post
from halter.models.http.sse import MAX_EVENT_BYTES, ServerSentEvents
from halter.models.providers import find_provider

if TYPE_CHECKING:
    import ssl as tls
    from collections.abc import AsyncGenerator, Callable, Mapping

    from halter.models.http.reader import Reader
    from halter.models.types import ModelEvent, ModelRequest

__all__ = ["FIRST_FAILURE", "HTTPModel", "read_refusal"]

FIRST_FAILURE = 300  # the lowest status that is no success
_NOT_A_STREAM = frozenset({"application/json", "text/html"})
_ERROR_BYTES = 64 * 1024
_ERROR_WAIT = 2.0  # seconds for the text of an error
_BAD_REQUEST = frozenset({400, 422})
# The escape of a whole surrogate pair, as the second group, or of half of one. An even number of backslashes before it
# stands for themselves.
_HALF = re.compile(
    rb"(?<!\\)((?:\\\\)*)"
    rb"(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_SECRET_HEADERS = frozenset({"authorization", "x-api-key", "x-goog-api-key", "api-key", "proxy-authorization"})


class HTTPModel(ABC):
    """A model behind HTTP.

    `max_retries`, `stale_timeout` and `first_byte_timeout` (seconds) are for `ModelCall`; nothing here retries or times
    out. For `stale_timeout` any byte counts, also pings and comments. `ssl` is an SSL context, or False to accept any
    certificate. Without `base_url` and `api_key`, those of `provider` are used: a name in `PROVIDERS`. A key that is
    missing is an error before any request, except for another address than the provider's own: that may need none.
    `context_window` is how many tokens fit into the model's context, where that is not known otherwise.
    """

    default_provider: str
    output_key = ""
    """The part of the request body that has the schema of a typed answer."""

    def __init__(  # noqa: PLR0913 - all but the name have a default
        self,
        name: str,
        *,
        provider: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        max_retries: int = 2,
        stale_timeout: float = 180.0,
        first_byte_timeout: float = 300.0,
        stream: bool = True,
        headers: Mapping[str, str] | None = None,
        ssl: tls.SSLContext | bool = True,
        context_window: int | None = None,
    ) -> None:
        self.name = name
        self.provider = find_provider(provider or self.default_provider)
        self.base_url = (base_url or self.provider.find_url()).rstrip("/")
        self.context_window = context_window
        self.max_retries = max_retries
        self.stale_timeout = stale_timeout
        self.first_byte_timeout = first_byte_timeout
        self.streaming = stream
        self._api_key = self.provider.find_key() if api_key is None else api_key
        is_usual = self.base_url == self.provider.url or not self.provider.url
        self._needs_key = api_key is None and is_usual and not self.provider.start
        self._extra_headers = dict(headers or {})
        self._ssl = ssl

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, base_url={self.base_url!r})"

    @abstractmethod
    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The request body, for JSON."""

    def with_extra(self, body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
        """The body with the user's own keys; None removes one."""
        return {key: value for key, value in (body | dict(extra)).items() if value is not None}

    def has_output_key(self, body: dict[str, Any]) -> bool:
        """Whether a body has the schema of a typed answer, or what the user has set instead."""
        return self.output_key in body

    @property
    def without_output_key(self) -> dict[str, Any]:
        """The user's own keys by which the schema of a typed answer is only described."""
        return {self.output_key: None}

    @abstractmethod
    def url(self) -> str:
        """The URL for requests."""

    def auth_headers(self) -> dict[str, str]:
        """The header with the key; private servers often need none."""
        if not self._api_key:
            return {}
        header = self.provider.key_header
        return {header: f"Bearer {self._api_key}" if header == "authorization" else self._api_key}

    @abstractmethod
    def reader(self) -> Reader:
        """Make a reader for one answer."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Answer `request`, event by event."""
        body = self.with_extra(self.body(request), request.settings.extra)
        reply = await self._post(msgspec.json.encode(body))
        try:
            if reply.status >= FIRST_FAILURE:
                raise self._with_advice(await read_refusal(reply, self._secrets()), request, body)
            reader = self.reader()
            if not self._is_stream(reply):
                for event in await self._read_complete(reply, reader):
                    yield event
                return
            decoder = ServerSentEvents()
            while not reader.finished and (chunk := await _read(reply, reader)):
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

    async def _post(self, body: bytes) -> Reply:
        """Send a request. Raises before that if the address or the key is missing."""
        provider = self.provider
        if not self.base_url:
            raise ModelError(f"{provider.url_variable} is not set: it is the address of {provider.title}")
        if self._needs_key and not self._api_key:
            raise ModelError(f"{provider.key_variable} is not set: it holds the key for {provider.title}")
        try:
            return await post(self.url(), headers=self._headers(), body=body, tls=self._ssl)
        except ConnectionFailed as exc:
            if not provider.start:
                raise
            raise ConnectionFailed(
                f"{provider.title} does not answer at {self.base_url}: {provider.start}", retryable=exc.retryable
            ) from exc

    def _with_advice(self, error: ProviderError, request: ModelRequest, body: dict[str, Any]) -> ProviderError:
        """Add what to do about a server that does not accept the schema of a typed answer."""
        key = self.output_key
        is_about_it = any(word in error.body for word in (key, "schema", "response mime type"))
        if request.output is not None and self.has_output_key(body) and error.status in _BAD_REQUEST and is_about_it:
            error.message += (
                f". If this server or model does not support {key}, pass ModelSettings(extra={self.without_output_key})"
                ": the schema is then part of the instructions, and answers are checked as before"
            )
        return error

    def _is_stream(self, reply: Reply) -> bool:
        """Whether the answer is a stream: by its content type, or else by what was asked for."""
        if reply.content_type == "text/event-stream":
            return True
        return self.streaming and reply.content_type not in _NOT_A_STREAM

    def _take(self, reader: Reader, name: str, data: bytes) -> list[ModelEvent]:
        try:
            return reader.take(name, data)
        except UNREADABLE:
            return self._decode(lambda whole: reader.take(name, whole), _with_whole_characters(data), "event")
        except ProviderError as exc:
            raise self._full_error(exc) from None

    async def _read_complete(self, reply: Reply, reader: Reader) -> list[ModelEvent]:
        body = _with_whole_characters(await reply.read_all(MAX_EVENT_BYTES))
        return [*self._decode(reader.read_complete, body, "answer", reply.headers), *reader.end()]

    def _decode(
        self,
        decode: Callable[[bytes], list[ModelEvent]],
        data: bytes,
        name: str,
        headers: Mapping[str, str] | None = None,
    ) -> list[ModelEvent]:
        """The events of *data*; what cannot be read, and an error in it, are our errors."""
        try:
            return decode(data)
        except UNREADABLE as exc:
            text = readable(data, self._secrets())[:200]
            raise StreamBroken(f"the provider sent an {name} that cannot be read: {text!r}") from exc
        except ProviderError as exc:
            raise self._full_error(exc, headers) from None

    def _full_error(self, error: ProviderError, headers: Mapping[str, str] | None = None) -> ProviderError:
        return provider_error(error.body.encode(), status=error.status, headers=headers, secrets=self._secrets())

    def _headers(self) -> dict[str, str]:
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream" if self.streaming else "application/json",
            # A compressor would hold a stream back until a block is full.
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
        return secrets


async def _read(reply: Reply, reader: Reader) -> bytes:
    """The next bytes; empty at the end, also if the connection was lost after the end of the answer."""
    try:
        return await reply.read()
    except StreamBroken:
        if reader.has_ended:
            return b""
        raise


def _with_whole_characters(data: bytes) -> bytes:
    """The same JSON with U+FFFD for each half of a surrogate pair: some servers cut a character in two."""
    return _HALF.sub(lambda found: found[1] + (found[2] or rb"\ufffd"), data) if b"\\u" in data else data


async def read_refusal(reply: Reply, secrets: list[str]) -> ProviderError:
    """The error that an answer with a bad status stands for.

    The status is enough to know that it is one. Its text is worth a short wait, and not one that a server could extend.
    """
    import asyncio  # loaded by now, and half of what `from halter import Agent` would cost

    body = b""
    with contextlib.suppress(StreamBroken, TimeoutError):
        async with asyncio.timeout(_ERROR_WAIT):
            body = await reply.read_all(_ERROR_BYTES)
    return provider_error(body, status=reply.status, headers=reply.headers, secrets=secrets)
