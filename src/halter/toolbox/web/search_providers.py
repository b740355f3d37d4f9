"""Providers of web search: SearXNG, Brave, Tavily, or `ddgs`, which needs neither a server nor a key.

A provider returns one page of results at a time, so that a search that is stopped after two pages has two. Requests
go through `http.fetch`, whose rules are opened for the provider's own host only. `ddgs` brings its own client and
thread pool, which a stop does not reach; it runs in a worker process that is killed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlencode, urlsplit

import msgspec
from msgspec import Struct

from halter._extras import need
from halter._own_keys import read_key
from halter.cancel.isolation.api import run_isolated_async
from halter.toolbox.http.addresses import server_of
from halter.toolbox.http.fetch import Net

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Brave", "Ddgs", "Result", "SearXNG", "SearchError", "SearchProvider", "Tavily", "provider_named"]

_PER_PAGE: Final = 10  # results
_MAX_BYTES: Final = 4_000_000  # of an answer
_FORBIDDEN: Final = 403


class SearchError(Exception):
    """A search failed; the text is for the model."""


class Result(Struct, frozen=True):
    """One thing that was found."""

    title: str
    url: str
    text: str = ""


class SearchProvider(Protocol):
    """Anything that can search."""

    name: str
    max_pages: int

    async def page(self, query: str, number: int) -> list[Result]:
        """One page of results, counted from 1; an empty list if there are no more."""
        ...


class _Api:
    """A provider behind HTTP and JSON."""

    name: str
    max_pages = 10

    def __init__(self, base_url: str, *, timeout: float) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(
                f"{self.name} needs the URL of its server, such as https://search.example, not {base_url!r}"
            )
        self._base = base_url.rstrip("/")
        # The developer named this host, so it may be a private one; where it redirects to may not.
        self._net = Net(allow=[server_of(base_url)], max_bytes=_MAX_BYTES, timeout=timeout)

    async def _request(
        self, path: str, *, headers: Mapping[str, str] | None = None, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        sent = None if body is None else msgspec.json.encode(body)
        got = await self._net.fetch(
            self._base + path,
            method="GET" if sent is None else "POST",
            headers={"accept": "application/json", "content-type": "application/json", **(headers or {})},
            body=sent,
        )
        if not got.is_ok:
            raise SearchError(self._error_text(got.status, got.text()))
        try:
            return msgspec.json.decode(got.body, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise SearchError(f"{self.name} did not answer with a JSON object: {error}") from error

    def _error_text(self, status: int, text: str) -> str:
        return f"{self.name} answered with status {status}: {' '.join(text.split())[:300]}"


class SearXNG(_Api):
    """A SearXNG server. Its settings must list `json` under `search.formats`."""

    name = "SearXNG"

    def __init__(self, base_url: str | None = None, *, timeout: float = 15.0) -> None:
        super().__init__(base_url or os.environ.get("SEARXNG_URL", ""), timeout=timeout)

    async def page(self, query: str, number: int) -> list[Result]:
        """One page of results."""
        parameters = urlencode({"q": query, "format": "json", "pageno": number})
        return _results((await self._request(f"/search?{parameters}")).get("results"), "content")

    def _error_text(self, status: int, text: str) -> str:
        if status == _FORBIDDEN:
            return "SearXNG refused (403): its settings.yml has to list json under search.formats"
        return super()._error_text(status, text)


class Brave(_Api):
    """The Brave search API. Its key comes from BRAVE_API_KEY."""

    name = "Brave"

    def __init__(
        self, api_key: str | None = None, *, base_url: str = "https://api.search.brave.com", timeout: float = 15.0
    ) -> None:
        super().__init__(base_url, timeout=timeout)
        self._key = _key(self.name, api_key, "BRAVE_API_KEY")

    async def page(self, query: str, number: int) -> list[Result]:
        """One page of results."""
        parameters = urlencode({"q": query, "count": _PER_PAGE, "offset": number - 1})
        found = await self._request(f"/res/v1/web/search?{parameters}", headers={"x-subscription-token": self._key})
        web = found.get("web")
        return _results(web.get("results") if isinstance(web, dict) else None, "description")


class Tavily(_Api):
    """The Tavily search API, which has one page only. Its key comes from TAVILY_API_KEY."""

    name = "Tavily"
    max_pages = 1

    def __init__(
        self, api_key: str | None = None, *, base_url: str = "https://api.tavily.com", timeout: float = 30.0
    ) -> None:
        super().__init__(base_url, timeout=timeout)
        self._key = _key(self.name, api_key, "TAVILY_API_KEY")

    async def page(self, query: str, number: int) -> list[Result]:
        """The page of results."""
        if number > 1:
            return []
        body = {"query": query, "max_results": 2 * _PER_PAGE}
        found = await self._request("/search", headers={"authorization": f"Bearer {self._key}"}, body=body)
        return _results(found.get("results"), "content")


class Ddgs:
    """Several public search engines by way of the `ddgs` package. They limit how often one may ask."""

    name = "ddgs"
    max_pages = 10

    def __init__(
        self, *, backend: str = "auto", proxy: str | None = None, timeout: int = 10, verify: bool | str = True
    ) -> None:
        self._options = {"proxy": proxy, "timeout": timeout, "verify": verify}
        self._backend = backend

    async def page(self, query: str, number: int) -> list[Result]:
        """One page of results."""
        need("web", "ddgs")
        return await run_isolated_async(_ask_ddgs, query, number, self._backend, self._options)


def _ask_ddgs(query: str, number: int, backend: str, options: dict[str, Any]) -> list[Result]:
    """Search. Runs in a worker process; a boundary: its errors exist only there, so they are raised as ours."""
    from ddgs import DDGS

    try:
        found = DDGS(**options).text(query, page=number, max_results=_PER_PAGE, backend=backend)
    except Exception as error:  # noqa: BLE001
        if "no results found" in str(error).lower():
            return []
        raise SearchError(f"ddgs found nothing: {type(error).__name__}: {error}") from None
    return [Result(str(each.get("title", "")), str(each.get("href", "")), str(each.get("body", ""))) for each in found]


def provider_named(name: str | None) -> SearchProvider:
    """Make the provider of that name; without one, that for which the environment has a URL or a key, else ddgs."""
    if name is None:
        known = {"searxng": "SEARXNG_URL", "brave": "BRAVE_API_KEY", "tavily": "TAVILY_API_KEY"}
        name = next((each for each, variable in known.items() if read_key(variable)), "ddgs")
    makers: dict[str, Callable[[], SearchProvider]] = {
        "searxng": SearXNG,
        "brave": Brave,
        "tavily": Tavily,
        "ddgs": Ddgs,
    }
    if name.lower() not in makers:
        raise ValueError(f"{name!r} is not a search provider; available: {', '.join(makers)}")
    return makers[name.lower()]()


def _key(name: str, given: str | None, variable: str) -> str:
    key = given or read_key(variable)
    if not key:
        raise ValueError(f"{name} needs an API key: pass api_key, or set {variable}")
    return key


def _results(found: object, text_key: str) -> list[Result]:
    """The results of an answer; entries without a URL are left out."""
    if not isinstance(found, list):
        return []
    rows = [each for each in found if isinstance(each, dict) and each.get("url")]
    return [Result(str(row.get("title") or ""), str(row["url"]), str(row.get(text_key) or "")) for row in rows]
