"""A request: what is retried, what is not, who is asked next, and what is known of the answer at each moment."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import msgspec
import pytest

from halter import NEVER, CancellationToken, Cancelled, current_token
from halter.events import RequestCancelled, RequestEvent, RequestFinished, RequestRetry, RequestStarted
from halter.models import (
    Answer,
    Backoff,
    ConnectionFailed,
    ContextTooLong,
    Finished,
    ModelCall,
    ModelError,
    ModelEvent,
    ModelRequest,
    ProviderError,
    Reasoning,
    ReasoningDelta,
    ReasoningDone,
    StreamBroken,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from halter.testing import FakeProvider, Gate, ScriptedModel, answer, drop, hang_mid_stream, status, tool_calls
from tests.support.model_calls import Log, ask_all, exchange_for
from tests.support.wires import HELLO, WIRES, model_for, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BUSY = ProviderError("busy", status=503)
CALL = ToolCall("c1", "search", '{"query": "horses and halters"}')


# -- an answer --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer(wire: str) -> None:
    """The answer holds text, calls, usage and why it ended; the events are the model's, between start and finish."""

    async def scenario() -> None:
        async with FakeProvider(tool_calls([CALL], text="Let me look.")) as provider:
            log = Log()
            got = await ModelCall(model_for(wire, provider), HELLO, emit=log).run()
            assert (got.text, got.calls, got.unfinished) == ("Let me look.", [CALL], [])
            assert (got.status, got.reason, got.model, got.attempts) == ("complete", "tool_calls", "m", 1)
            assert got.usage.input_tokens == 10
            assert got.message.calls == [CALL]
            assert log.text == "Let me look."
            assert log[0] == RequestStarted("m", 1)
            assert log[-1] == RequestFinished("m", 1, "complete", "tool_calls", got.usage)

    run(scenario())


def test_the_answer_can_be_read_at_any_instant() -> None:
    """At each event the answer so far holds what was shown, whole thoughts and calls apart from half ones."""
    seen: list[Answer] = []
    events: list[ModelEvent] = [
        ReasoningDelta("hm"),
        ReasoningDone(Reasoning("hm", "signed")),
        TextDelta("one "),
        TextDelta("two"),
        ToolCallStarted(0, "a", "x"),
        ToolCallDelta(0, '{"k"'),
    ]
    model = ScriptedModel([*events, Usage(3, 4)])
    exchange = ModelCall(model, HELLO, emit=lambda _: seen.append(exchange.answer))
    assert exchange.answer == Answer(model="scripted", usage=Usage(cost=0.0))
    run(exchange.run())
    assert [each.text for each in seen[:6]] == ["", "", "", "one ", "one two", "one two"]
    assert seen[1].reasoning == [Reasoning("hm")]
    assert seen[2].reasoning == [Reasoning("hm", "signed")]
    assert seen[6].unfinished == [ToolCall("a", "x", '{"k"')]
    assert all(each.status == "partial" and not each.calls for each in seen[:8])
    assert seen[-1].usage == Usage(3, 4)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_call_at_which_the_answer_was_cut_is_not_whole(reason: str) -> None:
    """The model ran into its limit inside a call; what there is of it is valid JSON by chance, and must not be run."""
    other = ToolCall("c2", "delete", "{}")
    end = msgspec.convert({"type": "finished", "reason": reason}, Finished)
    got = run(ModelCall(ScriptedModel((CALL, other, end)), HELLO).run())
    assert got.calls == [CALL]
    assert got.unfinished == [other]
    text_after = ScriptedModel((CALL, "and", Finished("length")))
    assert run(ModelCall(text_after, HELLO).run()).calls == [CALL]


def test_events_and_answers_travel_as_json() -> None:
    """Each event is written with its name of the vocabulary, and read back as itself."""
    events: list[RequestEvent] = [
        RequestStarted("m", 1),
        RequestRetry("m", 2, 0.5, "busy", "some text"),
        RequestCancelled("m", 2, "interrupt", "typed"),
        RequestFinished("m", 2, "failed", error="busy"),
        TextDelta("x"),
    ]
    names = [msgspec.json.decode(msgspec.json.encode(event))["type"] for event in events]
    assert names == ["request.started", "request.retry", "request.cancelled", "request.finished", "text.delta"]
    for event in events:
        assert msgspec.json.decode(msgspec.json.encode(event), type=RequestEvent) == event
    got = Answer("t", [Reasoning("r")], [CALL], [], Usage(1), "stop", "", "m", 1, "complete")
    assert msgspec.json.decode(msgspec.json.encode(got), type=Answer) == got


def test_an_exchange_is_used_once() -> None:
    """A second run would mix two answers."""
    exchange = ModelCall(ScriptedModel("a", "b"), HELLO)
    run(exchange.run())
    with pytest.raises(RuntimeError, match="make a new one"):
        run(exchange.run())


def test_the_token_is_the_current_one_unless_given() -> None:
    """Without a token the current one holds; inside the model the attempt's own is current, afterwards it is not."""
    tokens: list[CancellationToken] = []

    class Curious(ScriptedModel):
        async def stream(self, _: ModelRequest) -> AsyncIterator[ModelEvent]:  # type: ignore[override]
            tokens.append(current_token())
            yield Finished("stop")

    async def scenario() -> None:
        with CancellationToken(name="mine").bind() as mine:
            exchange = ModelCall(Curious(), HELLO)
            await exchange.run()
            assert repr(tokens[0]) == "<CancellationToken mine/request/attempt live>"
            assert current_token() is mine
        await ModelCall(Curious(), HELLO, token=NEVER).run()

    run(scenario())


# -- retries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("code", [429, 500, 529])
def test_what_may_pass_is_tried_again(wire: str, code: int) -> None:
    """A busy provider is asked again; each retry is told, and the answer is that of the attempt that worked."""

    async def scenario() -> None:
        async with FakeProvider(status(code), status(code), answer("at last")) as provider:
            log = Log()
            got = await exchange_for(model_for(wire, provider), log).run()
            assert (got.text, got.attempts, got.status) == ("at last", 3, "complete")
            assert [event.attempt for event in log if isinstance(event, RequestRetry)] == [2, 3]
            assert log.kinds[:5] == ["started", "retry", "started", "retry", "started"]
            assert len(provider.requests) == 3

    run(scenario())


def test_retries_end() -> None:
    """A model is asked 1 + max_retries times and then its own error comes out; a model that does not say has 2."""
    for retries in (None, 0, 1, 4):
        model = ScriptedModel(*[BUSY] * 9)
        if retries is not None:
            model.max_retries = retries  # type: ignore[attr-defined]
        log = Log()
        with pytest.raises(ProviderError) as caught:
            run(exchange_for(model, log).run())
        assert caught.value is BUSY
        assert len(model.requests) == 1 + (2 if retries is None else retries)
        assert log[-1] == RequestFinished("scripted", len(model.requests), "failed", None, Usage(cost=0.0), "503: busy")


@pytest.mark.parametrize(
    "error",
    [
        ProviderError("no", status=400),
        ProviderError("who are you", status=401),
        ContextTooLong("long", status=400),
        ModelError("not an address"),
        ConnectionFailed("a certificate", retryable=False),
        TypeError("a bug in a model"),
    ],
)
def test_what_does_not_pass_is_not_tried_again(error: Exception) -> None:
    """An error that the next attempt would meet again comes out at once, as it is."""
    model = ScriptedModel(error, "never")
    log = Log()
    with pytest.raises(type(error)) as caught:
        run(exchange_for(model, log).run())
    assert caught.value is error
    assert len(model.requests) == 1
    assert log.kinds == ["started", "finished"]


def test_a_genuine_network_error_is_retried() -> None:
    """A connection that is lost in the middle is not our close: it is tried again."""

    async def scenario() -> None:
        async with FakeProvider(drop(after=0), answer("fine")) as provider:
            assert (await exchange_for(model_for("openai", provider)).run()).text == "fine"
            assert len(provider.requests) == 2

    run(scenario())


def test_a_broken_attempts_text_is_superseded_not_mixed() -> None:
    """Text was shown and the stream broke: the answer begins anew; the old text is told and recorded, not in it."""
    model = ScriptedModel(["half an ", CALL, "ans", StreamBroken("lost")], ["a whole answer"])
    log = Log()
    exchange = exchange_for(model, log)
    got = run(exchange.run())
    assert got.text == "a whole answer"
    assert got.calls == []
    retry = next(event for event in log if isinstance(event, RequestRetry))
    assert retry.superseded == "half an ans"
    assert got.attempts == 2
    assert log.rebuilt_answer(usage=got.usage) == got


def test_what_was_shown_is_kept_until_something_replaces_it() -> None:
    """A stop in the pause after a broken attempt, or before the next says anything, keeps the text on screen."""
    for script in ([["shown", StreamBroken("lost")]], [["shown", StreamBroken("lost")], Gate()]):
        token = CancellationToken()
        model = ScriptedModel(*script)

        def stop(event: RequestEvent, count: int = len(script), token: CancellationToken = token) -> None:
            if (isinstance(event, RequestRetry) and count == 1) or event == RequestStarted("scripted", 2):
                token.cancel()

        exchange = ModelCall(
            model, HELLO, token=token, emit=stop, backoff=Backoff(base=60.0 if len(script) == 1 else 0)
        )
        with pytest.raises(Cancelled):
            run(exchange.run())
        assert exchange.answer.text == "shown"
        assert exchange.answer.status == "partial"


def test_a_stream_without_an_end_is_broken() -> None:
    """A user's own model whose stream just ends has not finished: what it said may be cut anywhere."""

    class Forgetful:
        name = "forgetful"
        max_retries = 0

        async def stream(self, _: ModelRequest) -> AsyncIterator[ModelEvent]:
            yield TextDelta("and then")

    exchange = ModelCall(Forgetful(), HELLO)
    with pytest.raises(StreamBroken, match="ended without Finished"):
        run(exchange.run())
    assert exchange.answer.text == "and then"


def test_a_clean_up_that_fails_does_not_undo_the_answer() -> None:
    """The model had finished when its connection broke: nothing is asked again."""
    model = ScriptedModel(["whole", Finished("stop"), StreamBroken("while tidying up")], "never")
    assert run(exchange_for(model).run()).text == "whole"
    assert len(model.requests) == 1


def test_a_model_need_not_be_a_generator() -> None:
    """Any async iterator of events will do: one that has no aclose() has nothing to close."""

    class Steps:
        name = "steps"

        def __init__(self) -> None:
            self._events: list[ModelEvent] = [Finished("stop"), TextDelta("hi")]

        def stream(self, _: ModelRequest) -> Steps:
            return self

        def __aiter__(self) -> Steps:
            return self

        async def __anext__(self) -> ModelEvent:
            if not self._events:
                raise StopAsyncIteration
            return self._events.pop()

    assert run(ModelCall(Steps(), HELLO).run()).text == "hi"


# -- waits ------------------------------------------------------------------------------------------------------------


def test_waits_double_up_to_a_cap_and_are_never_in_step() -> None:
    """Half to all of 0.5, 1, 2, 4, 8, 8 … seconds."""
    backoff = Backoff()
    for retry, whole in enumerate([0.5, 1, 2, 4, 8, 8, 8]):
        delays = {backoff.delay(retry) for _ in range(50)}
        assert len(delays) > 1
        assert all(whole / 2 <= delay <= whole for delay in delays)
    assert backoff.delay(10_000) <= 8


def test_retry_after_is_a_lower_bound() -> None:
    """The provider knows best when to come back; asking for 0 s does not mean to be hammered."""
    assert Backoff().delay(0, 12.0) == 12.0
    assert Backoff().delay(3, 0.0) >= 2.0
    log = Log()
    model = ScriptedModel(ProviderError("slow down", status=429, retry_after=0.03), "ok")
    run(exchange_for(model, log).run())
    assert next(event for event in log if isinstance(event, RequestRetry)).delay == 0.03


def test_a_retry_after_of_minutes_is_not_slept_through() -> None:
    """The provider's own error comes out at once and says why nothing was waited for; a fallback is asked instead."""
    error = ProviderError("slow down", status=429, retry_after=3600)
    log = Log()
    with pytest.raises(ProviderError) as caught:
        run(exchange_for(ScriptedModel(error), log).run())
    assert caught.value is error
    assert "3600 s" in error.__notes__[0]
    assert log.kinds == ["started", "finished"]
    other = ScriptedModel("here", name="other")
    assert run(exchange_for(ScriptedModel(error), fallbacks=[other]).run()).model == "other"


# -- fallbacks --------------------------------------------------------------------------------------------------------


def test_fallbacks_are_asked_in_order() -> None:
    """Retries of one model first, then the next; the retry event names it, and attempts go on counting."""
    first = ScriptedModel(BUSY, BUSY, BUSY, name="first")
    second = ScriptedModel(ProviderError("no such model", status=404), name="second")
    third = ScriptedModel(["fi", "ne"], name="third")
    log = Log()
    got = run(exchange_for(first, log, fallbacks=[second, third]).run())
    assert (got.text, got.model, got.attempts) == ("fine", "third", 5)
    asked = [(event.model, event.attempt) for event in log if isinstance(event, RequestStarted)]
    assert asked == [("first", 1), ("first", 2), ("first", 3), ("second", 4), ("third", 5)]
    retries = [(event.model, event.attempt, event.delay) for event in log if isinstance(event, RequestRetry)]
    assert retries[2:] == [("second", 4, 0.0), ("third", 5, 0.0)]


@pytest.mark.parametrize(
    ("error", "asked"),
    [
        (ProviderError("who are you", status=401), True),
        (ProviderError("not you", status=403), True),
        (ProviderError("no such model", status=404), True),
        (ProviderError("no money", status=429, code="insufficient_quota"), True),
        (ModelError("not an address"), True),
        (ConnectionFailed("a certificate", retryable=False), True),
        (ProviderError("overloaded in the stream", code="overloaded_error"), True),
        (ProviderError("a bad request", status=400), False),
        (ProviderError("too large", status=413), False),
        (ProviderError("cannot be processed", status=422), False),
        (ProviderError("bad, in the stream", code="invalid_request_error"), False),
        (ContextTooLong("too long", status=400), False),
    ],
)
def test_a_fallback_is_for_what_is_not_the_requests_own_fault(error: ModelError, asked: bool) -> None:
    """A model that cannot be asked is replaced; a request that no model would take is for the caller to mend."""
    other = ScriptedModel("fine", name="other")
    exchange = exchange_for(ScriptedModel(*[error] * 3), fallbacks=[other])
    if asked:
        assert run(exchange.run()).model == "other"
    else:
        with pytest.raises(type(error)):
            run(exchange.run())
        assert other.requests == []


def test_when_all_fail_the_first_ones_error_is_raised() -> None:
    """What the user chose is what failed; that the others failed as well is noted on it."""
    error = ProviderError("busy", status=503)
    second = ScriptedModel(ProviderError("key?", status=401), name="second")
    third = ScriptedModel(*[ConnectionFailed("nobody there")] * 3, name="third")
    with pytest.raises(ProviderError) as caught:
        run(exchange_for(ScriptedModel(*[error] * 3), fallbacks=[second, third]).run())
    assert caught.value is error
    assert error.__notes__ == [
        "the fallback 'second' failed, too: 401: key?",
        "the fallback 'third' failed, too: nobody there",
    ]


def test_a_fallback_can_be_stopped_as_the_first_can() -> None:
    """Once on the fallback model, the request was synchronous and could not be stopped."""

    async def scenario() -> None:
        async with FakeProvider(status(404), hang_mid_stream()) as provider:
            token = CancellationToken()
            exchange = exchange_for(
                model_for("openai", provider), token=token, fallbacks=[model_for("anthropic", provider)]
            )
            task = asyncio.create_task(exchange.run())
            await provider.await_pieces(1, 2)
            token.cancel("interrupt")
            with pytest.raises(Cancelled):
                await task
            await provider.await_close(1)
            assert len(provider.requests) == 2

    run(scenario())


# -- whoever listens --------------------------------------------------------------------------------------------------


def test_an_error_of_the_listener_ends_the_request() -> None:
    """What `emit` raises comes out, and the connection is closed."""

    async def scenario() -> None:
        def refuse(event: RequestEvent) -> None:
            if isinstance(event, TextDelta):
                raise LookupError

        async with FakeProvider(hang_mid_stream()) as provider:
            with pytest.raises(LookupError):
                await ModelCall(model_for("openai", provider), HELLO, emit=refuse).run()
            await provider.await_close(1)
            assert len(provider.requests) == 1

    run(scenario())


def test_many_requests_at_once_do_not_meet() -> None:
    """Tokens, drafts and timers are each request's own."""
    texts = [f"answer {number}" for number in range(50)]
    models = [ScriptedModel([*text]) for text in texts]
    assert [got.text for got in run(ask_all(models))] == texts


def test_closed_by_us_is_one_debug_line(caplog: pytest.LogCaptureFixture) -> None:
    """Our own close is said at debug level, once, and is no warning; a request that ends well says nothing."""
    caplog.set_level(logging.DEBUG, logger="halter")
    run(ModelCall(ScriptedModel("fine"), HELLO).run())
    assert not caplog.records
    token = CancellationToken()
    exchange = exchange_for(ScriptedModel(["a", Gate()]), token=token, emit=lambda _: token.cancel("interrupt"))
    with pytest.raises(Cancelled):
        run(exchange.run())
    assert [(record.levelname, record.name) for record in caplog.records] == [("DEBUG", "halter.models.model_call")]
    assert "closed by us (interrupt)" in caplog.text


def test_the_first_request_imports_nothing_heavy_on_the_loop() -> None:
    """Lazy imports on the event loop delayed the first stop by a second."""
    program = """
        import asyncio, sys, threading, time
        from halter.models import ModelCall, ModelRequest, OpenAIModel, UserMessage
        assert "aiohttp" not in sys.modules
        on_loop = []
        class Watch:
            def find_spec(self, name, path=None, target=None):
                if threading.current_thread() is threading.main_thread():
                    on_loop.append(name)
        async def main():
            model = OpenAIModel("m", base_url=sys.argv[1])
            await ModelCall(model, ModelRequest([UserMessage.of("hi")])).run()
        sys.meta_path.insert(0, Watch())
        asyncio.run(main())
        assert "aiohttp" in sys.modules
        print([name for name in on_loop if not name.startswith(("encodings", "halter.cancel"))])
    """
    with FakeProvider() as provider:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), provider.openai_url],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
