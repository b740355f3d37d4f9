"""The page in a real Chromium, at a real gateway: what its tests are told in."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import BrowserContext, ConsoleMessage, Locator, Page, Playwright, expect

from halter import Agent
from halter.gateway import Gateway, Keys
from halter.stores import MemoryStore, Store
from halter.testing import ScriptedModel
from halter.toolbox.browser.chromium import find_executable
from tests.support.gateway_client import OWN

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WAIT = 10_000  # milliseconds, for what is expected on the page
SHOTS = os.environ.get("HALTER_SCREENSHOTS", "")
_PHONE = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}

expect.set_options(timeout=WAIT)


def launch(driver: Playwright, *args: str) -> Browser:
    """The system's Chromium; all pages of a test's module share it."""
    return driver.chromium.launch(
        executable_path=find_executable(None),
        chromium_sandbox=os.geteuid() != 0,  # Chromium has no sandbox for root, and refuses to start with one
        args=list(args),
    )


class House:
    """A gateway in a thread of its own, since the tests wait for the browser in theirs."""

    def __init__(
        self,
        *script: Any,
        tools: Sequence[Any] = (),
        approve: Any = None,
        store: Store | None = None,
        port: int = 0,
        agent: Agent | dict[str, Agent] | None = None,
        **options: Any,
    ) -> None:
        self.model = ScriptedModel(*script)
        self.store = store or MemoryStore()
        agent = agent or Agent(self.model, tools, approve=approve)
        self.gateway = Gateway(agent, self.store, Keys(own=OWN), port=port, **options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway of the tests", daemon=True)
        self._thread.start()
        assert self._begun.wait(10)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with self.gateway:
            self._begun.set()
            await self._end.wait()

    @property
    def port(self) -> int:
        return int(self.gateway.url.rpartition(":")[2])

    def address(self, session: str = "") -> str:
        return f"{self.gateway.url}/#key={OWN}" + (f"&session={session}" if session else "")

    def kinds(self, session: str) -> list[str]:
        return [event.kind for event in self.store.read(session)]

    def close(self) -> None:
        if self._thread.is_alive() and self._loop is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(20)
        assert not self._thread.is_alive()


class Tab:
    """The page, as a person sees it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.wrong: list[str] = []  # what the browser complained of
        self._messages = 0  # how many there were in the conversation when the last one was sent
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", self._heard)

    def _heard(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.wrong.append(f"{said.text} ({said.location['url']})")

    def open(self, address: str) -> Tab:
        self._messages = 0
        self.page.goto(address)
        expect(self.page.locator("#text:visible, dialog[open]").first).to_be_visible()
        return self

    @property
    def session(self) -> str:
        return str(self.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('session') ?? ''"))

    @property
    def field(self) -> Locator:
        return self.page.locator("#text")

    @property
    def answers(self) -> Locator:
        return self.page.locator(".answer")

    @property
    def messages(self) -> Locator:
        return self.page.locator(".message")

    @property
    def calls(self) -> Locator:
        return self.page.locator(".call")

    @property
    def waiting(self) -> Locator:
        return self.page.locator("#queue li")

    @property
    def ends(self) -> Locator:
        return self.page.locator(".turn > footer .end")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def say(self, text: str, button: str = "Send") -> None:
        self.field.fill(text)
        self._messages = self.messages.count() if button == "Send" else 0
        self.button(button).click()

    def idle(self) -> None:
        """Wait until nothing runs. Nothing does before a message that was just sent has begun its turn, either."""
        expect(self.messages.nth(self._messages)).to_be_attached()
        expect(self.button("Send")).to_be_visible()

    def shoot(self, name: str) -> None:
        """Keep a picture, if somebody wants to look at it."""
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=Path(SHOTS) / f"{name}.png")


def context_of(browser: Browser, *, phone: bool = False, dark: bool = False, height: int = 800) -> BrowserContext:
    """A browser profile of its own: its tabs share the key and nothing else."""
    form: dict[str, Any] = _PHONE if phone else {"viewport": {"width": 1280, "height": height}}
    context = browser.new_context(color_scheme="dark" if dark else "light", **form)
    context.set_default_timeout(WAIT)
    return context
