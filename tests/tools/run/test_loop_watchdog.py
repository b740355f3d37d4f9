"""A warning that names the async tool, and its line, that blocks an event loop."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from halter import tool
from tests.support.batches import Probe, run, statuses
from tests.support.waiting import wait_until


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "has blocked" in record.getMessage()]


@pytest.mark.parametrize("when", ["in its first step", "after an await", "in a generator", "in what it awaits"])
def test_a_tool_that_blocks_the_loop_is_named_with_its_line(caplog: pytest.LogCaptureFixture, when: str) -> None:
    """The line is that of the tool's own code, once for each call, while it still blocks."""
    lines: list[int] = []

    def block() -> None:
        lines.append(inspect.stack()[1].lineno)
        wait_until(lambda: warnings_of(caplog))
        threading.Event().wait(0.15)  # long enough for a second warning, if there were one

    async def blocks_inside() -> None:
        block()

    @tool
    async def blocks() -> str:
        if when == "after an await":
            await asyncio.sleep(0.01)
        if when == "in what it awaits":
            await blocks_inside()
        else:
            block()
        return "done"

    @tool
    async def generates() -> AsyncIterator[str]:
        yield "one"
        block()
        yield "two"

    async def main() -> None:
        outcomes = await Probe(generates if when == "in a generator" else blocks).run()
        assert statuses(outcomes) == ["completed"]

    run(main())
    [warning] = warnings_of(caplog)
    assert repr("generates" if when == "in a generator" else "blocks") in warning
    if when != "in what it awaits":
        assert f"{__file__}:{lines[0]}" in warning
    else:
        assert __file__ in warning


def test_a_tool_that_waits_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    """However long it takes: an await blocks nobody."""

    @tool
    async def patient() -> str:
        await asyncio.sleep(0.25)
        return "done"

    @tool
    async def busy() -> AsyncIterator[Any]:
        for _ in range(5):
            await asyncio.sleep(0.04)
            yield "x"

    async def main() -> None:
        assert statuses(await Probe(patient, busy).run()) == ["completed"] * 2

    run(main())
    assert warnings_of(caplog) == []
