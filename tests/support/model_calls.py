"""What the tests of requests share: an exchange that waits only briefly, and a log of its events."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec

from halter.events import RequestCancelled, RequestEvent, RequestFinished, RequestRetry, RequestStarted
from halter.models import Answer, Backoff, ModelCall, TextDelta
from halter.models.answer import AnswerBuilder
from tests.support.wires import HELLO

if TYPE_CHECKING:
    from collections.abc import Iterable

    from halter import CancellationToken
    from halter.models import Model, Usage

FAST = Backoff(base=0.002)


class Log(list[RequestEvent]):
    """An `emit` that keeps all events."""

    def __call__(self, event: RequestEvent) -> None:
        """Keep one."""
        self.append(event)

    @property
    def text(self) -> str:
        """All text that was shown, superseded or not."""
        return "".join(event.text for event in self if isinstance(event, TextDelta))

    def rebuilt_answer(self, model: str = "", *, usage: Usage) -> Answer:
        """The answer, built again from the events alone, as a session does after a crash; with the usage of a call."""
        builder = AnswerBuilder(model)
        for event in self:
            if isinstance(event, RequestStarted):
                builder.start_attempt(event.model, event.attempt)
            elif not isinstance(event, RequestRetry | RequestFinished | RequestCancelled):
                builder.take(event)
        return msgspec.structs.replace(builder.answer(), usage=usage)

    @property
    def kinds(self) -> list[str]:
        """What was told of the request itself."""
        tags = [str(event.__struct_config__.tag) for event in self]
        return [tag.removeprefix("request.") for tag in tags if tag.startswith("request.")]


def exchange_for(model: Model, log: Log | None = None, **options: Any) -> ModelCall:
    """Make an exchange with short waits."""
    if log is not None:
        options["emit"] = log
    return ModelCall(model, HELLO, **{"backoff": FAST, **options})


async def ask_all(models: Iterable[Model]) -> list[Answer]:
    """Ask all at once."""
    return await asyncio.gather(*(ModelCall(model, HELLO).run() for model in models))


def stop_soon(token: CancellationToken) -> float:
    """Cancel a token from another thread, as an interrupt does; gives when."""
    at = time.monotonic()
    thread = threading.Thread(target=token.cancel, args=("interrupt",), kwargs={"detail": "typed"})
    thread.start()
    thread.join()
    return at
