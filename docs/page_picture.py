# ruff: noqa: INP001  (a script, not a package)
"""Makes docs/page.png: the page behind a real gateway, in a real Chromium, just after somebody has stopped a turn.

python docs/page_picture.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from playwright.sync_api import expect, sync_playwright  # noqa: E402  (behind the path)

from halter import Agent, ToolContext, tool  # noqa: E402
from halter.models import ToolCall  # noqa: E402
from halter.testing import Gate, ScriptedModel  # noqa: E402
from tests.support.web_page import House, Tab, context_of, launch  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_ANSWER = """Three makers are left. **Which one** depends on what you need it for:

| maker | material | breaks at |
|---|---|---:|
| Alder & Sons | hemp | 410 kg |
| Nordseil | polyester | 690 kg |
| Lasso Works | leather | 520 kg |

For leading a horse, `hemp` is kind to the hands.
"""


@tool
async def search(query: str, ctx: ToolContext) -> AsyncIterator[str]:
    """Search the web."""
    for number in range(1, 100):
        ctx.report(f"page {number} for “{query}”\n")
        yield f"result {number}\n"
        await asyncio.sleep(0.3)


@tool
async def fetch(url: str) -> str:
    """Fetch a page, which takes a moment to let go of its connection."""
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.016)
    return url


@tool
async def delegate(task: str, ctx: ToolContext) -> str:
    """Have another agent do it."""
    helper = Agent(ScriptedModel(["I am looking. ", Gate()]), name="appraiser")
    return str((await ctx.delegate(helper, task)).text)


def _play(page: Tab) -> None:
    page.say("Which halter ropes are still made by hand?")
    expect(page.page.locator(".answer table")).to_be_visible()
    page.idle()
    page.say("Find out what each of them costs.")
    expect(page.page.locator(".child")).to_be_visible()
    page.page.wait_for_timeout(900)
    page.say("Then order the cheapest.", "Queue")
    expect(page.waiting).to_have_count(1)
    page.button("Stop").click()
    page.idle()
    page.button("Timeline").last.click()
    page.page.mouse.move(0, 0)
    page.page.wait_for_timeout(400)


def main() -> None:
    """Make the picture."""
    calls = [
        ToolCall("1", "search", '{"query": "hand-made halter rope price"}'),
        ToolCall("2", "fetch", '{"url": "https://example.com/prices"}'),
        ToolCall("3", "delegate", '{"task": "Compare the prices."}'),
    ]
    house = House(_ANSWER, calls, tools=[search, fetch, delegate])
    with sync_playwright() as driver:
        browser = launch(driver)
        page = Tab(context_of(browser, height=900).new_page()).open(house.address())
        _play(page)
        page.page.screenshot(path=ROOT / "docs" / "page.png")
        browser.close()
    house.close()


if __name__ == "__main__":
    main()
