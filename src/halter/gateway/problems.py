"""What the gateway says when it can not do something: a problem body (RFC 9457), which names the field if one is wrong.

    raise Problem(422, "mode is one of queue, steer, interrupt, rollback", field="mode")

`type` is stable and for programs, `detail` is a sentence for people, and nothing of the inside is in either.
"""

from __future__ import annotations

from typing import Final

import msgspec
from aiohttp import web

from halter.errors import (
    SessionClosed,
    SessionOwned,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
)

__all__ = ["MEDIA_TYPE", "Problem", "ProblemBody", "of_error", "of_status", "of_validation"]

MEDIA_TYPE: Final = "application/problem+json"
_SOON: Final = 1.0
_LATER: Final = 10.0
_TITLES: Final = {
    400: "The request can not be read",
    401: "A key is needed",
    403: "The key does not allow this",
    404: "There is no such thing",
    405: "This can not be done here",
    408: "This takes too long",
    409: "It is too late for that",
    413: "This is too large",
    415: "This kind of content is not understood",
    421: "This is not the host that was meant",
    422: "A field is wrong",
    429: "This is too much",
    500: "Something went wrong here",
    503: "Not now",
}


class ProblemBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A problem, as it is sent."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
    retry_after: float | None = None


class Problem(Exception):
    """Something that the gateway will not or can not do; says why, and after how many seconds to try again."""

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
        """As it is sent."""
        return ProblemBody(
            type=f"urn:halter:problem:{self.kind or self.status}",
            title=_TITLES.get(self.status, "The request failed"),
            status=self.status,
            detail=self.detail,
            field=self.field,
            retry_after=self.retry_after,
        )

    def response(self) -> web.Response:
        """As an answer."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, round(self.retry_after)))
        if self.status == web.HTTPUnauthorized.status_code:
            headers["WWW-Authenticate"] = 'Bearer realm="halter"'
        body = msgspec.json.encode(self.body())
        return web.Response(status=self.status, body=body, content_type=MEDIA_TYPE, headers=headers)


def of_validation(error: msgspec.MsgspecError) -> Problem:
    """What is wrong with a body: msgspec names the place as `$.mode`."""
    if isinstance(error, msgspec.ValidationError):
        what, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".")
        if " field `" in what:  # of one that is missing or unknown the name is in the sentence
            field = f"{field}.{what.split('`')[1]}".lstrip(".")
        return Problem(422, what, field=field or "body", kind="field")
    return Problem(400, f"the body is not JSON: {error}", field="body", kind="json")


def of_status(error: web.HTTPException) -> Problem:
    """What aiohttp has refused by itself."""
    if error.status == web.HTTPNotFound.status_code:
        return Problem(404, "there is nothing at this address", kind="not-found")
    if error.status == web.HTTPRequestEntityTooLarge.status_code:
        return Problem(413, "the body is larger than this gateway takes", field="body", kind="too-large")
    return Problem(error.status, error.text or error.reason)


_STORE: Final = {
    StoreFull: "no space is left in the store",
    StoreReadOnly: "the store can not be written",
    StoreCorrupt: "the store is damaged",
}


def of_error(error: Exception) -> Problem | None:
    """What an error of the session or its store means to who asked; None if it is a defect of ours."""
    if isinstance(error, SessionOwned):
        return Problem(409, "another process has this session open", kind="session-owned", retry_after=_SOON)
    if isinstance(error, SessionClosed):
        return Problem(503, "the session is just being closed: try again", kind="closed", retry_after=_SOON)
    if isinstance(error, StoreError):
        what = _STORE.get(type(error), "the store failed")
        return Problem(503, f"{what}: nothing was accepted", kind="store", retry_after=_LATER)
    return None
