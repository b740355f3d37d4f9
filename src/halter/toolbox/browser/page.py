"""The page of a browser session, shown as a tree of elements, each with a reference to act on it.

The references, such as [e12], are ours, and are never reused in a session. Playwright's own start anew with each
document, so one of an old snapshot could mean another element of a new page. Here an old reference is an error.

We never let Playwright wait for an element: its actions cannot be cancelled, so one could still click after a stop. We
wait with a trial that has no effect, and then act at once, or not at all.
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
_ANSWER_TIMEOUT: Final = 0.5  # seconds in which a healthy page answers
_TERMINATE_TIMEOUT: Final = 2.0  # seconds for a page to answer after its script was terminated
_PING: Final = ("Runtime.evaluate", {"expression": "0"})  # answered only by a page that runs no script
_ACTION_TIMEOUT: Final = 5.0  # seconds until an element can be acted on
_LOAD_TIMEOUT: Final = 10.0  # seconds for a page to load; after that it is shown as it is
_NAVIGATION_DELAY: Final = 0.25  # seconds in which an action starts to lead to another page
_MAX_CONSOLE: Final = 200  # lines
_MAX_LINE: Final = 1_000  # characters of a line of the console
_MAX_REFUSALS: Final = 5  # that are shown
_SCROLL: Final = (
    "by => { window.scrollBy(0, by); return [scrollY, innerHeight, document.documentElement.scrollHeight] }"
)


class PageFailed(RuntimeError):
    """A page could not be opened or acted on. The message tells the model why, and what to do."""


class Tab:
    """The page that the session is on. All of it runs on the browser's loop, one call at a time."""

    def __init__(self, context: BrowserContext, proxy: FilteringProxy | None, *, limit: int, timeout: float) -> None:
        self._context = context
        self._proxy = proxy
        self._limit = limit
        self._timeout = timeout * 1000
        self._page: Page
        self._remote: dict[Page, CDPSession] = {}  # created early: a page that hangs cannot create one
        self._names: dict[str, str] = {}  # ours by Playwright's, of the last snapshot
        self._count = 0
        self._console: collections.deque[str] = collections.deque(maxlen=_MAX_CONSOLE)
        self._notices: list[str] = []  # other things that happened, for the next snapshot
        self._tasks: set[asyncio.Task[None]] = set()
        # Whether a navigation to another page has started, and whether it has ended or failed.
        self._navigation_started = asyncio.Event()
        self._navigation_ended = asyncio.Event()

    async def start(self) -> None:
        pages = self._context.pages
        await self._use_page(pages[0] if pages else await self._context.new_page())
        self._context.on("page", lambda page: self._spawn(self._follow(page)))

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a page that was closed in the meantime; nobody waits for it

    async def _use_page(self, page: Page) -> None:
        """Make *page* the current one."""
        self._remote[page] = await self._context.new_cdp_session(page)
        self._page = page
        page.on("console", lambda message: self._add_to_console(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self._add_to_console(f"uncaught: {error}"))
        page.on("dialog", lambda dialog: self._spawn(self._dismiss(dialog)))
        page.on("close", self._forget)
        page.on("request", lambda request: _set_if(self._navigation_started, _is_main(request)))
        page.on("requestfailed", lambda request: _set_if(self._navigation_ended, _is_main(request)))
        page.on("framenavigated", lambda frame: _set_if(self._navigation_ended, frame.parent_frame is None))

    async def _follow(self, page: Page) -> None:
        if page is not self._page:
            await self._use_page(page)
            self._notices.append("The page opened a new window, which is shown here.")

    def _forget(self, page: Page) -> None:
        self._remote.pop(page, None)
        if page is self._page and self._remote:
            self._page = next(reversed(self._remote))
            self._notices.append("The window was closed; the previous one is shown here.")

    async def _dismiss(self, dialog: Any) -> None:
        self._notices.append(f"The page opened a dialog ({dialog.type}), which was dismissed: {dialog.message!r}")
        await dialog.dismiss()

    def _add_to_console(self, line: str) -> None:
        self._console.append(line[:_MAX_LINE])

    async def ensure_page(self) -> None:
        """Open a new page if the last one was closed."""
        if self._page.is_closed():
            await self._use_page(await self._context.new_page())

    # -- what a call does -----------------------------------------------------------------------

    async def goto(self, url: str, emit: Callable[[str], None]) -> None:
        """Open an address, and emit first that it has answered."""
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
        """Open an address. After a failure wait for the browser's error page, which would interrupt the next call."""
        try:
            return await self._page.goto(address, wait_until="commit", timeout=self._timeout)
        except _playwright_error() as error:
            words = str(error)
            if 'interrupted by another navigation to "chrome-error:' not in words:
                if "ERR_ABORTED" not in words:
                    with contextlib.suppress(_playwright_error()):
                        await self._page.wait_for_url(
                            "chrome-error://**", wait_until="commit", timeout=_ANSWER_TIMEOUT * 1000
                        )
                raise
        # An earlier error page has interrupted this navigation, which continues after it.
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
        await self._do(f"{ref} cannot be clicked", element.click(trial=True, timeout=_ACTION_TIMEOUT * 1000))
        self._reset_navigation()
        await self._do(f"clicking {ref} failed", element.click(force=True, timeout=_ACTION_TIMEOUT * 1000))
        emit(f"Clicked {ref}")
        await self._await_navigation()
        await self.show(emit)

    async def type(self, ref: str, text: str, emit: Callable[[str], None], *, submit: bool) -> None:
        element = await self._element(ref)
        await self._do(f"{ref} cannot be typed into", element.click(trial=True, timeout=_ACTION_TIMEOUT * 1000))
        await self._do(f"{ref} cannot be typed into", element.fill(text, force=True, timeout=_ACTION_TIMEOUT * 1000))
        emit(f"Typed into {ref}")
        if submit:
            self._reset_navigation()
            await self._do(
                "pressing Enter failed", element.press("Enter", timeout=_ACTION_TIMEOUT * 1000, no_wait_after=True)
            )
            emit("Pressed Enter")
            await self._await_navigation()
        await self.show(emit)

    async def press(self, key: str, emit: Callable[[str], None]) -> None:
        self._reset_navigation()
        await self._do(f"{key!r} could not be pressed", self._page.keyboard.press(key))
        emit(f"Pressed {key}")
        await self._await_navigation()
        await self.show(emit)

    def _reset_navigation(self) -> None:
        self._navigation_started.clear()
        self._navigation_ended.clear()

    async def _await_navigation(self) -> None:
        """After an action that may lead to another page: if it does, wait for that page, for a bounded time.

        A navigation starts only a moment after the action.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_NAVIGATION_DELAY):
                await self._navigation_started.wait()
            async with asyncio.timeout(_LOAD_TIMEOUT):
                await self._navigation_ended.wait()

    async def scroll(self, pixels: int) -> str:
        at, height, whole = await self._do("scrolling failed", self._page.evaluate(_SCROLL, pixels))
        return f"The window shows {at:.0f} to {at + height:.0f} of {whole:.0f} pixels."

    async def screenshot(self, *, full_page: bool) -> bytes:
        picture: bytes = await self._do(
            "the screenshot failed", self._page.screenshot(full_page=full_page, timeout=_LOAD_TIMEOUT * 1000)
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
        """Wait for the page to load, for a bounded time, and emit its snapshot."""
        still = ""
        try:
            await self._page.wait_for_load_state("load", timeout=_LOAD_TIMEOUT * 1000)
        except Exception:  # noqa: BLE001  (a page that never finishes loading can still be shown)
            still = " (still loading)"
        emit(await self.snapshot(still))

    async def snapshot(self, still: str = "") -> str:
        """The page as text."""
        tree, title = await self._read_page()
        text = _REF.sub(self._assign_names(_REF.findall(tree)), tree)
        if len(text) > self._limit:
            text = f"{text[: self._limit]}\n[... {len(text) - self._limit:,} more characters are not shown ...]"
        return "\n".join([*self._take_notices(), f"Page: {title}{still}", f"URL: {self._page.url}", text])

    async def _read_page(self) -> tuple[str, str]:
        """The tree and the title; read again if a navigation has interrupted the first try."""
        with contextlib.suppress(_playwright_error()):
            return await self._tree(), await self._page.title()
        return await self._do("the page cannot be read", self._tree()), await self._page.title()

    async def _tree(self) -> str:
        return await self._page.aria_snapshot(mode="ai", timeout=self._timeout)

    def _assign_names(self, found: list[str]) -> Callable[[re.Match[str]], str]:
        """References for the elements of this snapshot: those that were in the last one keep theirs."""
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
        refs = [ref for ref, name in self._names.items() if name == match[1]]
        if not refs:
            raise PageFailed(
                f"{match[1]} is not in the last snapshot, because the page has changed or there is no such element. "
                "Use the references of a new snapshot: browser_snapshot"
            )
        element = self._page.get_by_ref(refs[0])
        try:
            async with asyncio.timeout(_ACTION_TIMEOUT):  # in Python 3.11 `wait_for()` can lose a stop
                found = await element.count()
        except (TimeoutError, _playwright_error()):  # a snapshot of a document that is gone
            found = 0
        if not found:
            raise PageFailed(f"{match[1]} is no longer on the page; take a new snapshot with browser_snapshot")
        return element

    async def _do(self, failure: str, work: Any) -> Any:
        """Await a call of Playwright, for a bounded time; an error becomes a message for the model."""
        try:
            async with asyncio.timeout(self._timeout / 1000):
                return await work
        except TimeoutError as error:
            await self.recover()
            raise PageFailed(f"{failure}: the page did not answer within {self._timeout / 1000:g} s") from error
        except _playwright_error() as error:
            raise self._failed(failure, error) from error

    def _failed(self, failure: str, error: BaseException | None) -> PageFailed:
        if refusals := self._take_refusals():
            return PageFailed(f"{failure}: private addresses are refused: {'; '.join(refusals)}")
        words = str(error).partition("\nCall log:")[0].strip() if error is not None else ""
        return PageFailed(f"{failure}: {words}" if words else failure)

    def _take_refusals(self) -> list[str]:
        return self._proxy.take_refusals() if self._proxy is not None else []

    def _take_notices(self) -> list[str]:
        notices, self._notices = self._notices, []
        if refusals := self._take_refusals():
            more = f" and {len(refusals) - _MAX_REFUSALS} more" if len(refusals) > _MAX_REFUSALS else ""
            notices.append(f"Refused (not public): {'; '.join(refusals[:_MAX_REFUSALS])}{more}")
        return notices

    # -- after a stop ---------------------------------------------------------------------------

    async def recover(self) -> None:
        """Stop what the page is doing after a stop, so that it is idle for the next call. Bounded.

        A page that does not answer is in an endless script, which is terminated; if even that does not help, the page
        is closed and a new one takes its place.
        """
        page = self._page
        await self._send_command(page, _ANSWER_TIMEOUT, "Page.stopLoading")
        if await self._send_command(page, _ANSWER_TIMEOUT, *_PING):
            return
        # Not earlier: if no script runs, this would terminate the next one.
        await self._send_command(page, _ANSWER_TIMEOUT, "Runtime.terminateExecution")
        if await self._send_command(page, _TERMINATE_TIMEOUT, *_PING):
            return
        self._notices.append("The page stopped responding and was closed; this is a new, empty page.")
        await self._use_page(await self._context.new_page())
        self._spawn(page.close())

    async def _send_command(
        self, page: Page, seconds: float, method: str, arguments: dict[str, Any] | None = None
    ) -> bool:
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
