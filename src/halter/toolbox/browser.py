"""A browser for agents: pages opened, read as a tree of elements, and acted on by the names that stand in it.

    agent = Agent("openai:gpt-5", tools=Browser().tools)

Each session has a Chromium of its own, the system's, without a profile of anybody's. It is started by the first call
and ended with the session; no process and no file of it is left, also if this program is killed.

A stop or a steer gives control back at once, with what there was to see until then. Behind it the page stops loading,
and a script without an end is broken off; the browser stays, and the next call finds it at rest. A click that was
still waiting for its element is never made later.

What pages may reach. Private and link-local addresses, and this machine itself, are refused unless allowed: every
connection, those of redirects and sub-resources too, goes through a proxy of ours, which resolves the name itself and
connects to the very address that it has checked. So a name that resolves to something else the second time gains
nothing. UDP is closed: no QUIC, no WebRTC past the proxy. What this cannot promise: that a public address does not lead
back inside by ways of the network's own, and anything about a Chromium that was broken into. The proxy listens on this
machine without a password; whoever is here already may use it to reach what is public. A proxy that the system is set
to use is not used then. With `allow_private=True` there is none of this, and nothing is checked.

As root, Chromium runs without its sandbox, since it has none for root; as anybody else, with it. So do not be root.

Needs the `playwright` package, pip install 'halter[browser]', and Chromium, such as apt-get install chromium.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from halter.cancel.seconds import check_seconds
from halter.models.model import Image
from halter.toolbox.browser_process import Chromium, Options
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence

    from halter.toolbox.browser_page import Tab

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
    ) -> None:
        """Start nothing yet.

        Args:
            executable: Chromium, or Chrome; None looks for it on the PATH.
            headless: whether to do without a window.
            allow_private: whether private addresses may be reached; or which: hosts, or host:port.
            limit: characters of a snapshot; what is more is cut.
            timeout: seconds for a page to answer.
            args: more options for Chromium's command line.

        """
        self._options = Options(
            executable,
            headless,
            allow_private is True,
            () if isinstance(allow_private, bool) else tuple(allow_private),
            limit,
            check_seconds("timeout", timeout),
            tuple(args),
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
        """Open a web page and show what is on it, as a tree of elements with names such as [e12] to act on them by.

        Args:
            url: the address, http:// or https://
            ctx: the call

        """
        ctx.report(f"opening {url}")
        async for piece in self._steps(ctx, lambda tab, emit: tab.goto(url, emit)):
            yield piece

    @tool
    async def browser_snapshot(self, ctx: ToolContext) -> str:
        """Show what is on the page now. Names of elements from before that are gone are no longer valid."""
        return await self._chromium(ctx).do(lambda tab: tab.snapshot())

    @tool
    async def browser_click(self, ref: str, ctx: ToolContext) -> AsyncIterator[str]:
        """Click an element, and show the page after that.

        Args:
            ref: the element's name in the last snapshot, such as e12
            ctx: the call

        """
        async for piece in self._steps(ctx, lambda tab, emit: tab.click(ref, emit)):
            yield piece

    @tool
    async def browser_type(self, ref: str, text: str, ctx: ToolContext, *, submit: bool = False) -> AsyncIterator[str]:
        """Type a text into a field, instead of what was there, and show the page after that.

        Args:
            ref: the field's name in the last snapshot, such as e12
            text: what to type
            ctx: the call
            submit: whether to press Enter then

        """
        async for piece in self._steps(ctx, lambda tab, emit: tab.type(ref, text, emit, submit=submit)):
            yield piece

    @tool
    async def browser_press(self, key: str, ctx: ToolContext) -> AsyncIterator[str]:
        """Press a key, and show the page after that.

        Args:
            key: such as Enter, Escape, ArrowDown, a or Control+a
            ctx: the call

        """
        async for piece in self._steps(ctx, lambda tab, emit: tab.press(key, emit)):
            yield piece

    @tool
    async def browser_scroll(self, direction: Literal["up", "down"], ctx: ToolContext, pixels: int = 600) -> str:
        """Scroll the page, for pages that load more when they are scrolled, and for screenshots.

        Args:
            direction: where to
            ctx: the call
            pixels: how far

        """
        distance = pixels if direction == "down" else -pixels
        return await self._chromium(ctx).do(lambda tab: tab.scroll(distance))

    @tool
    async def browser_back(self, ctx: ToolContext) -> AsyncIterator[str]:
        """Go back to the page before, and show it."""
        async for piece in self._steps(ctx, lambda tab, emit: tab.back(emit)):
            yield piece

    @tool
    async def browser_screenshot(self, ctx: ToolContext, *, full_page: bool = False) -> Image:
        """Take a picture of what the window shows.

        Args:
            ctx: the call
            full_page: whether to take the whole page and not only what the window shows

        """
        return Image(await self._chromium(ctx).do(lambda tab: tab.screenshot(full_page=full_page)))

    @tool
    async def browser_console(self, ctx: ToolContext, expression: str = "", *, clear: bool = False) -> Any:
        """Show the last lines of the page's console, with errors of its scripts; or evaluate an expression in the page.

        Args:
            ctx: the call
            expression: JavaScript whose value to return, instead of the lines
            clear: whether to forget the lines that were shown

        """
        if expression:
            return await self._chromium(ctx).do(lambda tab: tab.evaluate(expression))

        async def lines(tab: Any) -> str:
            text: str = tab.console(clear=clear)
            return text

        return await self._chromium(ctx).do(lines)
