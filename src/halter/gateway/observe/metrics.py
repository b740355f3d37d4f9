"""Metrics of the gateway, for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from halter.events import Event, MessageAccepted, TurnFinished

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

# Seconds. A stop is a matter of milliseconds; what is above a second is a defect, or a tool that needs its grace.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Other reasons are the words of a user, and each of them would be a time series.
_REASONS: Final = frozenset(
    {
        "",
        "stop",
        "interrupt",
        "rollback",
        "shutdown",
        "disconnect",
        "external",
        "crash",
        "pause",
        "timeout",
        "error",
        "output_limit",
        "step_limit",
        "context_limit",
        "lease_lost",
        "token_limit",
        "cost_limit",
        "unknown_price",
        "invalid_output",
    }
)


class Metrics:
    """The metrics of one gateway, in a registry of their own: a program may have several gateways."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._requests = Counter(
            "halter_requests", "Answered requests.", ["method", "route", "status"], registry=registry
        )
        self._messages = Counter("halter_messages", "Accepted messages, by delivery mode.", ["mode"], registry=registry)
        self._refused = Counter("halter_refused", "Requests refused by a limit.", ["limit"], registry=registry)
        self._turns = Counter(
            "halter_turns", "Finished turns, by status and reason.", ["status", "reason"], registry=registry
        )
        self._stops = Histogram(
            "halter_stop_seconds", "Seconds from the stop of a turn to its end.", buckets=_BUCKETS, registry=registry
        )

    def answered(self, method: str, route: str, status: int) -> None:
        """Count a request."""
        self._requests.labels(method, route, status).inc()

    def refused(self, limit: str) -> None:
        """Count a refusal by a limit."""
        self._refused.labels(limit).inc()

    def count(self, event: Event) -> None:
        """Count an event of a session."""
        data = event.data
        if isinstance(data, MessageAccepted):
            self._messages.labels(data.mode).inc()
        elif isinstance(data, TurnFinished):
            self._turns.labels(data.status, data.reason if data.reason in _REASONS else "other").inc()
            if data.after is not None:
                self._stops.observe(data.after)

    def text(self, gauges: Mapping[str, tuple[str, float]]) -> bytes:
        """All of them, in the text format of Prometheus; *gauges* has a description and a value of each gauge."""
        for name, (description, value) in gauges.items():
            if name not in self._gauges:
                self._gauges[name] = Gauge(f"halter_{name}", description, registry=self._registry)
            self._gauges[name].set(value)
        return generate_latest(self._registry)
