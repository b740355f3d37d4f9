"""Usage that nobody reported: estimated, marked, and counted over all attempts of a request."""

from __future__ import annotations

from typing import Any

import pytest

from halter.events import RequestFinished
from halter.models import (
    Backoff,
    Finished,
    Image,
    ModelCall,
    ModelError,
    ModelRequest,
    Price,
    ProviderError,
    Reasoning,
    ReasoningDone,
    StreamBroken,
    ToolCall,
    ToolSpec,
    Usage,
    UserMessage,
)
from halter.models.estimate import messages_tokens, request_tokens
from halter.models.prices import Prices
from halter.testing import FakeProvider, ScriptedModel, answer, drop, status
from tests.support.model_calls import Log
from tests.support.wires import HELLO, WIRES, model_for, run

WHOLE = ["four words of text", Usage(1_000, 50), Finished("stop")]
PRICES = Prices({"scripted": Price(1.0, 10.0), "m": Price(1.0, 10.0)})


def call_of(*script: Any, request: ModelRequest = HELLO) -> ModelCall:
    return ModelCall(ScriptedModel(*script), request, emit=Log(), backoff=Backoff(base=0.0), prices=PRICES)


def test_a_report_is_no_estimate() -> None:
    """What the provider says of a complete answer is taken as it is, with its cost."""
    assert run(call_of(WHOLE).run()).usage == Usage(1_000, 50, cost=pytest.approx(0.0015))  # type: ignore[arg-type]


def test_an_answer_without_a_report_is_estimated() -> None:
    """Some servers report nothing: text, reasoning and calls are counted, and the cost follows from that."""
    usage = run(call_of(["x" * 400, ReasoningDone(Reasoning("y" * 40)), ToolCall("1", "look", "z" * 36)]).run()).usage
    assert (usage.input_tokens, usage.output_tokens, usage.is_estimated) == (request_tokens(HELLO), 120, True)
    assert usage.cost == pytest.approx((usage.input_tokens + 1_200) / 1e6)


def test_the_size_of_a_request() -> None:
    """Instructions, messages, images and tools count; letters of other scripts count for more."""
    small = request_tokens(HELLO)
    assert 0 < small < 20
    assert request_tokens(ModelRequest(HELLO.messages, "x" * 400)) == small + 100
    assert request_tokens(ModelRequest(HELLO.messages, tools=[ToolSpec("look", "x" * 400)])) > small + 100
    assert messages_tokens([UserMessage.of(Image(b"1"))]) > 1_000
    assert messages_tokens([UserMessage.of("字" * 400)]) > messages_tokens([UserMessage.of("a" * 400)]) * 2


@pytest.mark.parametrize("error", [ProviderError("no", status=500), ProviderError("no", status=429)])
def test_a_refused_attempt_has_used_nothing(error: ModelError) -> None:
    """An answer with an error status costs nothing, so only the attempt that worked counts."""
    assert run(call_of(error, WHOLE).run()).usage == run(call_of(WHOLE).run()).usage


@pytest.mark.parametrize("error", [StreamBroken("cut"), ProviderError("overloaded")])
def test_a_broken_attempt_counts(error: ModelError) -> None:
    """What a failed attempt has said was paid for, and is part of the request's usage, as an estimate."""
    call = call_of(["x" * 400, error], WHOLE)
    usage = run(call.run()).usage
    assert (usage.input_tokens, usage.output_tokens) == (1_000 + request_tokens(HELLO), 150)
    assert usage.is_estimated
    assert call.answer.usage == usage


def test_all_attempts_of_a_failed_request_count() -> None:
    """The event of a request that failed has what its attempts have used."""
    log = Log()
    broken = ("x" * 400, StreamBroken("cut"))
    model = ScriptedModel(broken, broken, broken)
    call = ModelCall(model, HELLO, emit=log, backoff=Backoff(base=0.0))
    with pytest.raises(StreamBroken):
        run(call.run())
    assert isinstance(log[-1], RequestFinished)
    assert log[-1].usage == call.answer.usage
    assert (log[-1].usage.output_tokens, log[-1].usage.cost) == (300, None)


@pytest.mark.parametrize("wire", WIRES)
def test_attempts_over_the_wire(wire: str) -> None:
    """A refusal, a dropped stream and an answer, on each wire: the second is estimated, the third reported."""
    with FakeProvider(status(500), drop(2), answer("ok")) as provider:
        call = ModelCall(model_for(wire, provider), HELLO, backoff=Backoff(base=0.0), prices=PRICES)
        usage = run(call.run()).usage
    assert usage.is_estimated
    assert usage.output_tokens == 6 + 1
    said = 10 if wire == "anthropic" else request_tokens(HELLO)  # Anthropic says it at the start of the stream
    assert usage.input_tokens == said + 10
    assert usage.cost == pytest.approx((usage.input_tokens + 10 * usage.output_tokens) / 1e6)
