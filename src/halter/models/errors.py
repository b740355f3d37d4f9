"""The errors of requests to models.

    ModelError                    the base class; also a request that could not be made at all
    ├── ConnectionFailed          no answer came: DNS, refused, reset, TLS, connect timeout
    ├── StreamBroken              the answer ended early or was malformed
    └── ProviderError             the provider answered with an error, before or inside the stream
        └── ContextTooLong        ... because the conversation does not fit into the model's context

Each says whether a retry may help (`retryable`). Errors of libraries are mapped where they occur, `from` the original.
A cancellation is never one of these: it passes through unchanged. Keys never appear in them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from halter._secrets import redact
from halter.errors import HalterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "UNREADABLE",
    "ConnectionFailed",
    "ContextTooLong",
    "ModelError",
    "ProviderError",
    "StreamBroken",
    "provider_error",
    "readable",
]

UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What decoding JSON can raise: it may not be JSON, not be UTF-8, or be nested too deeply."""

_BODY_EXCERPT = 2_000  # characters
_SERVER_ERROR = 500
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
# An exhausted quota is also a 429, but waiting does not help.
_FINAL_CODES = frozenset(
    {
        "insufficient_quota",
        "billing_error",
        "invalid_request_error",
        "authentication_error",
        "permission_error",
        "not_found_error",
        "request_too_large",
        "context_length_exceeded",
        "exceed_context_size_error",
        "invalid_api_key",
        "invalid_prompt",
        "model_not_found",
    }
)
_CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_CONTEXT_TEXT = re.compile(
    r"maximum context length|prompt is too long|exceeds? (?:the )?(?:available |model'?s? )?context|"
    r"context (?:window|length|size) (?:was |is |has been )?exceed|input is too long|too many tokens in the prompt|"
    r"input token count .{0,40}exceeds|maximum prompt length|tokens \+ `?max_new_tokens`? must be",
    re.IGNORECASE,
)


class ModelError(HalterError):
    """A request to a model failed."""

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed if it is made again."""
        return False


class ConnectionFailed(ModelError):
    """No answer came."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self._retryable = retryable

    @property
    def retryable(self) -> bool:
        """True, unless the certificate of the other side is invalid: that is permanent."""
        return self._retryable


class StreamBroken(ModelError):
    """The answer ended early, or could not be read."""

    @property
    def retryable(self) -> bool:
        """Always: the request itself was accepted."""
        return True


class ProviderError(ModelError):
    """The provider answered with an error.

    `status` is the HTTP status, or None for an error inside a stream. `should_retry` is the provider's own advice, if
    it gave any.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str = "",
        retry_after: float | None = None,
        request_id: str = "",
        body: str = "",
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.request_id = request_id
        self.body = body
        self.should_retry = should_retry

    def __str__(self) -> str:
        status = f"{self.status}: " if self.status is not None else ""
        code = f" [{self.code}]" if self.code else ""
        request = f" (request {self.request_id})" if self.request_id else ""
        return f"{status}{self.message}{code}{request}"

    @property
    def retryable(self) -> bool:
        """Whether the error is temporary: too many requests, overload, a server error."""
        if self.should_retry is not None:
            return self.should_retry
        if self.code in _FINAL_CODES:
            return False
        # Without a status the request had been accepted, so what failed later is the provider's side.
        return self.status is None or self.status in _TRANSIENT_STATUS or self.status >= _SERVER_ERROR


class ContextTooLong(ProviderError):
    """The conversation does not fit into the model's context."""

    @property
    def retryable(self) -> bool:
        """Never: the same request would be just as long."""
        return False


def provider_error(
    body: bytes, *, status: int | None = None, headers: Mapping[str, str] | None = None, secrets: Iterable[str] = ()
) -> ProviderError:
    """Make an error from whatever the provider sent: its JSON, another server's JSON, an HTML page, nothing."""
    headers = headers or {}
    text = readable(body, secrets)
    message, code, request_id = _read(text)
    known = code in _CONTEXT_CODES or _CONTEXT_TEXT.search(message)
    if known and (status is None or status < _SERVER_ERROR) and status not in _TRANSIENT_STATUS:
        kind: type[ProviderError] = ContextTooLong
    else:
        kind = ProviderError
    return kind(
        message or (f"the provider answered with status {status} and no text" if status else "unknown error"),
        status=status,
        code=code,
        retry_after=_retry_after(headers) or _retry_delay(text),
        request_id=headers.get("x-request-id") or headers.get("request-id") or request_id,
        body=text[:_BODY_EXCERPT],
        should_retry={"true": True, "false": False}.get(headers.get("x-should-retry", "")),
    )


def error_in_answer(body: bytes, error: object = None) -> ProviderError:
    """An error that came with status 200, bare: `HTTPModel` completes it. Some servers put the real status into it."""
    code = error.get("code") if isinstance(error, dict) else None
    status = code if isinstance(code, int) and 400 <= code < 600 else None  # noqa: PLR2004 - HTTP's range of errors
    return ProviderError("an error inside the answer", status=status, body=body.decode("utf-8", "replace"))


def readable(data: bytes, secrets: Iterable[str]) -> str:
    """What a provider sent as text, without our keys: it may repeat what it was given."""
    return redact(data.decode("utf-8", "replace"), secrets)


def _read(text: str) -> tuple[str, str, str]:
    """Find message, code and request id in an error body."""
    try:
        data = msgspec.json.decode(text)
    except UNREADABLE:
        return _page_text(text), "", ""
    if isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, dict):
        return str(data)[:_BODY_EXCERPT], "", ""
    request_id = data.get("request_id")
    error = data.get("error") or data
    if not isinstance(error, dict):
        return str(error)[:_BODY_EXCERPT], "", _word(request_id)
    message = error.get("message") or error.get("detail") or error.get("error") or data.get("message")
    return _words(message) or text[:_BODY_EXCERPT], _code(error), _word(request_id)


def _code(error: dict[str, Any]) -> str:
    for key in ("code", "type", "status"):
        value = error.get(key)
        if isinstance(value, str) and value and value != "error":
            return value
    return _word(error.get("code"))


def _word(value: object) -> str:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _words(value: object) -> str:
    if isinstance(value, str):
        return value[:_BODY_EXCERPT]
    return "" if value is None else msgspec.json.encode(value).decode()[:_BODY_EXCERPT]


def _page_text(text: str) -> str:
    """One line about an HTML error page: its title, else its text."""
    if "<" not in text:
        return text.strip()[:_BODY_EXCERPT]
    title = re.search(r"<title[^>]*>(.*?)</title>", text[:20_000], re.IGNORECASE | re.DOTALL)
    words = title.group(1) if title else re.sub(r"<[^>]*>", " ", text[:20_000])
    return " ".join(words.split())[:300]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """How long to wait, in seconds: servers send milliseconds, seconds or dates."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "")
    seconds = _number(value)
    if seconds is not None or not value:
        return seconds
    # Rare, and 10 ms of imports that every start would pay for; aiohttp has loaded them by now.
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, (date - datetime.now(UTC)).total_seconds())


def _retry_delay(text: str) -> float | None:
    """How long to wait, as Google says it: in the details of the error."""
    found = re.search(r'"retryDelay"\s*:\s*"(\d+(?:\.\d*)?)s"', text)
    return float(found.group(1)) if found else None


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\s*\d+(\.\d*)?\s*", text) else None
