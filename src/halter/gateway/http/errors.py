"""Errors as problem bodies (RFC 9457), which name the wrong field if there is one.

    raise Problem(422, "mode is one of queue, steer, interrupt, rollback", field="mode")

`type` is stable and for programs, `detail` is for people; neither reveals internals.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from halter.errors import (
    SessionClosed,
    SessionOwned,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
)

__all__ = ["MEDIA_TYPE", "Problem", "ProblemBody", "problem_of_error", "problem_of_status", "problem_of_validation"]

MEDIA_TYPE: Final = "application/problem+json"
# Seconds after which a client may try again.
_SOON: Final = 1.0
_LATER: Final = 10.0
_TITLES: Final = {
    400: "Bad request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    408: "Request timeout",
    409: "Conflict",
    413: "Content too large",
    415: "Unsupported media type",
    421: "Misdirected request",
    422: "Invalid field",
    429: "Rate limit exceeded",
    500: "Internal error",
    503: "Service unavailable",
}


class ProblemBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The body of a problem."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    retry_after: float | None = None


class Problem(Exception):
    """A request that is refused: why, and after how many seconds to try again."""

    def __init__(
        self, status: int, detail: str, *, field: str | None = None, kind: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.kind = kind
        self.retry_after = retry_after

    def body(self) -> ProblemBody:
        """The body."""
        return ProblemBody(
            type=f"urn:halter:problem:{self.kind or self.status}",
            title=_TITLES.get(self.status, "The request failed"),
            status=self.status,
            detail=self.detail,
            field=self.field,
            retry_after=self.retry_after,
        )

    def response(self) -> web.Response:
        """The HTTP response."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after)))
        if self.status == web.HTTPUnauthorized.status_code:
            headers["WWW-Authenticate"] = 'Bearer realm="halter"'
        body = msgspec.json.encode(self.body())
        return web.Response(status=self.status, body=body, content_type=MEDIA_TYPE, headers=headers)


def problem_of_validation(error: msgspec.MsgspecError) -> Problem:
    """What is wrong with a body. msgspec names the field as `$.mode`."""
    if isinstance(error, msgspec.ValidationError):
        cause, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".")
        if " field `" in cause:  # of one that is missing or unknown the name is in the sentence
            field = f"{field}.{cause.split('`')[1]}".lstrip(".")
        return Problem(422, cause, field=field or "body", kind="field")
    return Problem(400, f"the body is not JSON: {error}", field="body", kind="json")


def problem_of_status(error: web.HTTPException) -> Problem:
    """An error that aiohttp itself has raised."""
    if error.status == web.HTTPNotFound.status_code:
        return Problem(404, "there is nothing at this path", kind="not-found")
    if error.status == web.HTTPRequestEntityTooLarge.status_code:
        return Problem(413, "the body is too large", field="body", kind="too-large")
    return Problem(error.status, error.text or error.reason)


_OWNED: Final = (
    "another process has this session open: use that one, or end it. To share sessions, start gateways with the same "
    "--cluster, or one gateway with --workers"
)
_STORE: Final = {
    StoreFull: "the store is full",
    StoreReadOnly: "the store is read-only",
    StoreCorrupt: "the store is damaged",
}


def problem_of_error(error: Exception) -> Problem | None:
    """The problem for an error of a session, its store or a malformed body; None if the error is unexpected."""
    if isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
        return Problem(400, "the body is malformed", field="body", kind="body")
    if isinstance(error, SessionOwned):
        return Problem(409, _OWNED, kind="session-owned", retry_after=_SOON)
    if isinstance(error, SessionClosed):
        return Problem(503, "the session is being closed: try again", kind="closed", retry_after=_SOON)
    if isinstance(error, StoreError):
        cause = _STORE.get(type(error), "the store failed")
        return Problem(503, f"{cause}: nothing was accepted", kind="store", retry_after=_LATER)
    return None
