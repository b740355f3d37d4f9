"""Watchdogs: a silent stream is given up in time, closed, and asked for again; and one that speaks is left alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from halter import CancellationToken, Cancelled
from halter.events import RequestEvent, RequestRetry, RequestStarted
from halter.models import (
    ConnectionFailed,
    Finished,
    ModelEvent,
    ModelRequest,
    StreamBroken,
    TextDelta,
    preload,
)
from halter.models.http.wire import HTTPModel
from halter.models.watchdog import Watchdog
from halter.testing import (
    FakeProvider,
    Gate,
    ScriptedModel,
    answer,
    hang_before_first_byte,
    hang_mid_stream,
    raw,
)
from tests.support.model_calls import Log, exchange_for
from tests.support.virtual_time import run_in_virtual_time
from tests.support.wires import WIRES, model_for, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

LATE = 5.0
"""What a busy machine may add to a timer. What is tested for would come minutes late, or never."""


@pytest.fixture(autouse=True, scope="module")
def _imported() -> None:
    """Import what requests need: in the first of them it would take longer than these limits."""
    preload()


class Patient(Log):
    """A log that gives the model all the time it needs once it is asked again: how soon a real server answers on a
    busy machine is not to be bet on.
    """

    def __init__(self, model: HTTPModel) -> None:
        self.model = model

    def __call__(self, event: RequestEvent) -> None:
        """Keep one."""
        super().__call__(event)
        if isinstance(event, RequestRetry):
            self.model.first_byte_timeout = self.model.stale_timeout = 30


async def connect(model: HTTPModel) -> None:
    """Make one request that is answered at once: the next one's limits are not for making the pool and connecting."""
    assert (await exchange_for(model).run()).text == "connected"


@pytest.mark.parametrize("wire", WIRES)
def test_no_first_byte(wire: str) -> None:
    """A provider that does not begin is closed, as it sees itself, before it is asked again; the retry is told."""

    async def scenario() -> None:
        async with FakeProvider(answer("connected"), hang_before_first_byte(), answer("there")) as provider:
            model = model_for(wire, provider)
            await connect(model)
            model.first_byte_timeout = 0.5
            log = Patient(model)
            got = await exchange_for(model, log).run()
            assert (got.text, got.attempts) == ("there", 2)
            assert await provider.await_close(1) <= provider.requests[2].received + LATE
            retry = next(event for event in log if isinstance(event, RequestRetry))
            assert retry.error == "the provider did not start to answer within 0.5 s"
            assert len(provider.requests) == 3

    run(scenario())


@pytest.mark.parametrize("wire", WIRES)
def test_a_stale_stream(wire: str) -> None:
    """A stream that falls silent is closed and asked for again; what it had said is superseded."""

    async def scenario() -> None:
        async with FakeProvider(hang_mid_stream(after=2), answer("there")) as provider:
            model = model_for(wire, provider, stale_timeout=1.0)
            log = Patient(model)
            got = await exchange_for(model, log).run()
            assert got.text == "there"
            retry = next(event for event in log if isinstance(event, RequestRetry))
            assert retry.error == "the answer started, and then nothing arrived for 1 s"
            assert retry.superseded == "some words that are not "
            await provider.await_close(1)
            assert provider.requests[0].closed is not None
            assert len(provider.requests) == 2

    run(scenario())


@pytest.mark.parametrize(("script", "kind"), [([[Gate()]] * 3, ConnectionFailed), ([["a", Gate()]] * 3, StreamBroken)])
def test_always_silent(script: list[Any], kind: type[Exception]) -> None:
    """After the last retry the watchdog's own words come out; then a fallback is asked, if there is one."""
    model = ScriptedModel(*script)
    model.first_byte_timeout = model.stale_timeout = 0.01  # type: ignore[attr-defined]
    with pytest.raises(kind, match=r"0\.01 s"):
        run(exchange_for(model).run())
    assert [seen.state for seen in model.streams] == ["cancelled"] * 3
    model = ScriptedModel(*script)
    model.first_byte_timeout = model.stale_timeout = 0.01  # type: ignore[attr-defined]
    assert run(exchange_for(model, fallbacks=[ScriptedModel("yes", name="other")]).run()).model == "other"


def test_it_is_not_late() -> None:
    """The stale-stream watchdog lived in the thread it watched and fired six hours late.

    Here what reads hangs for ever, and a first event just before the first look, with a long time for the first byte,
    does not put the second look off.
    """

    class Once:
        name = "once"
        max_retries = 0
        first_byte_timeout = 300.0
        stale_timeout = 0.2
        said = 0.0

        async def stream(self, _: ModelRequest) -> AsyncIterator[ModelEvent]:
            await asyncio.sleep(0.15)
            self.said = time.monotonic()
            yield TextDelta("hello")
            await asyncio.Event().wait()

    model = Once()
    with pytest.raises(StreamBroken):
        run(exchange_for(model).run())
    assert 0.19 < time.monotonic() - model.said < 0.2 + LATE


class FastClock:
    """The running loop's clock, which goes 20 s ahead after each sign of life.

    So a stream takes longer than limits that are far too long for a busy machine to reach.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        self._is_due = False
        loop = asyncio.get_running_loop()
        real, on_bytes = loop.time, Watchdog.on_bytes

        def heard(watchdog: Watchdog) -> None:
            on_bytes(watchdog)
            # Once for all that is read in one turn: else they would add up to a silence that is too long.
            if not self._is_due:
                self._is_due = True
                loop.call_soon(self._jump)

        monkeypatch.setattr(loop, "time", lambda: real() + self.ahead)
        monkeypatch.setattr(Watchdog, "on_bytes", heard)

    def _jump(self) -> None:
        self.ahead += 20.0
        self._is_due = False


def test_a_stream_that_speaks_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces that come just in time, for much longer than the limit, are no silence."""

    async def scenario() -> None:
        async with FakeProvider(answer(chunks=["x"] * 30, interval=0.02)) as provider:
            model = model_for("openai", provider, stale_timeout=30, first_byte_timeout=30)
            clock = FastClock(monkeypatch)
            got = await exchange_for(model).run()
            assert (got.text, got.attempts) == ("x" * 30, 1)
            assert clock.ahead > 60

    run(scenario(), limit=2000)  # by the fast clock


PINGS = {
    "openai": b": OPENROUTER PROCESSING\n\n",
    "anthropic": b'event: ping\ndata: {"type": "ping"}\n\n',
    "responses": b": ping\n\n",
    "gemini": b": ping\n\n",
    "whole": b"\n",
}
ENDINGS = {
    "openai": b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    "anthropic": b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    b'"content_block":{"type":"text","text":"x"}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n',
    "responses": b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed"}}\n\n',
    "gemini": b'data: {"candidates":[{"content":{"parts":[{"text":"x"}]},"finishReason":"STOP"}]}\n\n',
    "whole": b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}',
}


@pytest.mark.parametrize("wire", PINGS)
def test_a_provider_that_pings_is_not_silent(monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    """A model thought for minutes, its provider pinged all the while, and the answer was thrown away as stale.

    What is sent are comments, pings, or blank lines in front of an answer in one piece: longer than either limit.
    """
    kind = "application/json" if wire == "whole" else "text/event-stream"
    reply = raw(*[PINGS[wire]] * 15, ENDINGS[wire], interval=0.05, content_type=kind)

    async def scenario() -> None:
        async with FakeProvider(reply) as provider:
            model = model_for("openai" if wire == "whole" else wire, provider)
            model.first_byte_timeout = model.stale_timeout = 30
            clock = FastClock(monkeypatch)
            got = await exchange_for(model).run()
            assert (got.text, got.attempts) == ("x", 1)
            assert clock.ahead > 60

    run(scenario(), limit=2000)  # by the fast clock


@pytest.mark.parametrize("wire", WIRES)
def test_a_provider_that_stops_pinging_is_silent(wire: str) -> None:
    """Pings prove nothing about the time after them: when they end, too, the stream is given up and asked for again."""

    async def scenario() -> None:
        pings = raw(PINGS[wire], b"never", interval=60.0)
        async with FakeProvider(answer("connected"), pings, answer("there")) as provider:
            model = model_for(wire, provider)
            await connect(model)
            model.first_byte_timeout = model.stale_timeout = 0.5
            log = Patient(model)
            got = await exchange_for(model, log).run()
            assert (got.text, got.attempts) == ("there", 2)
            retry = next(event for event in log if isinstance(event, RequestRetry))
            assert retry.error == "the provider sent keep-alives, and then nothing arrived for 0.5 s"
            await provider.await_close(1)

    run(scenario())


@pytest.mark.parametrize("wire", WIRES)
def test_a_ping_does_not_shorten_the_time_for_the_first_byte(wire: str) -> None:
    """A server that says early that it is there, and then reads a long prompt, has all of the time it was given."""

    async def scenario() -> None:
        async with FakeProvider(raw(PINGS[wire], ENDINGS[wire], interval=0.6)) as provider:
            # Not too short: it holds for the end of the body, too, which is sent separately, and Gemini waits for that.
            got = await exchange_for(model_for(wire, provider, first_byte_timeout=30, stale_timeout=0.3)).run()
            assert (got.text, got.attempts) == ("x", 1)

    run(scenario())


@pytest.mark.parametrize(("first", "stale", "reason"), [(0.05, None, "timeout"), (None, 0.05, None)])
def test_a_ping_where_there_is_no_limit(first: float | None, stale: float | None, reason: str | None) -> None:
    """A sign of life neither takes the one limit away that there is, nor makes one where there is none."""

    async def scenario() -> None:
        token = CancellationToken()
        with Watchdog(token, first=first, stale=stale) as watchdog:
            watchdog.on_bytes()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(token.wait_async(), 30 if reason else 0.2)
        assert token.reason == reason

    run(scenario())


def test_a_loop_that_was_held_up_is_not_the_providers_silence() -> None:
    """Somebody blocks the loop for longer than the limit. What came meanwhile lies unread, and is read first."""

    async def scenario() -> None:
        async with FakeProvider(answer(chunks=["x"] * 30, interval=0.01)) as provider:

            def emit(event: RequestEvent) -> None:
                if isinstance(event, TextDelta) and not held:
                    held.append(1)
                    asyncio.get_running_loop().call_later(0.02, time.sleep, 1.2)

            held: list[int] = []
            model = model_for("openai", provider, stale_timeout=1.0)
            got = await exchange_for(model, emit=emit).run()
            assert (got.text, got.attempts) == ("x" * 30, 1)

    run(scenario())


def test_what_was_read_in_the_same_turn_is_heard_before_it_barks() -> None:
    """The loop comes back from a hold-up with bytes to read and the watchdog due: the reader's turn comes first."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()

        def hold_up() -> None:
            time.sleep(0.1)
            theirs.send(b"x")

        def read() -> None:
            # As a transport does: it wakes the task that waits, which runs in the loop's next turn.
            ours.recv(1)
            loop.call_soon(hear)

        def hear() -> None:
            watchdog.last = loop.time()
            heard.set()

        heard = asyncio.Event()
        with ours, theirs, Watchdog(token := CancellationToken(), first=0.05, stale=1.0) as watchdog:
            loop.add_reader(ours, read)
            hold_up()  # here and not in a turn of its own: in that the watchdog might be due before there is a byte
            await heard.wait()
            loop.remove_reader(ours)
            assert not token.is_cancelled
            await token.wait_async()
            assert token.reason == "stale"

    run(scenario())


def test_a_stop_beats_the_watchdog() -> None:
    """Both in one turn of the loop: it was stopped, and a stopped request is not retried."""

    async def scenario() -> None:
        gate, token = Gate(), CancellationToken()
        model = ScriptedModel(gate, "never")
        model.first_byte_timeout = 0.3  # type: ignore[attr-defined]
        exchange = exchange_for(model, token=token)
        task = asyncio.create_task(exchange.run())
        while not model.requests:  # noqa: ASYNC110 - not by a thread: until it woke us, the watchdog might bark
            await asyncio.sleep(0)
        time.sleep(0.35)  # noqa: ASYNC251 - the loop is held up until the watchdog is due
        token.cancel("interrupt")
        with pytest.raises(Cancelled, match="interrupt"):
            await task
        assert len(model.requests) == 1

    run(scenario())


def test_a_late_piece_goes_nowhere() -> None:
    """A superseded attempt wakes up after all: its stream was closed before the next began, so nobody hears it."""
    order: list[str] = []

    class Sleepy:
        name = "sleepy"
        first_byte_timeout = 0.02
        asked = 0

        async def stream(self, _: ModelRequest) -> AsyncIterator[ModelEvent]:
            self.asked += 1
            number = self.asked
            try:
                if number == 1:
                    try:
                        await asyncio.sleep(60)
                    except asyncio.CancelledError:
                        # Ill-mannered: it goes on as if nothing had happened.
                        yield TextDelta("late ")
                        yield TextDelta("later ")
                yield TextDelta("fresh")
                yield Finished("stop")
            finally:
                order.append(f"end {number}")

    log = Log()

    def emit(event: RequestEvent) -> None:
        log(event)
        if isinstance(event, RequestStarted):
            order.append(f"start {event.attempt}")

    got = run(exchange_for(Sleepy(), emit=emit).run())
    assert got.text == log.text == "fresh"
    assert order == ["start 1", "end 1", "start 2", "end 2"]


def test_none_is_no_limit() -> None:
    """A model may have no limits at all; then no timer is made."""
    model = ScriptedModel(["a", "b"])
    model.first_byte_timeout = model.stale_timeout = None  # type: ignore[attr-defined]
    assert run(exchange_for(model).run()).text == "ab"


def test_one_timer_for_a_whole_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand pieces cost no more timers than one; and none is left behind."""
    made = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        call_at = loop.call_at

        def counting(*args: Any, **options: Any) -> asyncio.TimerHandle:
            handle = call_at(*args, **options)
            made.append(handle)
            return handle

        monkeypatch.setattr(loop, "call_at", counting)
        await exchange_for(ScriptedModel(["x"] * 1000)).run()
        assert len(made) == 1
        assert made[0].cancelled()

    run(scenario())


def ticks() -> Iterator[float]:
    """When events come, in seconds: regular, in bursts, and just in time."""
    yield from (0.01, 0.01, 0.03, 0.0, 0.0, 0.03, 0.02)


@pytest.mark.parametrize(("first", "stale"), [(0.1, 0.05), (0.05, 0.1), (None, 0.05), (0.05, None)])
def test_the_watchdog_itself(first: float | None, stale: float | None) -> None:
    """It barks at the right limit, at its time, and once."""

    async def scenario() -> None:
        token = CancellationToken()
        with Watchdog(token, first=first, stale=stale) as watchdog:
            for pause in ticks():
                await asyncio.sleep(pause)
                watchdog.last = asyncio.get_running_loop().time()
            assert not token.is_cancelled
            if stale is None:
                await asyncio.sleep(0.1)
                assert not token.is_cancelled
                return
            await token.wait_async()
            late = asyncio.get_running_loop().time() - watchdog.last - stale
            assert late == pytest.approx(0, abs=0.001)
        assert token.reason == "stale"
        assert isinstance(watchdog.error, StreamBroken)

    run_in_virtual_time(scenario())
