"""Spans for OpenTelemetry: one for each turn, and below it one for each attempt of a request and each tool call.

A stop is an event of the turn's span: who asked, why and when; an attribute says how long after it the turn ended.
Without `opentelemetry-api` (`pip install 'halter[otel]'`) nothing is done. The program sets up where spans go.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from halter.events import Event, TurnFinished, TurnStarted, TurnStopping
from halter.events.requests import RequestCancelled, RequestFinished, RequestRetry, RequestStarted
from halter.events.tools import ToolFinished, ToolStarted

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

__all__ = ["Tracing"]

_KINDS: Final = (RequestStarted, RequestRetry, RequestFinished, RequestCancelled, ToolStarted, ToolFinished)
_REQUEST: Final = "request"


class _Turn:
    """The open spans of a turn."""

    __slots__ = ("below", "context", "span")

    def __init__(self, span: Span, context: Any) -> None:  # noqa: ANN401  (OpenTelemetry's own)
        self.span = span
        self.context = context
        self.below: dict[str, Span] = {}


class Tracing:
    """The spans of all running turns."""

    def __init__(self) -> None:
        self._turns: dict[str, _Turn] = {}
        self._tracer: Tracer | None = None
        if find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None:
            from opentelemetry import trace

            self._tracer = trace.get_tracer("halter.gateway")

    @property
    def kinds(self) -> tuple[type, ...]:
        """The events it needs, beside those of messages and turns."""
        return _KINDS if self._tracer is not None else ()

    def take(self, event: Event) -> None:  # noqa: C901  (one branch for each kind of event)
        """Take an event."""
        if self._tracer is None:
            return
        data = event.data
        if isinstance(data, TurnStarted):
            self._begin(self._tracer, event, data)
            return
        turn = self._turns.get(event.turn)
        if turn is None:
            return
        if isinstance(data, TurnStopping):
            about = {"halter.reason": data.reason, "halter.detail": data.detail, "halter.by": data.by}
            turn.span.add_event("stop", about, _nanoseconds(data.asked_at))
        elif isinstance(data, TurnFinished):
            self._end(event, data)
        elif isinstance(data, RequestStarted):
            self._start(turn, _REQUEST, f"request {data.model}", event)
        elif isinstance(data, ToolStarted):
            self._start(turn, data.call_id, f"tool {data.name}", event)
        elif isinstance(data, RequestRetry):
            self._finish(turn, _REQUEST, "failed", event, data.error)
        elif isinstance(data, RequestFinished):
            self._finish(turn, _REQUEST, data.status, event, data.error)
        elif isinstance(data, RequestCancelled):
            self._finish(turn, _REQUEST, "cancelled", event)
        elif isinstance(data, ToolFinished):
            self._finish(turn, data.outcome.call_id, data.outcome.status, event)

    def _begin(self, tracer: Tracer, event: Event, data: TurnStarted) -> None:
        from opentelemetry import trace

        about = {"halter.session": event.session, "halter.turn": event.turn, "halter.model": data.model}
        span = tracer.start_span("turn", attributes=about, start_time=_nanoseconds(event.time))
        if span.is_recording():  # else no exporter is set up
            self._turns[event.turn] = _Turn(span, trace.set_span_in_context(span))

    def _end(self, event: Event, data: TurnFinished) -> None:
        from opentelemetry.trace import StatusCode

        turn = self._turns.pop(event.turn)
        for name in list(turn.below):
            self._finish(turn, name, "left open", event)
        turn.span.set_attribute("halter.status", data.status)
        turn.span.set_attribute("halter.reason", data.reason)
        if data.after is not None:
            turn.span.set_attribute("halter.stop_seconds", data.after)
        if data.status == "failed":
            turn.span.set_status(StatusCode.ERROR, data.reason)
        turn.span.end(_nanoseconds(event.time))

    def _start(self, turn: _Turn, key: str, name: str, event: Event) -> None:
        assert self._tracer is not None
        turn.below[key] = self._tracer.start_span(name, turn.context, start_time=_nanoseconds(event.time))

    @staticmethod
    def _finish(turn: _Turn, key: str, how: str, event: Event, error: str = "") -> None:
        from opentelemetry.trace import StatusCode

        span = turn.below.pop(key, None)
        if span is not None:
            span.set_attribute("halter.status", how)
            if how == "failed":
                span.set_status(StatusCode.ERROR, error)
            span.end(_nanoseconds(event.time))


def _nanoseconds(moment: float) -> int:
    return int(moment * 1e9)
