"""Stopping a request: at once, as the server sees it, for ever, and without harm to any other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING

import pytest

from halter import CancellationToken, Cancelled, current_token
from halter.events import RequestCancelled, RequestEvent, RequestRetry, RequestStarted
from halter.models import (
    Answer,
    ConnectionFailed,
    Finished,
    ModelCall,
    ModelEvent,
    ModelRequest,
    OpenAIModel,
    ProviderError,
    StreamBroken,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
    preload,
)
from halter.testing import (
    FakeProvider,
    Gate,
    ScriptedModel,
    ScriptedReply,
    assert_cancels_within,
    hang_before_first_byte,
    hang_mid_stream,
    raw,
    status,
)
from tests.support.model_calls import Log, exchange_for, stop_soon
from tests.support.wires import HELLO, WIRES, model_for, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROMPT = 5.0
"""How soon control must be back and the server must see the end. Usually a millisecond; a busy machine needs more."""

CALL = ToolCall("c1", "write", '{"path": "a.txt", "text": "some long text that comes in many pieces"}')
HALF_A_CALL = ScriptedReply(("I will write. ",), (CALL,), fault="hang", after=4)


def assert_stopped(log: Log, attempt: int = 1) -> None:
    """One end, which says who and why, and nothing about a retry after it."""
    assert log[-1] == RequestCancelled("m", attempt, "interrupt", "typed")
    assert log.kinds.count("cancelled") == 1
    assert "finished" not in log.kinds


# -- as the server sees it --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "moment"),
    [
        (wire, moment)
        for wire in WIRES
        for moment in ("first-byte", "headers", "mid-stream", "half-a-call")
        if (wire, moment) != ("gemini", "half-a-call")  # its calls come in one piece
    ],
)
def test_a_stop_closes_the_connection(wire: str, moment: str) -> None:
    """A stop before the first byte returned fast, but the server went on generating for minutes. It sees the end now.

    Exactly one request was made, and our own close was not taken for a network error and retried.
    """
    replies = {
        "first-byte": hang_before_first_byte(),
        "headers": hang_mid_stream(after=0),
        "mid-stream": hang_mid_stream(after=3),
        "half-a-call": HALF_A_CALL,
    }

    async def scenario() -> None:
        async with FakeProvider(replies[moment]) as provider:
            token = CancellationToken()
            log, shown = Log(), asyncio.Event()

            def emit(event: RequestEvent) -> None:
                log(event)
                if len(log.text) >= 36 or isinstance(event, ToolCallDelta):
                    shown.set()

            exchange = exchange_for(model_for(wire, provider), emit=emit, token=token)
            task = asyncio.create_task(exchange.run())
            await provider.await_request(1)
            if moment in {"mid-stream", "half-a-call"}:
                await shown.wait()
            at = stop_soon(token)
            with pytest.raises(Cancelled) as caught:
                await task
            assert time.monotonic() - at < PROMPT
            assert caught.value.belongs_to(token)
            assert (caught.value.reason, caught.value.detail) == ("interrupt", "typed")
            assert await provider.await_close(1) - at < PROMPT
            assert len(provider.requests) == len(provider.connections) == 1
            assert_stopped(log)
            assert_partial(exchange.answer, moment)

    run(scenario())


def assert_partial(got: Answer, moment: str) -> None:
    """See that what had come is there, and nothing else."""
    assert (got.status, got.reason, got.calls) == ("partial", None, [])
    if moment == "mid-stream":
        assert got.text == "some words that are not the whole of"
    elif moment == "half-a-call":
        assert got.text == "I will write. "
        assert [(call.id, call.name) for call in got.unfinished] == [("c1", "write")]
        assert 0 < len(got.unfinished[0].arguments) < len(CALL.arguments)
        assert got.message.calls == []
    else:
        assert (got.text, got.unfinished) == ("", [])


def test_a_stop_while_connecting() -> None:
    """A connect that gets no answer, because the listener's queue is full, is given up at once, and not tried again."""

    async def scenario() -> None:
        with socket.socket() as listening, contextlib.ExitStack() as others:
            listening.bind(("127.0.0.1", 0))
            listening.listen(0)
            for _ in range(3):  # fill the queue: later connects wait
                other = others.enter_context(socket.socket())
                other.settimeout(0)
                with contextlib.suppress(BlockingIOError):
                    other.connect(listening.getsockname())
            model = OpenAIModel("m", base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", api_key="k")
            await asyncio.to_thread(preload)
            token, log = CancellationToken(), Log()
            task = asyncio.create_task(exchange_for(model, log, token=token).run())
            for _ in range(20):
                await asyncio.sleep(0)
            at = stop_soon(token)
            with pytest.raises(Cancelled):
                await task
            assert time.monotonic() - at < PROMPT
            assert log.kinds == ["started", "cancelled"]

    run(scenario())


def test_a_stop_in_the_pause_before_a_retry() -> None:
    """Back-off sleeps ignored the stop. This one is over at once, and the request is not made again."""

    async def scenario() -> None:
        async with FakeProvider(status(429, retry_after=50)) as provider:
            announced = asyncio.Event()
            log = Log()

            def emit(event: RequestEvent) -> None:
                log(event)
                if isinstance(event, RequestRetry):
                    announced.set()

            token = CancellationToken()
            task = asyncio.create_task(ModelCall(model_for("openai", provider), HELLO, token=token, emit=emit).run())
            await announced.wait()
            await asyncio.sleep(0)
            at = stop_soon(token)
            with pytest.raises(Cancelled):
                await task
            assert time.monotonic() - at < PROMPT
            assert len(provider.requests) == 1
            assert_stopped(log)

    run(scenario())


def test_a_stop_before_it_began() -> None:
    """A stop during start-up, before the first await, was lost. Here no request is made at all."""

    async def scenario() -> None:
        async with FakeProvider() as provider:
            token = CancellationToken()
            token.cancel("interrupt", detail="typed")
            log = Log()
            exchange = exchange_for(model_for("openai", provider), log, token=token)
            with pytest.raises(Cancelled):
                await exchange.run()
            assert not provider.connections
            assert log == [RequestCancelled("m", 0, "interrupt", "typed")]
            assert exchange.answer == Answer(model="m", usage=Usage(cost=0.0))

    run(scenario())


def test_a_stop_of_this_request_alone() -> None:
    """Its own token stops the request and not what is above it."""

    async def scenario() -> None:
        token = CancellationToken()
        gate = Gate()
        exchange = exchange_for(ScriptedModel(["a", gate]), token=token)
        task = asyncio.create_task(exchange.run())
        await gate.await_reached()
        exchange.token.cancel("steer")
        with pytest.raises(Cancelled) as caught:
            await task
        assert caught.value.belongs_to(exchange.token)
        assert not caught.value.belongs_to(token)
        assert not token.is_cancelled

    run(scenario())


def test_a_strangers_cancelled_is_not_ours() -> None:
    """A model that lets the Cancelled of a token of its own out is neither retried nor taken for stopped by us."""
    stranger = CancellationToken()
    stranger.cancel("theirs")
    model = ScriptedModel(["whole", Finished("stop"), Cancelled(stranger)], "never")
    token = CancellationToken()
    with pytest.raises(Cancelled) as caught:
        run(exchange_for(model, token=token).run())
    assert caught.value.token is stranger
    assert not token.is_cancelled
    assert len(model.requests) == 1


def test_a_deadline_above_is_a_stop() -> None:
    """A turn's own time limit has the reason of a watchdog, but it is the turn's: nothing is retried."""
    model = ScriptedModel(Gate(), "never")
    log = Log()
    with pytest.raises(Cancelled, match="timeout"):
        run(exchange_for(model, log, token=CancellationToken(timeout=0.5)).run())
    assert len(model.requests) == 1
    assert log.kinds == ["started", "cancelled"]


# -- at every decision ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ConnectionFailed("lost"), StreamBroken("lost"), ProviderError("busy", status=503)])
def test_what_our_own_close_breaks_is_cancelled_not_broken(error: Exception) -> None:
    """Our own close was taken for a network error and retried, each retry stalling for up to 300 s.

    This model does as a blocking client would: its connection is shut down by the stop, and what it says of it is that
    the network failed.
    """

    class Abrupt(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:  # type: ignore[override]
            with contextlib.suppress(asyncio.CancelledError):
                async for event in super().stream(request):
                    yield event
            raise error

    async def scenario() -> None:
        gate, token, log = Gate(), CancellationToken(), Log()
        model, other = Abrupt(["a", gate], "never"), ScriptedModel("never", name="other")
        task = asyncio.create_task(exchange_for(model, log, token=token, fallbacks=[other]).run())
        await gate.await_reached()
        token.cancel("interrupt")
        with pytest.raises(Cancelled):
            await task
        assert len(model.requests) == 1
        assert not other.requests
        assert log.kinds == ["started", "cancelled"]

    run(scenario())


@pytest.mark.parametrize("moment", ["error", "retry", "fallback", "started"])
def test_the_token_is_asked_at_each_decision(moment: str) -> None:
    """A stop that comes exactly between an error and what would follow it: nothing follows."""
    token, log = CancellationToken(), Log()
    made: list[ModelRequest] = []

    class Failing(ScriptedModel):
        max_retries = 0 if moment == "fallback" else 2

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:  # type: ignore[override]
            made.append(request)
            yield TextDelta("some text")
            if moment == "error":
                token.cancel()
            raise StreamBroken

    def emit(event: RequestEvent) -> None:
        log(event)
        if isinstance(event, RequestRetry) and moment in {"retry", "fallback"}:
            token.cancel()
        if isinstance(event, RequestStarted) and event.attempt == 2 and moment == "started":
            token.cancel()

    other = ScriptedModel("never", name="other")
    with pytest.raises(Cancelled):
        run(exchange_for(Failing(), token=token, emit=emit, fallbacks=[other]).run())
    assert len(made) == 1
    assert not other.requests
    expected = {
        "error": ["started", "cancelled"],
        "retry": ["started", "retry", "cancelled"],
        "fallback": ["started", "retry", "cancelled"],
        "started": ["started", "retry", "started", "cancelled"],
    }
    assert log.kinds == expected[moment]


def test_nothing_is_shown_after_the_stop() -> None:
    """A hundred pieces arrive in one read, and the first of them brings the stop: the others are not shown any more."""
    pieces = b"".join(b'data: {"choices":[{"delta":{"content":"%d "}}]}\n\n' % number for number in range(100))

    async def scenario() -> None:
        async with FakeProvider(raw(pieces, b"data: [DONE]\n\n", interval=60.0)) as provider:
            token, log = CancellationToken(), Log()

            def emit(event: RequestEvent) -> None:
                log(event)
                if isinstance(event, TextDelta):
                    token.cancel()

            exchange = exchange_for(model_for("openai", provider), emit=emit, token=token)
            with pytest.raises(Cancelled):
                await exchange.run()
            assert log.text == exchange.answer.text == "0 "
            await provider.await_close(1)

    run(scenario())


def test_an_answer_that_is_whole_stands() -> None:
    """The stop comes when the model has finished: the answer is not thrown away, and control is back all the same.

    The server keeps the body open behind [DONE], so there is still something to stop: it is closed.
    """
    done = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'

    async def scenario() -> None:
        async with FakeProvider(raw(done, b": more\n\n", interval=60.0)) as provider:
            token, log = CancellationToken(), Log()

            def emit(event: RequestEvent) -> None:
                log(event)
                if isinstance(event, Finished):
                    token.cancel()

            got = await exchange_for(model_for("openai", provider), emit=emit, token=token).run()
            assert (got.text, got.status) == ("x", "complete")
            assert log.kinds == ["started", "finished"]
            await provider.await_close(1)

    run(scenario())


# -- foreign cancellations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reply", [hang_before_first_byte(), hang_mid_stream(), status(503, retry_after=50)])
def test_a_foreign_cancellation_wins(reply: ScriptedReply) -> None:
    """A timeout around it never raised TimeoutError: the cancellation was swallowed. Now it comes out."""

    async def scenario() -> None:
        async with FakeProvider(reply) as provider:
            log, token, retries = Log(), CancellationToken(), asyncio.Event()

            def emit(event: RequestEvent) -> None:
                log(event)
                if isinstance(event, RequestRetry):
                    retries.set()

            exchange = ModelCall(model_for("openai", provider), HELLO, token=token, emit=emit)
            limit = asyncio.timeout(None)

            async def limited() -> None:
                async with limit:
                    await exchange.run()

            task = asyncio.create_task(limited())
            await provider.await_request(1)
            if reply.status != 200:
                await retries.wait()
            limit.reschedule(asyncio.get_running_loop().time())
            with pytest.raises(TimeoutError):
                await task
            assert isinstance(log[-1], RequestCancelled)
            assert log[-1].reason == exchange.token.reason == "external"
            assert not token.is_cancelled
            if reply.status == 200:
                await provider.await_close(1)
            assert len(provider.requests) == 1

    run(scenario())


def test_when_both_cancel_the_stranger_wins() -> None:
    """A stop and a foreign cancellation in one turn of the loop: CancelledError, with the stop's reason on record."""

    async def scenario() -> None:
        for order in (0, 1):
            gate, token, log = Gate(), CancellationToken(), Log()
            task = asyncio.create_task(exchange_for(ScriptedModel([gate]), log, token=token).run())
            await gate.await_reached()
            for act in (token.cancel, task.cancel) if order else (task.cancel, token.cancel):
                act()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert log[-1] == RequestCancelled("scripted", 1, "interrupt")

    run(scenario())


def test_a_model_that_makes_an_error_of_a_foreign_cancellation() -> None:
    """It is neither retried nor lost: the cancellation was meant for whoever asked."""

    class Muddled(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:  # type: ignore[override]
            try:
                async for event in super().stream(request):
                    yield event
            except asyncio.CancelledError as exc:
                message = "connection reset"
                raise ConnectionFailed(message) from exc

    async def scenario() -> None:
        gate = Gate()
        model, other = Muddled(gate, "never"), ScriptedModel("never", name="other")
        task = asyncio.create_task(exchange_for(model, fallbacks=[other]).run())
        await gate.await_reached()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(model.requests) == 1
        assert not other.requests

    run(scenario())


def test_a_stop_leaves_no_cancellation_behind() -> None:
    """The task that asked goes on: its next await is not cancelled, and its count of cancellations is 0."""

    async def scenario() -> None:
        async with assert_cancels_within(PROMPT) as token:
            await exchange_for(ScriptedModel(["a", Gate()]), token=token).run()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)
        assert current_token().is_cancelled is False

    run(scenario())
