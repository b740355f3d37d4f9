"""What is told of a request while it runs, beside the model's own events.

`RequestStarted` opens each attempt. `RequestRetry` says that an attempt came to nothing and that another follows, of
the same model or of a fallback; what the attempt had written is superseded and never mixed with what follows. Exactly
one `RequestFinished` or `RequestCancelled` is the last event of a request. A session adds the answer to it, whole or as
much of it as there is, for its log.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from halter.models.answer import Answer
from halter.models.model import FinishReason, ModelEvent, Usage

__all__ = ["RequestCancelled", "RequestEvent", "RequestFinished", "RequestRetry", "RequestStarted"]


class RequestStarted(Struct, frozen=True, tag="request.started"):
    """An attempt begins: `model` is asked. Attempts count from 1, over all models."""

    model: str
    attempt: int


class RequestRetry(Struct, frozen=True, tag="request.retry"):
    """Attempt number `attempt` will be made, by `model`, after `delay` seconds, because of `error`.

    `superseded` is the text that was shown of the attempt before. It is no part of the answer any more once the next
    attempt says something; until then it is all there is, and a stop keeps it.
    """

    model: str
    attempt: int
    delay: float
    error: str
    superseded: str = ""


class RequestCancelled(Struct, frozen=True, tag="request.cancelled"):
    """The request was stopped, in attempt number `attempt` (0: before the first), and its connection is closed.

    A user's own model that did not obey may still have one; it was left behind then, and the log has a warning.
    """

    model: str
    attempt: int
    reason: str
    detail: str = ""
    answer: Answer | None = None


class RequestFinished(Struct, frozen=True, tag="request.finished"):
    """The answer is complete, or all attempts have failed. `usage` is that of the last attempt."""

    model: str
    attempts: int
    status: Literal["complete", "failed"]
    reason: FinishReason | None = None
    usage: Usage = Usage()
    error: str = ""
    answer: Answer | None = None


RequestEvent: TypeAlias = ModelEvent | RequestStarted | RequestRetry | RequestCancelled | RequestFinished
