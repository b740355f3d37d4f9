"""The log: one line of JSON for each thing that happened, with its session and its turn. Secrets are never in it.

What is said in a session is not logged either: the store has it, and the log is read by others.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

import msgspec

from halter.events import Event, MessageAccepted, TurnFinished, TurnStarted, TurnStopping

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JSONLines", "begin", "log_event"]

_log = logging.getLogger("halter.gateway")
_FIELDS: Final = ("session", "turn", "route", "key", "status", "reason", "seconds", "message", "mode", "by")
_KEYS: Final = re.compile(r"hk_[0-9a-f]+_[\w-]+|(?<=halter\.key\.)[^\s,\"']+|(?i:(?<=bearer ))[^\s\"']+")
_SECRET: Final = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
_SHORTEST: Final = 8  # a shorter value would be found in any text
_HIDDEN: Final = "[hidden]"


class JSONLines(logging.Formatter):
    """Writes a record as one line of JSON, without anything that looks like a key or is a secret of the environment."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        super().__init__()
        self._secrets = sorted(
            {value for name, value in env.items() if _SECRET.search(name) and len(value) >= _SHORTEST}, key=len
        )

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
            line["error"] = self._clean(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()

    def _clean(self, text: str) -> str:
        text = _KEYS.sub(_HIDDEN, text)
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return text.encode("utf-8", "replace").decode()


def begin(stream: TextIO | None = None) -> logging.Handler:
    """Have all that Halter says logged, on standard error."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JSONLines())
    logger = logging.getLogger("halter")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    return handler


def log_event(event: Event) -> None:
    """Log what is worth it: messages, by their names, and turns."""
    if not _log.isEnabledFor(logging.INFO):
        return
    data = event.data
    extra: dict[str, Any] = {"session": event.session, "turn": event.turn}
    if isinstance(data, MessageAccepted):
        extra |= {"halter_message": data.id, "mode": data.mode}  # a record has a `message` of its own
    elif isinstance(data, TurnStopping):
        extra |= {"reason": data.reason, "by": data.detail or data.by}
    elif isinstance(data, TurnFinished):
        extra |= {"status": data.status, "reason": data.reason, "seconds": data.after}
    elif not isinstance(data, TurnStarted):
        return
    _log.info(event.kind, extra=extra)
