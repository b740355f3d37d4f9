"""Errors in OpenAI's form, so that its clients raise the exceptions that their users expect.

The status says what happened. A field that is wrong is a 400 here, as it is there. `x-should-retry` keeps clients from
sending a request again whose turn has failed or was stopped: its tools may have done their work already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from aiohttp import web

from halter.gateway.http.errors import Problem

if TYPE_CHECKING:
    from halter.events import TurnFinished

__all__ = ["OpenAIError", "OpenAIErrorBody", "error_body", "error_response", "problem_of_turn"]

_WRONG_FIELD: Final = 422
_TYPES: Final = {403: "permission_error", 429: "rate_limit_error"}
_SERVER_ERROR: Final = 500
_CLOSED: Final = 499  # nobody reads it; in metrics it is not an error of the server
_CODES: Final = {
    "key": "invalid_api_key",
    "scope": "insufficient_permissions",
    "limit": "rate_limit_exceeded",
    "no-model": "model_not_found",
    "context": "context_length_exceeded",
}
_FINAL: Final = frozenset({"turn-failed", "turn-stopped"})


class OpenAIError(msgspec.Struct, kw_only=True):
    """What went wrong. `param` names the wrong field, if there is one."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(msgspec.Struct):
    """The body of an error, and the last event of a stream that failed."""

    error: OpenAIError


def error_body(problem: Problem) -> OpenAIErrorBody:
    """A problem in OpenAI's form."""
    default = "server_error" if problem.status >= _SERVER_ERROR else "invalid_request_error"
    kind = _TYPES.get(problem.status, default)
    code = _CODES.get(problem.kind, problem.kind.replace("-", "_") or None)
    return OpenAIErrorBody(OpenAIError(message=problem.detail, type=kind, param=problem.field, code=code))


def error_response(problem: Problem) -> web.Response:
    """The HTTP response for a problem."""
    response = problem.response()
    if problem.status == _WRONG_FIELD:
        response.set_status(web.HTTPBadRequest.status_code)
    if problem.kind in _FINAL:
        response.headers["x-should-retry"] = "false"
    response.content_type = "application/json"
    response.body = msgspec.json.encode(error_body(problem))
    return response


def problem_of_turn(end: TurnFinished) -> Problem | None:
    """Why a turn gave no answer; None if it gave one, complete or cut off at the output limit."""
    if end.status == "done" or end.reason == "output_limit":
        return None
    why = end.detail or end.error
    if end.reason == "context_limit":
        return Problem(400, why, kind="context")
    if end.reason == "disconnect":
        return Problem(_CLOSED, "the client closed the connection", kind="turn-stopped")
    if end.status == "interrupted":
        about = f"{end.reason}: {why}" if why else end.reason
        return Problem(503, f"the turn was stopped ({about})", kind="turn-stopped")
    return Problem(500, f"the turn failed ({end.reason}): {why}", kind="turn-failed")
