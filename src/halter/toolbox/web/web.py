"""Searching the web and reading pages.

    agent = Agent(model, Web().tools)
    agent = Agent(model, Web(SearXNG("http://search.lan:8080")).tools)

A stop returns what there is: of a search the results so far, of several URLs the finished pages and the names of the
others. Connections are closed and worker processes are killed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from halter._extras import need
from halter.cancel.context import current_token
from halter.cancel.isolation.api import run_isolated_async
from halter.cancel.token import Cancelled
from halter.toolbox.http.fetch import Fetched, FetchError, Net, WrongType
from halter.toolbox.web.page_text import HTML, PLAIN, page_of
from halter.toolbox.web.search_providers import SearchError, SearchProvider, provider_named
from halter.tools.content import bound
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from halter.toolbox.web.search_providers import Result

__all__ = ["Web"]

_MAX_PAGES: Final = 10
_MAX_READERS: Final = 2  # each is a process that parses
_READING_TIMEOUT: Final = 30.0  # seconds
_MAX_EXCERPT: Final = 500  # characters of one result
_ACCEPT: Final = "text/html, application/xhtml+xml, text/*;q=0.8, */*;q=0.1"


class Web:
    """Tools that search the web and read pages.

    *search* is a provider or its name ("searxng", "brave", "tavily", "ddgs"); without it the environment decides. *net*
    says what pages may be read: see `Net`. *max_characters* is how much of each page is given.
    """

    def __init__(
        self,
        search: SearchProvider | str | None = None,
        *,
        net: Net | None = None,
        max_characters: int = 20_000,
        max_urls: int = 10,
    ) -> None:
        self._search = search if search is not None and not isinstance(search, str) else provider_named(search)
        self._net = Net() if net is None else net
        self._max_characters = max_characters
        self._max_urls = max_urls

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """Both tools."""
        return [self.web_search, self.web_extract]

    @tool
    async def web_search(self, query: str, ctx: ToolContext, pages: int = 1) -> AsyncIterator[str]:
        """Search the web; returns titles, URLs and short excerpts.

        Args:
            query: what to search for
            ctx: the call
            pages: how many pages of about ten results, 1 to 10

        """
        if not query.strip():
            raise ValueError("the query is empty")
        count = 0
        for number in range(1, min(max(pages, 1), _MAX_PAGES, self._search.max_pages) + 1):
            ctx.report(f"searching, page {number}")
            try:
                found = await self._search.page(query, number)
            except (SearchError, FetchError) as error:
                if number == 1:
                    raise
                yield f"There may be more results: page {number} failed. {error}"
                return
            if not found:
                break
            yield _listed(found, count)
            count += len(found)
        if not count:
            yield f"No results for {query!r}."

    @tool
    async def web_extract(self, urls: list[str], ctx: ToolContext) -> AsyncIterator[str]:
        """Read web pages; returns their main text as Markdown. Plain text and JSON are not converted; PDF fails.

        Args:
            urls: the addresses of the pages, several at once
            ctx: the call

        """
        wanted = list(dict.fromkeys(url.strip() for url in urls))
        if not 1 <= len(wanted) <= self._max_urls:
            raise ValueError(f"pass 1 to {self._max_urls} URLs, not {len(wanted)}")
        reading = _Reading(self._net, self._max_characters, wanted)
        texts: list[str] = []  # read, and not yet given
        try:
            try:
                while reading.is_unfinished and not ctx.token.is_cancelled:
                    ctx.report(f"{len(wanted) - len(reading.rest)} of {len(wanted)} pages read")
                    texts = await reading.next()
                    if not ctx.token.is_cancelled:
                        yield "\n\n".join(texts)
                        texts = []
            finally:
                await reading.close()
        except asyncio.CancelledError:
            if not ctx.token.is_cancelled:
                raise
            await reading.close()  # the stop may have broken the first one
        texts += reading.take_finished()
        if reading.is_unfinished:
            texts.append(f"Stopped before these were read: {', '.join(reading.rest)}")
        if texts:  # stopped: the call ends with the next piece, so that has all there is
            yield "\n\n".join(texts)
        elif len(reading.failures) == len(wanted):
            raise FetchError("\n".join(reading.failures))


class _Reading:
    """Several pages that are being read at once."""

    def __init__(self, net: Net, max_characters: int, urls: list[str]) -> None:
        self._net = net
        self._max_characters = max_characters
        self._readers = asyncio.Semaphore(_MAX_READERS)
        self._tasks = {asyncio.ensure_future(self._page(url)): url for url in urls}
        self._total = len(urls)
        self._count = 0
        self.failures: list[str] = []

    @property
    def rest(self) -> list[str]:
        return list(self._tasks.values())

    @property
    def is_unfinished(self) -> bool:
        return bool(self._tasks)

    async def next(self) -> list[str]:
        """Wait for a page, and return those that are finished."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        return self.take_finished()

    def take_finished(self) -> list[str]:
        texts = []
        for task in [each for each in self._tasks if each.done() and not each.cancelled()]:
            error = task.exception()
            if isinstance(error, Cancelled):
                continue  # it was stopped before us, and is not finished
            url = self._tasks.pop(task)
            if error is None:
                texts.append(self._counted(task.result()))
            elif isinstance(error, FetchError):
                self.failures.append(f"{url} could not be read: {error}")
                texts.append(self._counted(self.failures[-1]))
            else:
                raise error
        return texts

    def _counted(self, text: str) -> str:
        """Number a page: after a stop, the first of two must not look like all of them."""
        self._count += 1
        return text if self._total == 1 else f"[{self._count} of {self._total}] {text}"

    async def close(self) -> None:
        """End what still runs; each of these ends at once."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _page(self, url: str) -> str:
        try:
            got = await self._net.fetch(url, types=(*HTML, *PLAIN), headers={"accept": _ACCEPT})
        except WrongType as error:
            kind = "a PDF file" if error.media_type == "application/pdf" else error.media_type or "of no known type"
            raise FetchError(f"it is {kind}; only pages and plain text are supported") from error
        if not got.is_ok:
            raise FetchError(f"the server answered with status {got.status}: {' '.join(got.text().split())[:200]}")
        return await self._text(got)

    async def _text(self, got: Fetched) -> str:
        if got.media_type in PLAIN:
            return f"# {got.url}\n\n{bound(got.text(), self._max_characters)}"
        need("web", "trafilatura")
        html = got.text() if got.charset else got.body
        async with self._readers:
            token = current_token().child("reading", _READING_TIMEOUT)
            try:
                page = await run_isolated_async(page_of, html, got.url, token=token)
            except Cancelled as stop:
                if stop.reason != "timeout" or current_token().is_cancelled:
                    raise
                raise FetchError(f"extracting its text took longer than {_READING_TIMEOUT:g} s") from None
        if not page.text.strip():
            raise FetchError("it has no text; it may need JavaScript, which is not run here")
        title = f"# {page.title}\n{got.url}" if page.title else f"# {got.url}"
        return f"{title}\n\n{bound(page.text, self._max_characters)}"


def _listed(found: list[Result], start: int) -> str:
    return "\n".join(
        f"{number}. {each.title}\n   {each.url}\n   {' '.join(each.text.split())[:_MAX_EXCERPT]}".rstrip()
        for number, each in enumerate(found, start + 1)
    )
