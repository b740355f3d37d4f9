"""Spans for OpenTelemetry, by its conventions for generative AI.

Each turn is a span (`invoke_agent NAME`), and below it are one for each attempt of a request (`chat MODEL`), each tool
call (`execute_tool NAME`) and each delegated agent (`invoke_agent NAME`). Requests and turns have their token counts.
A turn continues the trace of the HTTP request that brought its first message (`traceparent`). A stop is an event of the
turn's span: who asked, why and when; an attribute says how long after it the turn ended.

Without `opentelemetry-api` (`pip install 'halter[otel]'`) nothing is done. The program sets up where spans go.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from halter.events import ChildFinished, ChildStarted, Event, MessageApplied, TurnFinished, TurnStarted, TurnStopping
from halter.events.requests import RequestCancelled, RequestFinished, RequestRetry, RequestStarted
from halter.events.tools import ToolFinished, ToolStarted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from halter.agent import Agent
    from halter.gateway.http.schemas import MessageBody, MessageForm
    from halter.models.types import Usage

    Message = TypeVar("Message", MessageBody, MessageForm)

__all__ = ["Tracing"]

_REQUEST_KINDS: Final = (RequestStarted, RequestRetry, RequestFinished, RequestCancelled)
_KINDS: Final = (*_REQUEST_KINDS, ToolStarted, ToolFinished, MessageApplied, ChildStarted, ChildFinished)
_REQUEST: Final = "request"
_MAX_PARENTS: Final = 10_000
_Attributes = dict[str, Any]


class _TurnSpans:
    """The open spans of a turn."""

    __slots__ = ("below", "context", "span")

    def __init__(self, span: Span, context: Context) -> None:
        self.span = span
        self.context = context
        self.below: dict[str, Span] = {}


class Tracing:
    """The spans of all running turns."""

    def __init__(self) -> None:
        self._starting: dict[str, Event] = {}  # turns whose first message is not known yet: it is the next event
        self._turns: dict[str, _TurnSpans] = {}
        self._children: dict[str, Span] = {}  # by session; in the background they outlive the turn
        self._parents: OrderedDict[tuple[str, str], Context] = OrderedDict()  # of messages, by session and id
        self._tracer: Tracer | None = None
        if find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None:
            from opentelemetry import trace

            self._tracer = trace.get_tracer("halter.gateway")

    @property
    def kinds(self) -> tuple[type, ...]:
        """The events it needs, beside those of messages and turns."""
        return _KINDS if self._tracer is not None else ()

    def continue_trace(self, headers: Mapping[str, str], session: str, message: Message) -> Message:
        """Make the turn that *message* starts continue the trace of the request with these headers.

        Returns the message, with an id, by which its turn is recognized.
        """
        if self._tracer is None:
            return message
        from opentelemetry import propagate, trace

        context = propagate.extract(headers)
        if not trace.get_current_span(context).get_span_context().is_valid:
            return message
        message = msgspec.structs.replace(message, id=message.id or secrets.token_hex(8))
        self._parents[session, str(message.id)] = context
        if len(self._parents) > _MAX_PARENTS:  # some are of messages that were removed, or refused
            self._parents.popitem(last=False)
        return message

    def record(self, event: Event, agent: Agent) -> None:
        """Record an event of a session of *agent*."""
        if self._tracer is None:
            return
        data = event.data
        if isinstance(data, TurnStarted):
            self._starting[event.turn] = event
            return
        if isinstance(data, ChildFinished):
            span = self._children.pop(data.session, None)
            if span is not None:
                _end(span, event, data.status, _tokens(data.usage), data.reason)
            return
        parent = self._parents.pop((event.session, data.id), None) if isinstance(data, MessageApplied) else None
        started = self._starting.pop(event.turn, None)
        if started is not None:
            self._begin(self._tracer, started, agent, parent)
        turn = self._turns.get(event.turn)
        if turn is not None:
            if parent is not None and started is None:
                _link(turn.span, parent)
            self._record(self._tracer, turn, event, agent)

    def _record(self, tracer: Tracer, turn: _TurnSpans, event: Event, agent: Agent) -> None:
        data = event.data
        if isinstance(data, TurnStopping):
            about = {"halter.reason": data.reason, "halter.detail": data.detail, "halter.by": data.by}
            turn.span.add_event("stop", about, _nanoseconds(data.asked_at))
        elif isinstance(data, TurnFinished):
            self._finish(event, data)
        elif isinstance(data, _REQUEST_KINDS):
            _record_request(tracer, turn, event, agent)
        elif isinstance(data, ToolStarted):
            about = {"gen_ai.tool.name": data.name, "gen_ai.tool.call.id": data.call_id, "gen_ai.tool.type": "function"}
            turn.below[data.call_id] = _start(tracer, "execute_tool", data.name, event, about, turn.context)
        elif isinstance(data, ToolFinished):
            outcome = data.outcome
            _end(turn.below.pop(outcome.call_id, None), event, outcome.status, {}, outcome.detail)
        elif isinstance(data, ChildStarted):
            about = {"gen_ai.agent.name": data.agent, "gen_ai.conversation.id": data.session}
            self._children[data.session] = _start(tracer, "invoke_agent", data.agent, event, about, turn.context)

    def _begin(self, tracer: Tracer, event: Event, agent: Agent, parent: Context | None) -> None:
        from opentelemetry import trace

        about = {"gen_ai.agent.name": agent.name, "gen_ai.request.model": agent.model.name, "halter.turn": event.turn}
        span = _start(tracer, "invoke_agent", agent.name, event, about, parent)
        if span.is_recording():  # else no exporter is set up, or the trace is not sampled
            self._turns[event.turn] = _TurnSpans(span, trace.set_span_in_context(span))

    def _finish(self, event: Event, data: TurnFinished) -> None:
        turn = self._turns.pop(event.turn)
        for span in turn.below.values():
            _end(span, event, "left open")
        about = _tokens(data.usage) | {"halter.reason": data.reason}
        if data.after is not None:
            about["halter.stop_seconds"] = data.after
        _end(turn.span, event, data.status, about, data.error or data.reason)


def _record_request(tracer: Tracer, turn: _TurnSpans, event: Event, agent: Agent) -> None:
    data = event.data
    if isinstance(data, RequestStarted):
        about = {
            "gen_ai.provider.name": _provider(agent, data.model),
            "gen_ai.request.model": data.model,
            "halter.attempt": data.attempt,
        }
        turn.below[_REQUEST] = _start(tracer, "chat", data.model, event, about, turn.context)
        return
    span = turn.below.pop(_REQUEST, None)
    if isinstance(data, RequestRetry):
        _end(span, event, "failed", {}, data.error)
    elif isinstance(data, RequestCancelled):
        _end(span, event, "cancelled")
    elif isinstance(data, RequestFinished):
        about = _tokens(data.usage)
        if data.reason is not None:
            about["gen_ai.response.finish_reasons"] = [data.reason]
        _end(span, event, data.status, about, data.error)


def _start(
    tracer: Tracer, operation: str, name: str, event: Event, about: _Attributes, context: Context | None
) -> Span:
    from opentelemetry.trace import SpanKind

    kind = SpanKind.CLIENT if operation == "chat" else SpanKind.INTERNAL
    attributes = {"gen_ai.operation.name": operation, "gen_ai.conversation.id": event.session} | about
    return tracer.start_span(
        f"{operation} {name}", context, kind=kind, attributes=attributes, start_time=_nanoseconds(event.time)
    )


def _end(span: Span | None, event: Event, status: str, about: _Attributes | None = None, error: str = "") -> None:
    """End a span; *error* says why, if it has failed."""
    from opentelemetry.trace import StatusCode

    if span is None:
        return
    span.set_attributes({"halter.status": status} | (about or {}))
    if status == "failed":
        span.set_attribute("error.type", "_OTHER")  # the conventions' name for one that is not classified
        span.set_status(StatusCode.ERROR, error)
    span.end(_nanoseconds(event.time))


def _link(span: Span, context: Context) -> None:
    """Link to the trace of a further message: a span has one parent only."""
    from opentelemetry import trace

    span.add_link(trace.get_current_span(context).get_span_context())


def _tokens(usage: Usage) -> _Attributes:
    return {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
    }


def _provider(agent: Agent, name: str) -> str:
    """The provider of one of the agent's models: of an `OpenAIModel`, "openai"."""
    models = (agent.model, *agent.fallbacks)
    model = next((each for each in models if each.name == name), agent.model)
    return type(model).__name__.removesuffix("Model").lower()


def _nanoseconds(moment: float) -> int:
    return int(moment * 1e9)
