"""The page of a browser session, at moments that a real browser does not let a test choose."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from halter.toolbox.browser.page import Tab


class SlowElement:
    """An element of a page whose browser answers when it is told to."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.clicks = 0

    def get_by_ref(self, _ref: str) -> SlowElement:
        return self

    async def count(self) -> int:
        self.is_asked.set()
        return await self.answer

    async def click(self, **_options: Any) -> None:
        self.clicks += 1


def test_a_stop_in_the_moment_of_an_answer_is_not_lost() -> None:
    """A stop that came together with the browser's answer was lost, and the click was made after it."""
    assert asyncio.run(clicks_after_a_stop()) == 0


async def clicks_after_a_stop() -> int:
    element: Any = SlowElement()
    nothing: Any = None
    tab = Tab(nothing, nothing, limit=1_000, timeout=60)
    tab._page = element
    tab._names = {"e1": "e1"}
    call = asyncio.create_task(tab.click("e1", lambda _text: None))
    await element.is_asked.wait()
    element.answer.set_result(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    return int(element.clicks)
