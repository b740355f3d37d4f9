"""One request to a model, from the question to the answer: the only place that retries, waits, watches and falls back.

    exchange = Exchange(model, request, token=turn_token, emit=show, fallbacks=[other])
    try:
        answer = await exchange.run()
    except Cancelled:
        answer = exchange.answer            # what had come: text kept, half-written calls set apart

Why a coroutine that hands its events to a plain function, and not an async generator: a stop has to cancel what waits
for the provider, and nothing else. Between two yields of a generator it is the consumer's code that runs, in whatever
task and context it likes, and a scope around that would cancel the consumer. Here the whole stream is read by one task
of the attempt's own; each event costs a function call, not a task, a timer or a queue; and the partial answer belongs
to an object that outlives the exception. Whoever breaks off early does so by the token, or by cancelling the task.

The rules:

- The request has a token, a child of the one that was given; each attempt has a child of that. A watchdog cancels its
  attempt, which is then an error like others and may be retried. A stop cancels the request.
- Wherever something is decided (before an attempt, after an error, before a retry is announced, after a wait, before a
  fallback) the request's token is asked first. What fails after we closed it was cancelled: it is not retried, there is
  no fallback, and one debug line says that it was us.
- A foreign cancellation of the task wins: `CancelledError` comes out, after the connection is closed.
- An attempt is over, its stream closed, before the next begins. A model that swallows its cancellation, or hangs in its
  clean-up, is waited for a tenth of a second and then left behind, which is logged. Either way a late piece has nobody
  to go to: what comes after an attempt was cancelled is neither kept nor shown.
- A broken attempt is begun anew, also after text was shown. `RequestRetry` says so and brings that text for the record.
- Errors that may pass are retried, `model.max_retries` times; then, or at once for those that do not pass, the next of
  `fallbacks` is asked. Not so if the request itself is at fault (400, 413, 422, too long): no other model would like it
  better, and the caller can mend it. If all fail, the first model's own error is raised, with notes about the others.
- Once the model has finished, the answer stands: a stop that comes later does not undo it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from halter.cancel.context import current_token
from halter.cancel.leavable import Leavable
from halter.cancel.token import Cancelled
from halter.models.answer import Answer, Draft
from halter.models.backoff import Backoff
from halter.models.errors import ContextTooLong, ModelError, ProviderError, StreamBroken
from halter.models.life import on_life_from_here_on
from halter.models.progress import RequestCancelled, RequestEvent, RequestFinished, RequestRetry, RequestStarted
from halter.models.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from halter.cancel import CancellationToken
    from halter.models.model import Model, ModelEvent, ModelRequest

__all__ = ["Exchange"]

_log = logging.getLogger(__name__)

# What holds for a model that does not say otherwise, as a user's own need not.
_MAX_RETRIES: Final = 2
_STALE: Final = 180.0
_FIRST_BYTE: Final = 300.0
# How long a model may take to end its stream after the stop. Ours need no time; a user's own may want to say goodbye.
_GRACE: Final = 0.1
_OWN_FAULT: Final = frozenset({400, 413, 422})
_OWN_FAULT_CODES: Final = frozenset({"invalid_request_error", "request_too_large"})
_PATIENCE: Final = Backoff()
_STOPS: Final = (Cancelled, asyncio.CancelledError)


class Exchange:
    """One request and what comes of it, over all attempts. Use each one once.

    `emit` gets every event, in the thread of the loop, and should be quick; what it raises ends the request. A model
    that wants other limits than the usual has the attributes `max_retries`, `first_byte_timeout` and `stale_timeout`.
    """

    def __init__(
        self,
        model: Model,
        request: ModelRequest,
        *,
        token: CancellationToken | None = None,
        emit: Callable[[RequestEvent], object] | None = None,
        fallbacks: Sequence[Model] = (),
        backoff: Backoff = _PATIENCE,
    ) -> None:
        self.request = request
        self.token = (current_token() if token is None else token).child("request")
        self._models = (model, *fallbacks)
        self._emit = emit if emit is not None else _nobody
        self._backoff = backoff
        self._drafts: list[Draft] = []
        self._task: asyncio.Task[object] | None = None
        self._others = 0  # cancellations of our task that were pending before us

    @property
    def answer(self) -> Answer:
        """The answer so far, at any instant and from any thread: that of the newest attempt that has said anything.

        So what was shown of a broken attempt is kept until there is something to replace it, also if that never comes.
        """
        for draft in reversed(self._drafts):
            if not draft.is_empty:
                return draft.answer()
        return self._drafts[-1].answer() if self._drafts else Answer(model=self._models[0].name)

    @property
    def attempts(self) -> list[Answer]:
        """What each attempt has answered, superseded ones included, in order."""
        return [draft.answer() for draft in self._drafts]

    async def run(self) -> Answer:
        """Make the request and give the whole answer.

        Raises `Cancelled`, which belongs to the token that was given, when that is cancelled; `CancelledError` when the
        task is; the model's own error when all attempts have failed.
        """
        if self._task is not None:
            message = "this exchange was run already; make a new one for each request"
            raise RuntimeError(message)
        self._task = asyncio.current_task()
        self._others = self._cancellations()
        try:
            await self._ask_models()
        except BaseException as exc:
            self._tell_end(exc)
            raise
        answer = self.answer
        self._emit(RequestFinished(answer.model, answer.attempts, "complete", answer.reason, answer.usage))
        return answer

    async def _ask_models(self) -> None:
        """Ask one model after the other until one has answered."""
        first = error = await self._ask_with_retries(self._models[0])
        for model in self._models[1:]:
            if first is None or error is None or _is_own_fault(error):
                break
            self._announce(model, 0.0, error)
            error = await self._ask_with_retries(model)
            if error is not None:
                first.add_note(f"the fallback {model.name!r} failed, too: {_words(error)}")
        if first is not None and error is not None:
            raise first

    async def _ask_with_retries(self, model: Model) -> ModelError | None:
        """Ask one model until it has answered, which gives None, or it is not worth asking it again."""
        retries: int = getattr(model, "max_retries", _MAX_RETRIES)
        retry = 0
        while True:
            error = await self._attempt(model)
            if error is None or retry >= retries or not error.retryable:
                return error
            delay = self._backoff.delay(retry, getattr(error, "retry_after", None))
            if delay > self._backoff.longest:
                error.add_note(
                    f"{model.name!r} asks to be left alone for {delay:g} s; longer than {self._backoff.longest:g} s is "
                    "not waited for"
                )
                return error
            self._announce(model, delay, error)
            await self._wait(delay)
            retry += 1

    async def _attempt(self, model: Model) -> ModelError | None:
        """Ask once. Gives the error if it failed by itself, or None; raises if it was stopped."""
        self._ask_first()
        attempt = self.token.child("attempt")
        draft = Draft(model.name, len(self._drafts) + 1)
        self._drafts.append(draft)
        self._emit(RequestStarted(model.name, draft.attempt))
        watchdog = Watchdog(
            attempt,
            first=getattr(model, "first_byte_timeout", _FIRST_BYTE),
            stale=getattr(model, "stale_timeout", _STALE),
        )
        try:
            with watchdog:
                await Leavable(
                    lambda: self._listen(model, draft, attempt, watchdog),
                    attempt,
                    grace=_GRACE,
                    name=f"the stream of {model.name!r}",
                ).run()
        except Cancelled as exc:
            if exc.token is not attempt and not exc.belongs_to(attempt):
                raise
            if draft.is_complete:
                # It had all been said. What was cut off is only the clean-up behind it.
                return None
            if self.token.is_cancelled:
                raise
            error = watchdog.error or StreamBroken(f"the attempt was cancelled: {exc}")
        except ModelError as exc:
            if draft.is_complete:
                return None
            error = watchdog.error or exc
        else:
            return None
        self._ask_first()
        return error

    async def _listen(self, model: Model, draft: Draft, attempt: CancellationToken, watchdog: Watchdog) -> None:
        """Read one stream to its end. This loop runs once for each piece of text."""
        now = asyncio.get_running_loop().time
        take, emit = draft.take, self._emit
        on_life_from_here_on(watchdog.hear)
        stream: AsyncIterator[ModelEvent] = model.stream(self.request)
        try:
            async for event in stream:
                # Many events may come in one read, without the loop having a turn in which the stop could be told.
                if attempt.is_cancelled:
                    raise Cancelled(attempt)
                watchdog.last = now()
                take(event)
                emit(event)  # after it is written: what was shown is kept
        except asyncio.CancelledError as exc:
            if attempt.is_cancelled or _is_cancelled_by_others():
                raise
            # Nobody has cancelled us: it was something that the model waits for, and may share with others.
            message = f"what {model.name!r} waited for was cancelled"
            raise StreamBroken(message) from exc
        finally:
            if getattr(stream, "ag_frame", stream) is not None:  # else it is a generator that has ended
                await _close(stream)
        if not draft.is_complete:
            message = f"the stream of {model.name!r} ended without Finished"
            raise StreamBroken(message)

    async def _wait(self, delay: float) -> None:
        async with self.token.scope():
            await asyncio.sleep(delay)

    def _ask_first(self) -> None:
        """Ask whether to go on. Nothing that failed is looked at before this has said yes."""
        if self._cancellations() > self._others:
            # A listener has cancelled us, and there was nothing to wait for since.
            raise asyncio.CancelledError
        self.token.raise_if_cancelled()

    def _cancellations(self) -> int:
        return self._task.cancelling() if self._task is not None else 0

    def _announce(self, model: Model, delay: float, error: ModelError) -> None:
        self._ask_first()
        last = self._drafts[-1]
        self._emit(RequestRetry(model.name, last.attempt + 1, delay, _words(error), "".join(last.text)))

    def _tell_end(self, exc: BaseException) -> None:
        """Say how it ended, when it was not well."""
        model, attempts = self._models[0].name, len(self._drafts)
        if attempts:
            model = self._drafts[-1].model
        if not isinstance(exc, _STOPS):
            self._tell_last(RequestFinished(model, attempts, "failed", error=_words(exc)))
            return
        if not self.token.is_cancelled:
            self.token.cancel("external", detail="its task was cancelled")
        reason, detail = self.token.reason or "", self.token.detail
        _log.debug("request to %s, attempt %d: closed by us (%s); no retry, no fallback", model, attempts, reason)
        self._tell_last(RequestCancelled(model, attempts, reason, detail))

    def _tell_last(self, event: RequestEvent) -> None:
        """Emit the end. A boundary: a listener that fails must not take the place of how the request ended."""
        try:
            self._emit(event)
        except Exception:  # noqa: BLE001
            _log.exception("a listener failed with %s", type(event).__name__)


async def _close(stream: AsyncIterator[ModelEvent]) -> None:
    """End a stream that was left early, if it is one that can be ended."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


def _is_cancelled_by_others() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_own_fault(error: ModelError) -> bool:
    """Whether the request is to blame, and would be wherever it is sent."""
    if isinstance(error, ContextTooLong):
        return True
    if not isinstance(error, ProviderError):
        return False
    return error.status in _OWN_FAULT or (error.status is None and error.code in _OWN_FAULT_CODES)


def _words(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001  (a boundary: the words of an error of a user's own model may fail, too)
        return type(error).__name__


def _nobody(_: RequestEvent) -> None:
    pass
