"""The log: one line of JSON per event, with its session and turn. Secrets are never in it.

The text of messages is not logged either: the store has it, and others may read the log.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from halter._own_keys import with_taken
from halter._secrets import HIDDEN, redact, secrets_of
from halter.events import Event, MessageAccepted, TurnFinished, TurnStarted, TurnStopping
from halter.events.requests import RequestRetry
from halter.models.sanitize import clean_text
from halter.views.text import escape_controls

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KINDS", "JSONLines", "begin", "log_event"]

_log = logging.getLogger("halter.gateway")
KINDS: Final = (RequestRetry,)
"""Events to be logged beside those of messages and turns."""
_FIELDS: Final = (
    "session",
    "turn",
    "route",
    "key",
    "status",
    "reason",
    "seconds",
    "message",
    "mode",
    "by",
    "error",
    "model",
    "attempt",
)
_KEYS: Final = re.compile(r"hk_[0-9a-f]+_[\w-]+|(?<=halter\.key\.)[^\s,\"']+|(?i:(?<=bearer ))[^\s\"']+")


class JSONLines(logging.Formatter):
    """Formats a record as one line of JSON, without keys and secrets of the environment."""

    def __init__(self, env: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._secrets = secrets_of(with_taken() if env is None else env)

    def format(self, record: logging.LogRecord) -> str:
        """Make the line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": self._clean(record.getMessage()),
        }
        for name in _FIELDS:
            value = record.__dict__.get(f"halter_{name}", record.__dict__.get(name))
            if value not in (None, ""):
                line[name] = self._clean(value) if isinstance(value, str) else value
        if record.exc_info:
            line["traceback" if "error" in line else "error"] = self._clean(self.formatException(record.exc_info))
        return escape_controls(msgspec.json.encode(line)).decode()

    def _clean(self, text: str) -> str:
        return clean_text(redact(_KEYS.sub(HIDDEN, text), self._secrets))


def begin(level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Log everything of Halter from this level on, to standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JSONLines())
    logger = logging.getLogger("halter")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
    return handler


def log_event(event: Event) -> None:
    """Log messages, by id, turns and retries. A failed turn and a retry are warnings, with the error."""
    data = event.data
    level = logging.INFO
    if isinstance(data, RequestRetry) or (isinstance(data, TurnFinished) and data.status == "failed"):
        level = logging.WARNING
    if not _log.isEnabledFor(level):
        return
    extra: dict[str, Any] = {"session": event.session, "turn": event.turn}
    if isinstance(data, MessageAccepted):
        extra |= {"halter_message": data.id, "mode": data.mode}  # `message` is an attribute of every record
    elif isinstance(data, TurnStopping):
        extra |= {"reason": data.reason, "by": data.detail or data.by}
    elif isinstance(data, TurnFinished):
        extra |= {"status": data.status, "reason": data.reason, "seconds": data.after, "error": data.error}
    elif isinstance(data, RequestRetry):
        extra |= {"error": data.error, "model": data.model, "attempt": data.attempt}
    elif not isinstance(data, TurnStarted):
        return
    _log.log(level, event.kind, extra=extra)
