"""Errors: the provider's own words, and whether trying again may help."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from halter.models import ConnectionFailed, ContextTooLong, ModelError, ProviderError, StreamBroken
from halter.models.errors import provider_error
from halter.testing import FakeProvider, ScriptedReply, raw, status
from tests.support.wires import KEY, WIRES, ask, model_for


def body(**error: object) -> bytes:
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize(
    ("data", "message", "code"),
    [
        (body(message="Rate limit", type="requests", code="rate_limit_exceeded"), "Rate limit", "rate_limit_exceeded"),
        (
            b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
            "Overloaded",
            "overloaded_error",
        ),
        (b'{"error":"model \\"x\\" not found"}', 'model "x" not found', ""),
        (b'[{"error":{"code":429,"message":"Quota","status":"RESOURCE_EXHAUSTED"}}]', "Quota", "RESOURCE_EXHAUSTED"),
        (b'{"detail":"Not Found"}', "Not Found", ""),
        (b'{"detail":[{"loc":["body"],"msg":"bad"}]}', '[{"loc":["body"],"msg":"bad"}]', ""),
        (b'{"object":"error","message":"bad","type":"BadRequestError","code":400}', "bad", "BadRequestError"),
        (b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>", "502 Bad Gateway", ""),
        (b"<h1>Blocked</h1><p>by  a wall</p>", "Blocked by a wall", ""),
        (b"upstream connect error", "upstream connect error", ""),
        (b"", "the provider answered with status 500 and no text", ""),
        (b"\xff\xfe", "\ufffd\ufffd", ""),
        (b"[" * 100_000, "[" * 2000, ""),
    ],
)
def test_any_body_is_read(data: bytes, message: str, code: str) -> None:
    """Whatever a server sends with an error becomes its words."""
    error = provider_error(data, status=500)
    assert (error.message, error.code) == (message, code)
    assert message in str(error)


@pytest.mark.parametrize(
    ("code", "again"),
    [
        *((code, False) for code in (400, 401, 403, 404, 422)),
        *((code, True) for code in (408, 409, 429, 500, 503, 529)),
    ],
)
def test_which_status_may_pass(code: int, again: bool) -> None:
    """Overload, limits and the server's own failures may pass; a wrong request does not become right."""
    assert provider_error(body(message="x"), status=code).retryable is again


def test_what_else_decides() -> None:
    """A used-up quota does not refill, an error in the stream may pass, and the provider's own advice comes first."""
    assert not provider_error(body(message="x", code="insufficient_quota"), status=429).retryable
    assert provider_error(body(message="x", type="overloaded_error")).retryable
    assert not provider_error(body(message="x", type="invalid_request_error")).retryable
    assert provider_error(b"", status=400, headers={"x-should-retry": "true"}).retryable
    assert not provider_error(b"", status=500, headers={"x-should-retry": "false"}).retryable
    assert StreamBroken("x").retryable
    assert ConnectionFailed("x").retryable
    assert not ModelError("x").retryable


@pytest.mark.parametrize(
    "data",
    [
        body(message="This model's maximum context length is 8192 tokens", code="context_length_exceeded"),
        body(message="prompt is too long: 208310 tokens > 200000 maximum", type="invalid_request_error"),
        body(message="the request exceeds the available context size", type="exceed_context_size_error"),
        body(message="input length and `max_tokens` exceed context limit: 1 + 2 > 3", type="invalid_request_error"),
    ],
)
def test_a_conversation_that_is_too_long_is_known_as_such(data: bytes) -> None:
    """All providers' ways to say that the context is full are one error."""
    error = provider_error(data, status=400)
    assert isinstance(error, ContextTooLong)
    assert not error.retryable


def test_how_long_to_wait() -> None:
    """Retry-After is read as seconds, as milliseconds and as a date."""
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=30))
    assert provider_error(b"", status=429, headers={"retry-after": "1.5"}).retry_after == 1.5
    assert provider_error(b"", status=429, headers={"retry-after-ms": "250", "retry-after": "9"}).retry_after == 0.25
    assert 25 < (provider_error(b"", status=429, headers={"retry-after": later}).retry_after or 0) <= 30
    assert provider_error(b"", status=429, headers={"retry-after": "soon"}).retry_after is None
    far = "Wed, 21 Oct 99999999999999999999 07:28:00 GMT"  # such a year made the request fail with OverflowError
    assert provider_error(b"", status=429, headers={"retry-after": far}).retry_after is None
    assert provider_error(b"", status=429).retry_after is None


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_carries_all_that_the_provider_told(wire: str) -> None:
    """Status, words, code, wait and request id come through the wire."""
    with FakeProvider(status(429, "slow down", retry_after=2, headers={"X-Request-Id": "r1"})) as provider:
        with pytest.raises(ProviderError, match="slow down") as caught:
            ask(model_for(wire, provider))
        error = caught.value
        assert (error.status, error.code, error.retry_after) == (429, "rate_limit_error", 2.0)
        assert error.request_id == "r1"
        assert "slow down" in error.body


def test_a_key_in_a_header_of_ones_own_is_a_key() -> None:
    """So is what was given as an authorization header, with or without its first word."""
    with FakeProvider(status(401, "bad token abcdef123456")) as provider:
        with pytest.raises(ProviderError) as caught:
            ask(model_for("openai", provider, headers={"Authorization": "Bearer abcdef123456"}))
        assert caught.value.message == "bad token [hidden]"


def test_an_error_whose_words_do_not_come() -> None:
    """A status is told even if the body behind it hangs."""
    reply = ScriptedReply(pieces=(b'{"error":', b"never sent"), status=503, fault="hang", after=1)
    with FakeProvider(reply) as provider:
        with pytest.raises(ProviderError) as caught:
            ask(model_for("openai", provider))
        assert (caught.value.status, caught.value.retryable) == (503, True)
        provider.wait_for_close(1)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    "reply",
    [
        status(401, f"wrong key {KEY}"),
        status(500, body=f"<p>{KEY}</p>".encode()),
        raw(f'data: {{"type":"error","error":{{"message":"key {KEY}"}}}}\n\n'.encode()),
        raw(f"data: garbage {KEY}\n\n".encode()),
        raw(f'{{"error":"key {KEY}"}}'.encode(), content_type="application/json"),
        raw(f"nonsense {KEY}".encode(), content_type="text/plain"),
    ],
)
def test_a_key_is_never_told(wire: str, reply: object) -> None:
    """A provider that repeats the key does not get it into an error, its body or a repr."""
    with FakeProvider(reply) as provider:  # type: ignore[arg-type]
        model = model_for(wire, provider)
        with pytest.raises(ModelError) as caught:
            ask(model)
        told = [str(caught.value), repr(caught.value), getattr(caught.value, "body", ""), repr(model)]
        assert not [text for text in told if KEY in text]
