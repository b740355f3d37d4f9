"""One request to a model: the only place that retries, backs off, watches the stream and falls back.

    call = ModelCall(model, request, token=turn_token, emit=show, fallbacks=[other])
    try:
        answer = await call.run()
    except Cancelled:
        answer = call.answer            # what had come: the text, complete calls, and unfinished ones apart

Events go to a plain function, and `run()` is not an async generator, because a stop must cancel what waits for the
provider and nothing else. Between two yields of a generator the consumer's code runs, in any task and context, and a
scope around that would cancel the consumer. Here one task of the attempt reads the whole stream; each event costs a
function call, not a task, a timer or a queue; and the partial answer belongs to an object that outlives the exception.
To end a request early, cancel its token or its task.

The rules:

- The request has a token, a child of the one that was given; each attempt has a child of that. A watchdog cancels its
  attempt, which is then an error like others and may be retried. A stop cancels the request.
- Before each decision (an attempt, a retry, a fallback) and after each error and wait, the request's token is checked
  first. What fails after we closed it was cancelled: no retry, no fallback, and one debug line says that it was us.
- A foreign cancellation of the task wins: `CancelledError` is raised, after the connection is closed.
- The stream of an attempt is closed before the next attempt begins. A model that swallows its cancellation, or hangs in
  its clean-up, is waited for a tenth of a second and then left behind, which is logged. What comes after an attempt was
  cancelled is neither kept nor shown.
- A broken attempt is repeated from the start, also after text was shown. `RequestRetry` carries that text.
- Temporary errors are retried, `model.max_retries` times. After that, or at once for permanent errors, the next of
  `fallbacks` is asked. If the request itself is at fault (400, 413, 422, too long) there is no fallback: every model
  would refuse it, and the caller can correct it. If all fail, the first model's error is raised, with notes about the
  others.
- Once the model has finished, the answer stands: a later stop does not undo it.
- The usage is that of all attempts, with their cost: what the provider has reported, else an estimate. An attempt that
  the provider refused, or that did not reach it, has used nothing.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from halter.cancel.context import current_token
from halter.cancel.detach import run_detached
from halter.cancel.token import Cancelled
from halter.events.requests import RequestCancelled, RequestEvent, RequestFinished, RequestRetry, RequestStarted
from halter.models.answer import Answer, AnswerBuilder
from halter.models.backoff import Backoff
from halter.models.errors import ContextTooLong, ModelError, ProviderError, StreamBroken
from halter.models.estimate import complete_usage
from halter.models.http.activity import set_activity_callback
from halter.models.prices import Prices
from halter.models.sanitize import clean_event, clean_text
from halter.models.types import Usage
from halter.models.watchdog import Watchdog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from halter.cancel import CancellationToken
    from halter.models.types import Model, ModelEvent, ModelRequest

__all__ = ["ModelCall"]

_log = logging.getLogger(__name__)

# For models without attributes of these names, such as a user's own.
_MAX_RETRIES: Final = 2
_STALE_TIMEOUT: Final = 180.0  # seconds
_FIRST_BYTE_TIMEOUT: Final = 300.0  # seconds
# Seconds that a model may take to end its stream after the stop. Ours need none; a user's own may have to clean up.
_GRACE: Final = 0.1
_OWN_FAULT: Final = frozenset({400, 413, 422})
_OWN_FAULT_CODES: Final = frozenset({"invalid_request_error", "request_too_large"})
_DEFAULT_BACKOFF: Final = Backoff()
_LISTED_PRICES: Final = Prices()
_STOPS: Final = (Cancelled, asyncio.CancelledError)


class ModelCall:
    """One request, over all its attempts. Use each one once.

    `emit` gets every event, in the thread of the loop, and should be quick; what it raises ends the request. A model
    sets its own limits by the attributes `max_retries`, `first_byte_timeout` and `stale_timeout`.
    """

    def __init__(
        self,
        model: Model,
        request: ModelRequest,
        *,
        token: CancellationToken | None = None,
        emit: Callable[[RequestEvent], object] | None = None,
        fallbacks: Sequence[Model] = (),
        backoff: Backoff = _DEFAULT_BACKOFF,
        prices: Prices = _LISTED_PRICES,
    ) -> None:
        self.request = request
        self.token = (current_token() if token is None else token).child("request")
        self._models = (model, *fallbacks)
        self._emit = emit if emit is not None else _ignore
        self._backoff = backoff
        self._prices = prices
        self._builder = AnswerBuilder(model.name)
        self._model = model  # of the running attempt
        self._used = Usage(cost=0.0)  # by the attempts that have failed
        self._has_failed = True  # the running attempt, which is part of `_used`; and before the first one
        self._task: asyncio.Task[object] | None = None
        self._cancellations_before = 0  # of our task, pending before run()

    @property
    def answer(self) -> Answer:
        """The answer so far, at any time and from any thread: see `AnswerBuilder`."""
        answer = self._builder.answer()
        usage = self._used if self._has_failed else self._used + self._attempt_usage()
        return msgspec.structs.replace(answer, usage=usage)

    async def run(self) -> Answer:
        """Make the request and return the complete answer.

        Raises `Cancelled`, which belongs to the given token, when that is cancelled; `CancelledError` when the task is;
        the first model's error when all attempts have failed.
        """
        if self._task is not None:
            raise RuntimeError("this ModelCall has already run; make a new one for each request")
        self._task = asyncio.current_task()
        self._cancellations_before = self._cancellations()
        self._prices.start_loading(self._models)
        try:
            await self._ask_models()
            await self._prices.load(self._models, self.token)
        except BaseException as exc:
            self._report_end(exc)
            raise
        answer = self.answer
        self._emit(RequestFinished(answer.model, answer.attempts, "complete", answer.reason, answer.usage))
        return answer

    async def _ask_models(self) -> None:
        """Ask one model after the other until one answers."""
        first = error = await self._ask_with_retries(self._models[0])
        for model in self._models[1:]:
            if first is None or error is None or _is_own_fault(error):
                break
            self._announce(model, 0.0, error)
            error = await self._ask_with_retries(model)
            if error is not None:
                first.add_note(f"the fallback {model.name!r} failed, too: {_error_text(error)}")
        if first is not None and error is not None:
            raise first

    async def _ask_with_retries(self, model: Model) -> ModelError | None:
        """Ask one model until it answers or a retry is pointless. Returns the last error, or None."""
        retries: int = getattr(model, "max_retries", _MAX_RETRIES)
        retry = 0
        while True:
            error = await self._attempt(model)
            if error is None or retry >= retries or not error.retryable:
                return error
            delay = self._backoff.delay(retry, getattr(error, "retry_after", None))
            if delay > self._backoff.max_retry_after:
                error.add_note(
                    f"{model.name!r} asks to wait {delay:g} s; the limit is {self._backoff.max_retry_after:g} s"
                )
                return error
            self._announce(model, delay, error)
            await self._wait(delay)
            retry += 1

    async def _attempt(self, model: Model) -> ModelError | None:
        """Ask once. Returns the error if it failed by itself, else None; raises if it was stopped."""
        self._check_stop()
        attempt = self.token.child("attempt")
        builder = self._builder
        builder.start_attempt(model.name, builder.attempt + 1)
        self._model, self._has_failed = model, False
        self._emit(RequestStarted(model.name, builder.attempt))
        watchdog = Watchdog(
            attempt,
            first=getattr(model, "first_byte_timeout", _FIRST_BYTE_TIMEOUT),
            stale=getattr(model, "stale_timeout", _STALE_TIMEOUT),
        )
        try:
            with watchdog:
                await run_detached(
                    lambda: self._read_stream(model, attempt, watchdog),
                    attempt,
                    grace=_GRACE,
                    name=f"the stream of {model.name!r}",
                )
        except Cancelled as exc:
            if exc.token is not attempt and not exc.belongs_to(attempt):
                raise
            if builder.is_complete:
                # The answer was complete. Only the clean-up after it was cancelled.
                return None
            if self.token.is_cancelled:
                raise
            error = watchdog.error or StreamBroken(f"the attempt was cancelled: {exc}")
        except ModelError as exc:
            if builder.is_complete:
                return None
            error = watchdog.error or exc
        else:
            return None
        self._check_stop()
        self._used += self._attempt_usage(error)
        self._has_failed = True
        return error

    def _attempt_usage(self, error: ModelError | None = None) -> Usage:
        """What the running attempt has used, or what it had used when it failed with *error*."""
        answer = self._builder.attempt_answer()
        has_begun = bool(answer.text or answer.reasoning or answer.calls or answer.unfinished)
        is_accepted = error is None or isinstance(error, StreamBroken) or has_begun
        usage = complete_usage(self.request, answer) if is_accepted else answer.usage
        cost = self._prices.cost(self._model, answer.model, usage, self.request.settings)
        return msgspec.structs.replace(usage, cost=cost)

    async def _read_stream(self, model: Model, attempt: CancellationToken, watchdog: Watchdog) -> None:
        """Read one stream to its end. This loop runs once for each piece of text."""
        now = asyncio.get_running_loop().time
        take, emit = self._builder.take, self._emit
        set_activity_callback(watchdog.on_bytes)
        stream: AsyncIterator[ModelEvent] = model.stream(self.request)
        try:
            async for raw in stream:
                # Many events may come in one read, and then the loop has no chance to cancel this task in between.
                if attempt.is_cancelled:
                    raise Cancelled(attempt)
                watchdog.last = now()
                event = clean_event(raw)
                take(event)
                emit(event)  # after it was taken: what was shown is kept
        except asyncio.CancelledError as exc:
            if attempt.is_cancelled or _is_cancelled_by_others():
                raise
            # Nobody has cancelled us: the model awaits something that others may share and have cancelled.
            raise StreamBroken(f"what {model.name!r} waited for was cancelled") from exc
        finally:
            if getattr(stream, "ag_frame", stream) is not None:  # else a generator that has ended already
                await _close(stream)
        if not self._builder.is_complete:
            raise StreamBroken(f"the stream of {model.name!r} ended without Finished")

    async def _wait(self, delay: float) -> None:
        async with self.token.scope():
            await asyncio.sleep(delay)

    def _check_stop(self) -> None:
        """Raise if the request or its task was cancelled. Called before any error is looked at."""
        if self._cancellations() > self._cancellations_before:
            # emit() has cancelled our task, and there was no await since.
            raise asyncio.CancelledError
        self.token.raise_if_cancelled()

    def _cancellations(self) -> int:
        return self._task.cancelling() if self._task is not None else 0

    def _announce(self, model: Model, delay: float, error: ModelError) -> None:
        self._check_stop()
        builder = self._builder
        self._emit(RequestRetry(model.name, builder.attempt + 1, delay, _error_text(error), builder.attempt_text))

    def _report_end(self, exc: BaseException) -> None:
        """Report how a request ended that was stopped or failed."""
        model, attempts = self._builder.model, self._builder.attempt
        if not isinstance(exc, _STOPS):
            self._emit_last(RequestFinished(model, attempts, "failed", usage=self.answer.usage, error=_error_text(exc)))
            return
        if not self.token.is_cancelled:
            self.token.cancel("external", detail="its task was cancelled")
        reason, detail = self.token.reason or "", self.token.detail
        _log.debug("request to %s, attempt %d: closed by us (%s); no retry, no fallback", model, attempts, reason)
        self._emit_last(RequestCancelled(model, attempts, reason, detail))

    def _emit_last(self, event: RequestEvent) -> None:
        """Emit the end. A boundary: an error of the listener must not replace how the request ended."""
        try:
            self._emit(event)
        except Exception:  # noqa: BLE001
            _log.exception("a listener failed with %s", type(event).__name__)


async def _close(stream: AsyncIterator[ModelEvent]) -> None:
    """Close a stream that was left early, if it can be closed."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


def _is_cancelled_by_others() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_own_fault(error: ModelError) -> bool:
    """Whether the request itself is wrong, so that every model would refuse it."""
    if isinstance(error, ContextTooLong):
        return True
    if not isinstance(error, ProviderError):
        return False
    return error.status in _OWN_FAULT or (error.status is None and error.code in _OWN_FAULT_CODES)


def _error_text(error: BaseException) -> str:
    try:
        return clean_text(str(error)) or type(error).__name__
    except Exception:  # noqa: BLE001  (a boundary: the error of a user's own model may fail to describe itself)
        return type(error).__name__


def _ignore(_: RequestEvent) -> None:
    pass
