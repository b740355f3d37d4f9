"""One Chromium for all tests of the page; each test has a gateway and profiles of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from halter.toolbox.browser.chromium import NAMES
from tests.support.sounds import spoken
from tests.support.web_page import House, Tab, context_of, launch

SPOKEN = "Please look at the other map."


@pytest.fixture(scope="package", autouse=True)
def _needs_chromium() -> None:
    if not any(map(shutil.which, NAMES)):
        say = pytest.fail if os.environ.get("HALTER_EVERY_TEST") else pytest.skip
        say("there is no Chromium here; as root, `scripts/setup --group dev` installs it")


# Not for the whole run: while it is open, Playwright has an event loop running in this thread.
@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Its microphone hears a file, again and again."""
    sound = tmp_path_factory.mktemp("voice") / "said.wav"
    sound.write_bytes(spoken(SPOKEN))
    with sync_playwright() as driver:
        opened = launch(
            driver,
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
            f"--use-file-for-fake-audio-capture={sound}",
        )
        yield opened
        opened.close()


@pytest.fixture
def house() -> Iterator[Callable[..., House]]:
    """Makes gateways, and closes them."""
    made: list[House] = []

    def make(*script: Any, **options: Any) -> House:
        made.append(House(*script, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="package")
def ordinary(browser: Browser) -> Tab:
    """A tab that is used again: each gateway is an origin of its own, so nothing is left of the one before."""
    return Tab(context_of(browser).new_page())


@pytest.fixture
def tab(browser: Browser, ordinary: Tab) -> Iterator[Callable[..., Tab]]:
    """Opens tabs: the ordinary one first, others in a profile of their own or beside another.

    None of them may have made the browser complain.
    """
    tabs: list[Tab] = []

    def make(address: str, *, beside: Tab | None = None, **form: Any) -> Tab:
        if beside is None and not form and ordinary not in tabs:
            tabs.append(ordinary)
        else:
            context = beside.page.context if beside is not None else context_of(browser, **form)
            tabs.append(Tab(context.new_page()))
        return tabs[-1].open(address)

    yield make
    wrong = [complaint for each in tabs for complaint in each.wrong]
    for each in tabs:
        if each is ordinary:
            each.page.goto("about:blank")
        else:
            each.page.close()
    ordinary.wrong = []  # also of requests that leaving the page has cut off: they are not the next test's
    assert not wrong
