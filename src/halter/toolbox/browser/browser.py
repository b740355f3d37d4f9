"""A browser for agents: pages are shown as a tree of elements, and acted on by the references in it.

    agent = Agent("openai:gpt-5", tools=Browser().tools)

Each session has its own Chromium process, with an empty profile. It is started by the first call and ended with the
session; no process and no file of it is left, even if this program is killed.

A stop or a steer returns at once, with what was visible so far. After that the page stops loading and an endless script
is terminated; the browser stays, and the next call finds it idle. A click that was still waiting for its element is
never made later.

What pages may reach: private and link-local addresses, and this machine itself, are refused unless allowed. Every
connection, including those of redirects and sub-resources, goes through our proxy, which resolves the name and connects
to the address that it has checked, so DNS rebinding does not help. UDP is off: no QUIC, no WebRTC around the proxy. Not
covered: a public address that leads back inside through the network itself, and a compromised Chromium. The proxy
listens on this machine without a password; local users can reach public addresses through it. The system's own proxy
settings are not used. With `allow_private=True` there is no proxy and no check.

As root, Chromium runs without its own sandbox, because it has none for root. So do not run it as root. `sandbox=`
restricts all of Chromium, in addition to its own.

Needs the `playwright` package, pip install 'halter[browser]', and Chromium, such as apt-get install chromium.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from halter.cancel.deadlines import check_seconds
from halter.models.types import Image
from halter.toolbox.browser.chromium import Chromium, Options
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence

    from halter.toolbox.browser.page import Tab
    from halter.toolbox.sandbox.sandbox import Sandbox

    Step: TypeAlias = Callable[[Tab, Callable[[str], None]], Coroutine[Any, Any, None]]


class Browser:
    """The tools of a browser. One object may serve any number of sessions: each has a Chromium of its own."""

    def __init__(
        self,
        executable: str | None = None,
        *,
        headless: bool = True,
        allow_private: bool | Collection[str] = False,
        limit: int = 20_000,
        timeout: float = 30.0,
        args: Sequence[str] = (),
        sandbox: Sandbox | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            executable: Chromium, or Chrome; None looks for it on the PATH.
            headless: whether to run without a window.
            allow_private: True, or the private hosts (or host:port, or networks) that may be reached.
            limit: the maximum number of characters of a snapshot.
            timeout: seconds for a page to answer.
            args: more options for Chromium's command line.
            sandbox: its secrets are hidden from Chromium, which writes its own folder and connects to our proxy alone.

        """
        self._options = Options(
            executable,
            headless,
            allow_private is True,
            () if isinstance(allow_private, bool) else tuple(allow_private),
            limit,
            check_seconds("timeout", timeout),
            tuple(args),
            sandbox,
        )

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """All of them."""
        return [
            self.browser_navigate,
            self.browser_snapshot,
            self.browser_click,
            self.browser_type,
            self.browser_press,
            self.browser_scroll,
            self.browser_back,
            self.browser_screenshot,
            self.browser_console,
        ]

    def _open(self) -> Chromium:
        return Chromium(self._options)

    def _chromium(self, ctx: ToolContext) -> Chromium:
        return ctx.keep(self._open)

    async def _steps(self, ctx: ToolContext, work: Step) -> AsyncIterator[str]:
        """What was done, as it is done, and in the end the page. What there is at a stop is the partial result."""
        async for piece in self._chromium(ctx).stream(work):
            if "\n" not in piece:
                ctx.report(piece)
            yield piece

    @tool
    async def browser_navigate(self, url: str, ctx: ToolContext) -> AsyncIterator[str]:
        """Open a web page and return its content as a tree of elements with references such as [e12].

        Args:
            url: the address, http:// or https://
            ctx: the call

        """
        ctx.report(f"opening {url}")
        async for piece in self._steps(ctx, lambda tab, emit: tab.goto(url, emit)):
            yield piece

    @tool
    async def browser_snapshot(self, ctx: ToolContext) -> str:
        """Return the current content of the page. References from earlier snapshots may no longer be valid."""
        return await self._chromium(ctx).do(lambda tab: tab.snapshot())

    @tool
    async def browser_click(self, ref: str, ctx: ToolContext) -> AsyncIterator[str]:
        """Click an element and return the page.

        Args:
            ref: the reference of the element in the last snapshot, such as e12
            ctx: the call

        """
        async for piece in self._steps(ctx, lambda tab, emit: tab.click(ref, emit)):
            yield piece

    @tool
    async def browser_type(self, ref: str, text: str, ctx: ToolContext, *, submit: bool = False) -> AsyncIterator[str]:
        """Replace the content of a field with a text and return the page.

        Args:
            ref: the reference of the field in the last snapshot, such as e12
            text: the text to type
            ctx: the call
            submit: whether to press Enter afterwards

        """
        async for piece in self._steps(ctx, lambda tab, emit: tab.type(ref, text, emit, submit=submit)):
            yield piece

    @tool
    async def browser_press(self, key: str, ctx: ToolContext) -> AsyncIterator[str]:
        """Press a key and return the page.

        Args:
            key: such as Enter, Escape, ArrowDown, a or Control+a
            ctx: the call

        """
        async for piece in self._steps(ctx, lambda tab, emit: tab.press(key, emit)):
            yield piece

    @tool
    async def browser_scroll(self, direction: Literal["up", "down"], ctx: ToolContext, pixels: int = 600) -> str:
        """Scroll the page, to load more content or before a screenshot.

        Args:
            direction: up or down
            ctx: the call
            pixels: the distance

        """
        distance = pixels if direction == "down" else -pixels
        return await self._chromium(ctx).do(lambda tab: tab.scroll(distance))

    @tool
    async def browser_back(self, ctx: ToolContext) -> AsyncIterator[str]:
        """Go back to the previous page and return it."""
        async for piece in self._steps(ctx, lambda tab, emit: tab.back(emit)):
            yield piece

    @tool
    async def browser_screenshot(self, ctx: ToolContext, *, full_page: bool = False) -> Image:
        """Take a screenshot of the visible part of the page.

        Args:
            ctx: the call
            full_page: whether to capture the whole page

        """
        return Image(await self._chromium(ctx).do(lambda tab: tab.screenshot(full_page=full_page)))

    @tool
    async def browser_console(self, ctx: ToolContext, expression: str = "", *, clear: bool = False) -> Any:
        """Return the last lines of the page's console, including script errors; or evaluate an expression in the page.

        Args:
            ctx: the call
            expression: a JavaScript expression to evaluate instead
            clear: whether to clear the returned lines

        """
        if expression:
            return await self._chromium(ctx).do(lambda tab: tab.evaluate(expression))

        async def lines(tab: Any) -> str:
            text: str = tab.console(clear=clear)
            return text

        return await self._chromium(ctx).do(lines)
