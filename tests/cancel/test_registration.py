"""Wakers: how event loops are woken from other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from halter.cancel.registration import call_in_loop, wake_loops_once
from tests.support.looped import looped


@looped
async def test_a_loop_is_woken_once_for_all_calls_of_a_block() -> None:
    """The calls run in their order, and only after the block; afterwards each call wakes the loop again."""
    loop = asyncio.get_running_loop()
    wake = loop.call_soon_threadsafe
    woken: list[object] = []
    called: list[str] = []

    def count(call: Callable[..., object], *args: Any, **options: Any) -> asyncio.Handle:
        woken.append(call)
        return wake(call, *args, **options)

    loop.call_soon_threadsafe = count  # type: ignore[method-assign, assignment]
    ended = asyncio.Event()

    def work() -> None:
        with wake_loops_once():
            call_in_loop(loop, lambda: called.append("first"))
            call_in_loop(loop, lambda: called.append("second"))
            assert not woken
        call_in_loop(loop, ended.set)

    thread = threading.Thread(target=work)
    thread.start()
    await ended.wait()
    thread.join()
    assert called == ["first", "second"]
    assert len(woken) == 2
