"""Models and listeners that do their worst to a request: it ends once, as what it is, and the stop still stops it.

A comment "was a defect" marks what Halter itself once got wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
from typing import TYPE_CHECKING, Any

import pytest

from halter import NEVER, CancellationToken, Cancelled, current_token
from halter.events import RequestCancelled, RequestEvent
from halter.models import Finished, ModelCall, ModelEvent, ModelRequest, TextDelta
from halter.testing import Gate, ScriptedModel
from tests.support.model_calls import Log, exchange_for
from tests.support.wires import HELLO, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Own:
    """A user's own model: a function that makes its stream."""

    name = "m"

    def __init__(self, *streams: Any) -> None:
        self.streams = list(streams)

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Give the next stream."""
        given: AsyncIterator[ModelEvent] = self.streams.pop(0)()
        return given


async def whole() -> AsyncIterator[ModelEvent]:
    """Answer."""
    yield TextDelta("whole")
    yield Finished("stop")


def test_what_a_model_shares_is_cancelled_by_another_and_the_request_is_made_again() -> None:
    """One user's stop ended the requests of all who waited for the same start-up. Was a defect: it looked as if the
    task of the request had been cancelled.
    """

    async def scenario() -> None:
        shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked = asyncio.Event()

        async def waits() -> AsyncIterator[ModelEvent]:
            asked.set()
            await shared
            yield TextDelta("never")

        model, log = Own(waits, whole), Log()
        task = asyncio.create_task(exchange_for(model, log).run())
        await asked.wait()
        shared.cancel()
        assert (await task).text == "whole"
        assert log.kinds == ["started", "retry", "started", "finished"]

    run(scenario())


@pytest.mark.parametrize("foreign", [False, True], ids=["stop", "foreign"])
def test_a_listener_that_fails_at_the_end_does_not_hide_it(foreign: bool, caplog: pytest.LogCaptureFixture) -> None:
    """`wait_for` never raised TimeoutError. Was a defect: the listener's error took the place of the cancellation."""

    async def scenario() -> None:
        gate, token = Gate(), CancellationToken()

        def emit(event: RequestEvent) -> None:
            if isinstance(event, RequestCancelled):
                raise LookupError

        task = asyncio.create_task(ModelCall(ScriptedModel([gate]), HELLO, token=token, emit=emit).run())
        await gate.await_reached()
        if foreign:
            task.cancel()
        else:
            token.cancel("interrupt")
        with pytest.raises(asyncio.CancelledError if foreign else Cancelled):
            await task

    run(scenario())
    assert "a listener failed with RequestCancelled" in caplog.text


def test_an_error_without_words_is_raised_as_it_is() -> None:
    """Was a defect: telling of an error that cannot be shown raised another in its place."""

    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    async def fails() -> AsyncIterator[ModelEvent]:
        yield TextDelta("some")
        raise Unspeakable

    log = Log()
    with pytest.raises(Unspeakable):
        run(exchange_for(Own(fails), log).run())
    assert log.kinds == ["started", "finished"]


class Deaf:
    """A user's own model that does not end when it is cancelled, but when it is released."""

    name = "deaf"

    def __init__(self, manner: str) -> None:
        self.manner = manner
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.ended = asyncio.Event()
        self.asked = 0

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Be deaf the first time, and answer the second."""
        self.asked += 1
        if self.asked > 1:
            return whole()
        given = self._answer()
        return Unclosable(given, self) if self.manner == "aclose" else given

    async def _answer(self) -> AsyncIterator[ModelEvent]:
        try:
            yield TextDelta("some")
            await self._wait()
            if self.manner == "swallows":
                await self._hold_out()
                yield TextDelta("late")
                yield Finished("stop")
        finally:
            if self.manner == "finally":
                await self._hold_out()
            if self.manner != "aclose":
                self.ended.set()
        raise LookupError("late")

    async def _wait(self) -> None:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.manner != "swallows":
                raise

    async def _hold_out(self) -> None:
        while not self.released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.released.wait()


class Unclosable:
    """A stream whose goodbye takes its time."""

    def __init__(self, stream: AsyncIterator[ModelEvent], model: Deaf) -> None:
        self.stream = stream
        self.model = model

    def __aiter__(self) -> AsyncIterator[ModelEvent]:
        return self

    async def __anext__(self) -> ModelEvent:
        return await anext(self.stream)

    async def aclose(self) -> None:
        """Close, some day, and fail."""
        await self.model._hold_out()
        self.model.ended.set()
        raise LookupError("late")


MANNERS = ("swallows", "finally", "aclose")


@contextlib.asynccontextmanager
async def nothing_late(model: Deaf, exchange: ModelCall, log: Log) -> AsyncIterator[None]:
    """Release the model afterwards: it was held until then, and its late words and its late error go nowhere."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    try:
        yield
        told, answer = list(log), exchange.answer
        gc.collect()  # what nobody holds is gone now
    finally:
        model.released.set()
    await model.ended.wait()
    await asyncio.sleep(0)
    gc.collect()
    assert (log, exchange.answer, complaints) == (told, answer, [])


@pytest.mark.parametrize("manner", MANNERS)
def test_a_model_that_does_not_end_is_left_at_the_stop(manner: str, caplog: pytest.LogCaptureFixture) -> None:
    """A stop waited for a client's own graceful shutdown: a minute, with the spinner turning. Was a defect."""

    async def scenario() -> None:
        model, token, log = Deaf(manner), CancellationToken(), Log()
        exchange = exchange_for(model, log, token=token)
        task = asyncio.create_task(exchange.run())
        await model.reached.wait()
        token.cancel("interrupt")
        with pytest.raises(Cancelled, match="interrupt"):
            await asyncio.wait_for(task, 30)
        async with nothing_late(model, exchange, log):
            assert not model.ended.is_set()
            assert (exchange.answer.text, log.kinds) == ("some", ["started", "cancelled"])

    run(scenario())
    assert "the stream of 'deaf' was stopped but is still running" in caplog.text


@pytest.mark.parametrize("manner", MANNERS)
def test_a_model_that_does_not_end_is_left_when_the_task_is_cancelled(manner: str) -> None:
    """`wait_for` around a deaf model never raised TimeoutError. Was a defect."""

    async def scenario() -> None:
        model, log = Deaf(manner), Log()
        exchange = exchange_for(model, log)
        task = asyncio.create_task(exchange.run())
        await model.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 30)
        async with nothing_late(model, exchange, log):
            assert not model.ended.is_set()
            assert exchange.token.reason == "external"
            assert log.kinds == ["started", "cancelled"]

    run(scenario())


@pytest.mark.parametrize("manner", MANNERS)
def test_a_silent_model_that_does_not_end_is_left_and_asked_again(manner: str) -> None:
    """The watchdog barked, and the request hung all the same, in the clean-up of what had hung. Was a defect."""

    async def scenario() -> None:
        model, log = Deaf(manner), Log()
        model.stale_timeout = 0.02  # type: ignore[attr-defined]
        exchange = exchange_for(model, log)
        got = await asyncio.wait_for(exchange.run(), 30)
        async with nothing_late(model, exchange, log):
            assert not model.ended.is_set()
            assert (got.text, got.attempts) == ("whole", 2)
            assert log.kinds == ["started", "retry", "started", "finished"]

    run(scenario())


def test_the_model_sees_its_token_and_the_callers_context() -> None:
    """A tracing id that the caller had set was gone in the model's code, because that runs in a task of its own."""
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace")

    async def scenario() -> None:
        seen: list[object] = []

        async def looks() -> AsyncIterator[ModelEvent]:
            seen.extend((trace.get(), current_token().name))
            async for event in whole():
                yield event

        trace.set("t-1")
        await exchange_for(Own(looks)).run()
        assert seen == ["t-1", "attempt"]
        assert current_token() is NEVER

    run(scenario())
