"""Events of a request to a model, beside the model's own.

`RequestStarted` opens each attempt. `RequestRetry` says that an attempt failed and that another follows, by the same
model or by a fallback; the text of the failed attempt is superseded and never mixed with what follows. Exactly one
`RequestFinished` or `RequestCancelled` is the last event of a request. The session adds the answer to it, complete or
partial, for its log.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from halter.models.answer import Answer
from halter.models.types import FinishReason, ModelEvent, Usage

__all__ = ["RequestCancelled", "RequestEvent", "RequestFinished", "RequestRetry", "RequestStarted"]


class RequestStarted(Struct, frozen=True, gc=False, tag="request.started"):
    """An attempt begins."""

    model: str
    attempt: int  # counts from 1, over all models of the request


class RequestRetry(Struct, frozen=True, gc=False, tag="request.retry"):
    """An attempt has failed, and another will be made.

    The text of the failed attempt is replaced once the next one says something. Until then it is the answer so far, and
    a stop keeps it.
    """

    model: str  # of the next attempt
    attempt: int  # the number of the next attempt
    delay: float  # seconds until then
    error: str  # why the last one failed
    superseded: str = ""  # the text that was shown of it


class RequestCancelled(Struct, frozen=True, gc=False, tag="request.cancelled"):
    """The request was stopped, and its connection is closed.

    Only a user's own model that ignores the stop may keep a connection; it is left behind, and a warning is logged.
    """

    model: str
    attempt: int  # the attempt that was running; 0 before the first
    reason: str  # of the token: "interrupt", "stop", "steer", ...
    detail: str = ""
    answer: Answer | None = None  # what had come until then


class RequestFinished(Struct, frozen=True, gc=False, tag="request.finished"):
    """The answer is complete, or all attempts have failed."""

    model: str  # the one that answered, or that failed last
    attempts: int
    status: Literal["complete", "failed"]
    reason: FinishReason | None = None  # why the model ended its answer
    usage: Usage = Usage()  # of all attempts
    error: str = ""
    answer: Answer | None = None


RequestEvent: TypeAlias = ModelEvent | RequestStarted | RequestRetry | RequestCancelled | RequestFinished
