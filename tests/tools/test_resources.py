"""What tools keep in a session."""

from __future__ import annotations

import asyncio
import threading

import pytest

from halter import Agent, ToolContext, tool
from halter.cancel import abandoned
from halter.models import ToolCall
from halter.testing import DeafTool, ScriptedModel
from halter.tools.resources import SessionResources
from tests.support.waiting import wait_until


class Thing:
    """Something to keep."""

    def __init__(self) -> None:
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_one_of_each_is_kept() -> None:
    """Whoever asks gets the same thing; another key, another thing."""
    resources = SessionResources()
    assert not resources
    assert resources.keep(Thing) is resources.keep(Thing)
    assert resources.keep(Thing) is not resources.keep(Thing, "other")
    assert resources


def test_those_who_come_together_get_the_same() -> None:
    """Of two things that are made at the same time one is kept, and the other is closed at once."""
    resources = SessionResources()
    meet = threading.Barrier(2)
    made: list[Thing] = []
    got: list[Thing] = []

    def make() -> Thing:
        thing = Thing()
        made.append(thing)
        meet.wait(10)
        return thing

    threads = [threading.Thread(target=lambda: got.append(resources.keep(make))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert got[0] is got[1]
    assert sorted(thing.closed for thing in made) == [0, 1]


def test_all_are_closed_in_bounded_time(caplog: pytest.LogCaptureFixture) -> None:
    """One that fails and one that hangs do not keep the others from being closed, nor the caller for long."""
    resources = SessionResources()
    thing = resources.keep(Thing)

    class Fails(Thing):
        def close(self) -> None:
            raise OSError("it broke")

    with DeafTool() as deaf:

        class Hangs(Thing):
            def close(self) -> None:
                deaf()

        resources.keep(Fails)
        resources.keep(Hangs)
        resources.close(timeout=0.05)
        assert "Hangs did not close in time" in caplog.text
        wait_until(lambda: thing.closed == 1)  # on a busy machine, that may take longer than was waited for
        wait_until(lambda: "it broke" in caplog.text)
    wait_until(lambda: len(abandoned) == 0)
    with pytest.raises(RuntimeError, match="session was closed"):
        resources.keep(Thing)


def test_what_a_tool_keeps_lasts_as_long_as_its_session() -> None:
    """Two turns find the same thing, another session its own, and closing the session closes it."""
    found: list[Thing] = []

    @tool
    def look(ctx: ToolContext) -> str:
        """Look."""
        found.append(ctx.keep(Thing))
        return "looked"

    def two_turns() -> None:
        model = ScriptedModel(ToolCall("1", "look"), "a", ToolCall("2", "look"), "b")
        with Agent(model, [look]).session() as session:
            session.run("one")
            session.run("two")
            assert found[-1].closed == 0

    two_turns()
    assert found[0] is found[1]
    assert found[0].closed == 1
    two_turns()
    assert found[2] is not found[0]


def test_all_is_closed_when_too_many_tools_are_stuck() -> None:
    """Was a defect: at the limit of stuck threads close() raised, and the session kept its lease."""
    closed: list[str] = []

    class Kept:
        def close(self) -> None:
            closed.append("closed")

    resources = SessionResources()
    resources.keep(Kept)
    limit, abandoned.limit = abandoned.limit, 0
    try:
        resources.close()
    finally:
        abandoned.limit = limit
    assert closed == ["closed"]


def test_an_object_whose_close_exits_its_thread_does_not_hold_up_the_others() -> None:
    """Whatever close() raises, the next one is closed, and nothing is raised."""
    closed: list[str] = []

    class Good:
        def close(self) -> None:
            closed.append("closed")

    class Bad:
        def close(self) -> None:
            raise SystemExit

    resources = SessionResources()
    resources.keep(Good)
    resources.keep(Bad)
    resources.close(timeout=20)
    assert closed == ["closed"]


def test_what_is_left_is_closed_when_the_wait_is_interrupted() -> None:
    """Was a defect: who cancelled aclose() while the browser closed slowly left the jobs running, for ever."""

    async def interrupted() -> None:
        closing, go = threading.Event(), threading.Event()

        class Slow(Thing):
            def close(self) -> None:
                closing.set()
                go.wait(10)

        resources = SessionResources()
        thing = resources.keep(Thing)
        resources.keep(Slow)
        task = asyncio.create_task(resources.aclose(timeout=20))
        await asyncio.to_thread(closing.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_until, lambda: thing.closed == 1)
        go.set()
        with pytest.raises(RuntimeError, match="session was closed"):
            resources.keep(Thing)

    asyncio.run(interrupted())
