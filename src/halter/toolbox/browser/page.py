"""What a session sees of the web: one page at a time, as a tree of its elements, each with a name to act on it by.

The names, such as [e12], are given by us and never twice in a session. Playwright's own begin anew with each document,
so that one of an old snapshot could mean another element of a new page. Here it means nothing any more, and says so.

Nothing waits with an effect pending. Playwright's actions wait until an element can be acted on, and cannot be called
back: one that was left would click when nobody expects it any more. So the waiting is a trial without an effect, and
the action itself comes at once behind it, or not at all.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from halter.toolbox.browser.proxy import REFUSED_HEADER, FilteringProxy

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.async_api import BrowserContext, CDPSession, Locator, Page, Response

_REF: Final = re.compile(r"\[ref=((?:f\d+)?e\d+)\]")
_OWN: Final = re.compile(r"\[?\s*(?:ref=)?(e\d+)\s*\]?")
_ANSWERS: Final = 0.5  # seconds in which a page that is well answers
_LAST_CHANCE: Final = 2.0  # seconds until it is given up
_HELLO: Final = ("Runtime.evaluate", {"expression": "0"})  # only a page whose scripts are at rest answers it
_ACT: Final = 5.0  # seconds in which an element must become one that can be acted on
_SETTLE: Final = 10.0  # seconds for a page to load; after that it is shown as it is
_MOMENT: Final = 0.25  # seconds in which an action leads to another page, or does not
_LINES: Final = 200  # of the console, the last
_LONGEST_LINE: Final = 1_000
_MAX_NAMED: Final = 5
_SCROLL: Final = (
    "by => { window.scrollBy(0, by); return [scrollY, innerHeight, document.documentElement.scrollHeight] }"
)


class PageFailed(RuntimeError):
    """A page could not be opened, or not be acted on. The text tells the model why, and what to do."""


class Tab:
    """The page that the session is on. All of it runs on the browser's loop, one call at a time."""

    def __init__(self, context: BrowserContext, proxy: FilteringProxy | None, *, limit: int, timeout: float) -> None:
        self._context = context
        self._proxy = proxy
        self._limit = limit
        self._timeout = timeout * 1000
        self._page: Page
        self._remote: dict[Page, CDPSession] = {}  # made while the page is well: one that hangs makes none
        self._names: dict[str, str] = {}  # ours by Playwright's, of the last snapshot
        self._count = 0
        self._console: collections.deque[str] = collections.deque(maxlen=_LINES)
        self._news: list[str] = []  # what happened beside the answer, to be told with the next
        self._tasks: set[asyncio.Task[None]] = set()
        # Whether the page has begun to leave for another one, and whether it has come there or given it up.
        self._is_leaving = asyncio.Event()
        self._has_arrived = asyncio.Event()

    async def start(self) -> None:
        pages = self._context.pages
        await self._adopt(pages[0] if pages else await self._context.new_page())
        self._context.on("page", lambda page: self._spawn(self._follow(page)))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a page that was closed in the meantime; nobody waits for it

    async def _adopt(self, page: Page) -> None:
        """Look at *page* from now on."""
        self._remote[page] = await self._context.new_cdp_session(page)
        self._page = page
        page.on("console", lambda message: self._note(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self._note(f"uncaught: {error}"))
        page.on("dialog", lambda dialog: self._spawn(self._dismiss(dialog)))
        page.on("close", self._forget)
        page.on("request", lambda request: _set_if(self._is_leaving, _is_main(request)))
        page.on("requestfailed", lambda request: _set_if(self._has_arrived, _is_main(request)))
        page.on("framenavigated", lambda frame: _set_if(self._has_arrived, frame.parent_frame is None))

    async def _follow(self, page: Page) -> None:
        if page is not self._page:
            await self._adopt(page)
            self._news.append("The page opened a new window, which is shown here.")

    def _forget(self, page: Page) -> None:
        self._remote.pop(page, None)
        if page is self._page and self._remote:
            self._page = next(reversed(self._remote))
            self._news.append("The window was closed; the previous one is shown here.")

    async def _dismiss(self, dialog: Any) -> None:
        self._news.append(f"The page opened a dialog ({dialog.type}), which was dismissed: {dialog.message!r}")
        await dialog.dismiss()

    def _note(self, line: str) -> None:
        self._console.append(line[:_LONGEST_LINE])

    async def be_there(self) -> None:
        """Have a page to look at, should the last one have been closed."""
        if self._page.is_closed():
            await self._adopt(await self._context.new_page())

    # -- what a call does -----------------------------------------------------------------------

    async def goto(self, url: str, emit: Callable[[str], None]) -> None:
        """Open an address; what is emitted first is that it has answered."""
        address = _checked(url)
        failure = f"{url} could not be opened"
        self._take_refusals()
        try:
            response = await self._go(address)
        except _playwright_error() as error:
            raise self._failed(failure, error) from error
        if response is not None and REFUSED_HEADER in response.headers:
            raise self._failed(failure, None)
        emit(f"Opened {self._page.url}" + (f" (HTTP {response.status})" if response is not None else ""))
        await self.show(emit)

    async def _go(self, address: str) -> Response | None:
        """Open it. One that fails is followed by the browser's page that says so, which is not to get in our way."""
        try:
            return await self._page.goto(address, wait_until="commit", timeout=self._timeout)
        except _playwright_error() as error:
            words = str(error)
            if 'interrupted by another navigation to "chrome-error:' not in words:
                if "ERR_ABORTED" not in words:
                    with contextlib.suppress(_playwright_error()):
                        await self._page.wait_for_url("chrome-error://**", wait_until="commit", timeout=_ANSWERS * 1000)
                raise
        # It came in between all the same; ours goes on behind it.
        await self._page.wait_for_url(f"{address}**", wait_until="commit", timeout=self._timeout)
        return None

    async def back(self, emit: Callable[[str], None]) -> None:
        before = self._page.url
        failure = "going back failed"
        try:
            await self._page.go_back(wait_until="commit", timeout=self._timeout)
        except Exception as error:
            raise self._failed(failure, error) from error
        if self._page.url == before:
            raise PageFailed("there is no previous page")
        emit(f"Back at {self._page.url}")
        await self.show(emit)

    async def click(self, ref: str, emit: Callable[[str], None]) -> None:
        element = await self._element(ref)
        await self._do(f"{ref} cannot be clicked", element.click(trial=True, timeout=_ACT * 1000))
        self._stay()
        await self._do(f"clicking {ref} failed", element.click(force=True, timeout=_ACT * 1000))
        emit(f"Clicked {ref}")
        await self._arrive()
        await self.show(emit)

    async def type(self, ref: str, text: str, emit: Callable[[str], None], *, submit: bool) -> None:
        element = await self._element(ref)
        await self._do(f"{ref} cannot be typed into", element.click(trial=True, timeout=_ACT * 1000))
        await self._do(f"{ref} cannot be typed into", element.fill(text, force=True, timeout=_ACT * 1000))
        emit(f"Typed into {ref}")
        if submit:
            self._stay()
            await self._do("pressing Enter failed", element.press("Enter", timeout=_ACT * 1000, no_wait_after=True))
            emit("Pressed Enter")
            await self._arrive()
        await self.show(emit)

    async def press(self, key: str, emit: Callable[[str], None]) -> None:
        self._stay()
        await self._do(f"{key!r} could not be pressed", self._page.keyboard.press(key))
        emit(f"Pressed {key}")
        await self._arrive()
        await self.show(emit)

    def _stay(self) -> None:
        self._is_leaving.clear()
        self._has_arrived.clear()

    async def _arrive(self) -> None:
        """After something that may lead to another page: if it does, wait until we are there, but not for ever.

        That it does is known only when it begins, a moment later.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_leaving.wait(), _MOMENT)
            await asyncio.wait_for(self._has_arrived.wait(), _SETTLE)

    async def scroll(self, pixels: int) -> str:
        at, height, whole = await self._do("scrolling failed", self._page.evaluate(_SCROLL, pixels))
        return f"The window shows {at:.0f} to {at + height:.0f} of {whole:.0f} pixels."

    async def screenshot(self, *, full_page: bool) -> bytes:
        picture: bytes = await self._do(
            "the screenshot failed", self._page.screenshot(full_page=full_page, timeout=_SETTLE * 1000)
        )
        return picture

    async def evaluate(self, expression: str) -> Any:
        return await self._do("the expression failed", self._page.evaluate(expression))

    def console(self, *, clear: bool) -> str:
        lines = list(self._console)
        if clear:
            self._console.clear()
        return "\n".join(lines) or "(the console is empty)"

    async def show(self, emit: Callable[[str], None]) -> None:
        """Wait for the page to load, not for ever, and emit what is on it."""
        still = ""
        try:
            await self._page.wait_for_load_state("load", timeout=_SETTLE * 1000)
        except Exception:  # noqa: BLE001  (a page that loads for ever can be looked at all the same)
            still = " (still loading)"
        emit(await self.snapshot(still))

    async def snapshot(self, still: str = "") -> str:
        """The page as text."""
        tree, title = await self._look()
        text = _REF.sub(self._named(_REF.findall(tree)), tree)
        if len(text) > self._limit:
            text = f"{text[: self._limit]}\n[... {len(text) - self._limit:,} more characters are not shown ...]"
        return "\n".join([*self._take_news(), f"Page: {title}{still}", f"URL: {self._page.url}", text])

    async def _look(self) -> tuple[str, str]:
        """The tree and the title; once more if the page has gone on to another one in the middle of it."""
        with contextlib.suppress(_playwright_error()):
            return await self._tree(), await self._page.title()
        return await self._do("the page cannot be read", self._tree()), await self._page.title()

    async def _tree(self) -> str:
        return await self._page.aria_snapshot(mode="ai", timeout=self._timeout)

    def _named(self, found: list[str]) -> Callable[[re.Match[str]], str]:
        """Names for the elements of this snapshot: those that were in the last one keep theirs."""
        names = {}
        for each in found:
            name = self._names.get(each)
            if name is None:
                self._count += 1
                name = f"e{self._count}"
            names[each] = name
        self._names = names
        return lambda match: f"[{names[match[1]]}]"

    # -- what can go wrong ----------------------------------------------------------------------

    async def _element(self, ref: str) -> Locator:
        match = _OWN.fullmatch(ref.strip())
        if match is None:
            raise PageFailed(f"{ref!r} is not a reference; use one from the last snapshot, such as e12")
        theirs = [each for each, ours in self._names.items() if ours == match[1]]
        if not theirs:
            raise PageFailed(
                f"{match[1]} is not in the last snapshot, because the page has changed or there is no such element. "
                "Use the references of a new snapshot: browser_snapshot"
            )
        element = self._page.get_by_ref(theirs[0])
        try:
            found = await asyncio.wait_for(element.count(), _ACT)
        except (TimeoutError, _playwright_error()):  # a snapshot of a document that is gone
            found = 0
        if not found:
            raise PageFailed(f"{match[1]} is no longer on the page; take a new snapshot with browser_snapshot")
        return element

    async def _do(self, what: str, work: Any) -> Any:
        """Await something of Playwright's, for a bounded time; what goes wrong becomes words for the model."""
        try:
            async with asyncio.timeout(self._timeout / 1000):
                return await work
        except TimeoutError as error:
            await self.recover()
            raise PageFailed(f"{what}: the page did not answer within {self._timeout / 1000:g} s") from error
        except _playwright_error() as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: BaseException | None) -> PageFailed:
        if refusals := self._take_refusals():
            return PageFailed(f"{what}: private addresses are refused: {'; '.join(refusals)}")
        words = str(error).partition("\nCall log:")[0].strip() if error is not None else ""
        return PageFailed(f"{what}: {words}" if words else what)

    def _take_refusals(self) -> list[str]:
        return self._proxy.take_refusals() if self._proxy is not None else []

    def _take_news(self) -> list[str]:
        news, self._news = self._news, []
        if refusals := self._take_refusals():
            more = f" and {len(refusals) - _MAX_NAMED} more" if len(refusals) > _MAX_NAMED else ""
            news.append(f"Refused (not public): {'; '.join(refusals[:_MAX_NAMED])}{more}")
        return news

    # -- after a stop ---------------------------------------------------------------------------

    async def recover(self) -> None:
        """The call was left: stop what the page is doing, so that the next one finds it at rest. Bounded.

        A page that does not answer is in a script without an end, which is broken off; if even that does not help,
        the page is given up and a new one takes its place.
        """
        page = self._page
        await self._tell(page, _ANSWERS, "Page.stopLoading")
        if await self._tell(page, _ANSWERS, *_HELLO):
            return
        # Not before: without a script that runs, it would be the next one that is broken off.
        await self._tell(page, _ANSWERS, "Runtime.terminateExecution")
        if await self._tell(page, _LAST_CHANCE, *_HELLO):
            return
        self._news.append("The page stopped responding and was closed; this is a new, empty page.")
        await self._adopt(await self._context.new_page())
        self._spawn(page.close())

    async def _tell(self, page: Page, seconds: float, method: str, arguments: dict[str, Any] | None = None) -> bool:
        """Whether the page has answered in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._remote[page].send(method, arguments)
        except (TimeoutError, KeyError, _playwright_error()):
            return False
        return True


def _set_if(event: asyncio.Event, is_so: bool) -> None:
    if is_so:
        event.set()


def _is_main(request: Any) -> bool:
    """Whether it is for the page itself, and not for a part of it."""
    return bool(request.is_navigation_request()) and request.frame.parent_frame is None


def _playwright_error() -> type[Exception]:
    from playwright.async_api import Error

    return Error


def _checked(url: str) -> str:
    """An address that may be opened: those of files and of the browser's own pages may not."""
    url = url.strip()
    scheme = urlsplit(url).scheme.lower()
    if url == "about:blank":
        return url
    if "://" not in url and scheme not in ("data", "javascript", "file", "chrome", "about", "view-source"):
        return f"https://{url}"
    if scheme not in ("http", "https"):
        raise PageFailed(f"only http:// and https:// addresses can be opened, not {url[:100]!r}")
    return url
