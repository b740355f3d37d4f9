"""Fetching for tools: from the public web, within limits, and not from the network that we are in.

A model chooses the URL, or a page that it was sent to does. So for each request, and again for each redirect:

- The scheme is http or https, the port is one of the web's, and credentials in the URL are taken out.
- The name is looked up once, and *every* address that it has must be allowed (see `addresses`). The connection goes to
  an address that was checked: what is connected to is compared with that list again, at the socket. A name server that
  answers differently a moment later changes nothing.
- The size is counted as it arrives, packed and unpacked, and reading ends at the limit. The type is checked
  before the body is read.
- There are no cookies, and no proxy, except with `use_proxy=True`. A proxy looks names up and connects by
  itself: **with one, only addresses that are written out in the URL are checked**, and the rest is up to the proxy.

A stop, or any other end, aborts the connection at once; nothing is flushed or waited for. Only a name lookup cannot be
cancelled: its daemon thread is left to the system, which gives up after some seconds.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import socket
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.request import getproxies_environment, proxy_bypass

from halter.cancel.deadlines import check_seconds
from halter.cancel.loop_bridge import run_in_thread
from halter.toolbox.http.addresses import Address, Rules, literal, normal_host

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Collection, Iterable, Mapping
    from types import ModuleType

    from yarl import URL

__all__ = ["FetchError", "Fetched", "Net", "Refused", "TooLarge", "WrongType"]

_CONNECTION_MODULE: Final = "halter.toolbox.http.connection"
_MAX_URL: Final = 8_192  # characters
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_KEEPS_BODY: Final = frozenset({307, 308})
_FIRST_ERROR: Final = 300
# Codecs of Python that are no charsets of pages: the first takes quadratic time, the others raise errors.
_NO_CHARSETS: Final = frozenset({"punycode", "idna", "undefined"})
_EXCERPT: Final = 4_096  # bytes of the body of an error
_USER_AGENT: Final = "Mozilla/5.0 (compatible; Halter)"


class FetchError(Exception):
    """A fetch failed; the message tells the model why."""


class Refused(FetchError):
    """The rules do not allow this request or redirect."""


class WrongType(Refused):
    """The answer has another media type than requested."""

    def __init__(self, message: str, media_type: str) -> None:
        super().__init__(message)
        self.media_type = media_type


class TooLarge(FetchError):
    """The answer is larger than the limit."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a request."""

    url: str
    """The final address, after redirects."""
    status: int
    media_type: str
    body: bytes
    charset: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    hops: tuple[str, ...] = ()
    """The addresses that led there; the requested one is the first."""

    @property
    def is_ok(self) -> bool:
        return self.status < _FIRST_ERROR

    def text(self) -> str:
        """The body as text; invalid bytes are replaced."""
        try:
            if codecs.lookup(self.charset or "utf-8").name not in _NO_CHARSETS:
                return self.body.decode(self.charset or "utf-8", "replace")
        except (LookupError, ValueError):  # an unknown charset
            pass
        return self.body.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _FetchRequest:
    """One request, which redirects may change."""

    method: str
    headers: dict[str, str]
    body: bytes | None
    types: tuple[str, ...]
    max_bytes: int
    on_bytes: Callable[[int], object] | None


class Net:
    """How tools reach the web. One may be shared by any number of calls; it keeps no connection and no state.

    *lookup* finds the addresses of a host, blocking; without it the system does. *tls* is for servers with
    a certificate of one's own.
    """

    def __init__(  # noqa: PLR0913  (each is a limit of its own)
        self,
        *,
        allow_private: bool = False,
        allow: Iterable[str] = (),
        ports: Collection[int] | None = None,
        max_bytes: int = 5_000_000,
        max_redirects: int = 5,
        timeout: float = 30.0,
        connect_timeout: float = 10.0,
        use_proxy: bool = False,
        user_agent: str = _USER_AGENT,
        lookup: Callable[[str, int], Iterable[str]] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.rules = Rules(allow_private=allow_private, allow=allow, ports=ports)
        self.max_bytes = max_bytes
        self.max_redirects = max_redirects
        self.timeout = check_seconds("timeout", timeout)
        self.connect_timeout = check_seconds("connect_timeout", connect_timeout)
        self.use_proxy = use_proxy
        self.user_agent = user_agent
        self._lookup = _system_lookup if lookup is None else lookup
        self._tls = tls

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        types: Iterable[str] = (),
        max_bytes: int | None = None,
        on_bytes: Callable[[int], object] | None = None,
    ) -> Fetched:
        """Fetch *url*, whatever the status of the answer is.

        *types* are the accepted media types (`"text/html"`, `"image/*"`; none: any); they do not apply to errors, of
        which only an excerpt is read. *on_bytes* is called with the number of bytes so far.
        """
        request = _FetchRequest(
            method,
            {key.lower(): value for key, value in (headers or {}).items()},
            body,
            tuple(types),
            self.max_bytes if max_bytes is None else max_bytes,
            on_bytes,
        )
        await _load()
        try:
            async with asyncio.timeout(self.timeout):
                return await self._follow(_parse(url), request)
        except TimeoutError:
            raise FetchError(f"{_display_url(url)} took longer than {self.timeout:g} s") from None

    async def _follow(self, url: URL, request: _FetchRequest) -> Fetched:
        hops: list[str] = []
        while True:
            addresses, proxy = await self._check(url)
            hops.append(str(url))
            async with contextlib.AsyncExitStack() as stack:
                answer = await stack.enter_async_context(
                    _connection().opened(
                        url,
                        addresses,
                        method=request.method,
                        headers={"user-agent": self.user_agent, **request.headers},
                        body=request.body,
                        connect_timeout=self.connect_timeout,
                        tls=self._tls,
                        proxy=proxy,
                    )
                )
                target = answer.headers.get("location", "")
                if answer.status not in _REDIRECTS or not target:
                    return await _read(url, answer, request, tuple(hops))
            if len(hops) > self.max_redirects:
                raise Refused(
                    f"{hops[0]} was redirected more than {self.max_redirects} times, last to {_display_url(target)}"
                )
            url, request = _next(url, target, answer.status, request)

    async def _check(self, url: URL) -> tuple[frozenset[str] | None, str | None]:
        """The addresses that may be connected to for this URL, or the proxy. Raises Refused."""
        host, port = url.raw_host or "", url.port or 0
        why = self.rules.refuses_port(host, port)
        if why is not None:
            raise Refused(f"{url} is refused: {why}")
        proxy = _proxy_for(url) if self.use_proxy else None
        written = _literal(host)
        if written is None and proxy is not None:
            return None, proxy  # the proxy looks the name up, so its addresses cannot be checked here
        addresses = [written] if written is not None else await self._find(host, port)
        if not self.rules.names(host, port):
            for address in addresses:
                why = self.rules.refuses(address)
                if why is not None:
                    raise Refused(f"{url} is refused: {address} is {why}")
        return (None if proxy is not None else frozenset(str(each) for each in addresses)), proxy

    async def _find(self, host: str, port: int) -> list[Address]:
        try:
            found = await run_in_thread(lambda: list(self._lookup(host, port)))
        except (OSError, UnicodeError) as error:
            raise FetchError(f"the name {host} could not be looked up: {error}") from error
        addresses = [each for each in (_literal(text) for text in found) if each is not None]
        if not addresses:
            raise FetchError(f"the name {host} has no address")
        return addresses


async def _read(url: URL, answer: Any, request: _FetchRequest, hops: tuple[str, ...]) -> Fetched:
    media_type = (answer.content_type or "").lower()
    is_ok = answer.status < _FIRST_ERROR
    if is_ok and request.types and not any(_is_of(media_type, each) for each in request.types):
        raise WrongType(f"{url} is {media_type or 'of unknown type'}; expected {', '.join(request.types)}", media_type)
    body = await _connection().body_of(
        answer, request.max_bytes, is_ok=is_ok, excerpt=_EXCERPT, on_bytes=request.on_bytes
    )
    return Fetched(str(url), answer.status, media_type, body, answer.charset or "", dict(answer.headers), hops)


def _is_of(media_type: str, pattern: str) -> bool:
    return media_type.startswith(pattern[:-1]) if pattern.endswith("/*") else media_type == pattern


def _next(url: URL, target: str, status: int, request: _FetchRequest) -> tuple[URL, _FetchRequest]:
    """Follow a redirect. Headers, which may contain a key, are not sent to another origin."""
    from yarl import URL

    try:
        joined = str(url.join(URL(target)))
    except ValueError as error:
        raise Refused(f"{url} redirects to an invalid address: {_display_url(target)}") from error
    following = _parse(joined)
    keeps_body = status in _KEEPS_BODY or request.method in {"GET", "HEAD"}
    is_same = following.origin() == url.origin()
    if request.body is not None and keeps_body and not is_same:
        raise Refused(f"{url} redirects the request body to {following.origin()}, which is not allowed")
    return following, _FetchRequest(
        request.method if keeps_body else "GET",
        request.headers if is_same else {},
        request.body if keeps_body else None,
        request.types,
        request.max_bytes,
        request.on_bytes,
    )


def _parse(text: str) -> URL:
    """Read a URL, without its credentials and its fragment. Raises Refused."""
    from yarl import URL

    text = text.strip()
    if len(text) > _MAX_URL:
        raise Refused(f"a URL has at most {_MAX_URL:,} characters; this one has {len(text):,}")
    if any(character <= " " or character in "\\\x7f" for character in text):
        raise Refused(f"{_display_url(text)} is not a URL: it contains spaces, control characters or backslashes")
    try:
        url = URL(text)
        port = url.port
    except ValueError as error:
        raise Refused(f"{_display_url(text)} is not a URL: {error}") from error
    if url.scheme not in {"http", "https"} or not url.raw_host:
        raise Refused(f"{_display_url(text)} is refused: only http:// and https:// URLs with a host can be fetched")
    _literal(url.raw_host)
    if not port:
        raise Refused(f"{_display_url(text)} is refused: port 0 is not a port")
    # An address is written in its one plain form from here on: no parser below can read it as another.
    written = _literal(url.raw_host)
    if written is not None:
        url = url.with_host(str(written))
    return url.with_user(None).with_fragment(None)


def _literal(host: str) -> Address | None:
    try:
        return literal(host)
    except ValueError as error:
        raise Refused(f"the host {host!r} is refused: {error}") from error


def _proxy_for(url: URL) -> str | None:
    """Find the proxy that the environment names. The user has asked for it."""
    host = normal_host(url.raw_host or "")
    if proxy_bypass(host):
        return None
    proxies = getproxies_environment()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy and not proxy.startswith(("http://", "https://")):
        raise FetchError("the proxy in the environment is neither http nor https, and cannot be used")
    return proxy or None


def _system_lookup(host: str, port: int) -> list[str]:
    return [str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def _display_url(url: str) -> str:
    """A URL for messages: not longer than a line, and without a password."""
    head, found, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    text = f"{head}://{host.rpartition('@')[2]}{slash}{path}" if found else url.rpartition("@")[2]
    return repr(text[:200])


async def _load() -> None:
    """Import the part that uses aiohttp, off the event loop: the first time takes a few tenths of a second."""
    if not getattr(sys.modules.get(_CONNECTION_MODULE), "IS_WHOLE", False):
        await run_in_thread(_import_connection)


def _import_connection() -> None:
    import halter.toolbox.http.connection  # noqa: F401


def _connection() -> ModuleType:
    return sys.modules[_CONNECTION_MODULE]
