"""The record of a test server: its connections and requests, when each came and how each ended.

Written by the server's thread and read by the tests' threads. Every change wakes those who wait.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SeenConnection", "SeenRequest", "ServerRecord"]


@dataclass
class SeenRequest:
    """A request, as the server saw it. Times are `time.monotonic()`."""

    number: int
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    received: float
    connection: int
    finished: float | None = None
    """When the reply had been sent completely."""
    closed: float | None = None
    """When the client ended the connection before that."""
    pieces: int = 0
    """How many chunks of content had been sent."""

    @property
    def model(self) -> str:
        """The name of the model that was asked."""
        in_path = self.path.rpartition("/models/")[2].partition(":")[0]  # as Gemini has it
        return str(self.body.get("model", in_path))

    @property
    def is_streaming(self) -> bool:
        """Whether the answer should be streamed."""
        return bool(self.body.get("stream")) or ":streamGenerateContent" in self.path


@dataclass
class SeenConnection:
    """A connection, as the server saw it. Times are `time.monotonic()`."""

    number: int
    opened: float
    closed: float | None = None
    closed_by: str = ""
    """`"client"` or `"server"`."""
    requests: list[SeenRequest] = field(default_factory=list)


class ServerRecord:
    """The record, written by the server's thread and read by the test's. `changed` guards it and signals changes."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.requests: list[SeenRequest] = []
        self.connections: list[SeenConnection] = []
        self.errors: list[BaseException] = []

    def opened(self) -> SeenConnection:
        """Note a new connection."""
        with self.changed:
            seen = SeenConnection(len(self.connections) + 1, time.monotonic())
            self.connections.append(seen)
            return seen

    def received(self, seen: SeenConnection, path: str, headers: dict[str, str], body: dict[str, Any]) -> SeenRequest:
        """Note a complete request."""
        with self.changed:
            request = SeenRequest(len(self.requests) + 1, path, headers, body, time.monotonic(), seen.number)
            self.requests.append(request)
            seen.requests.append(request)
            self.changed.notify_all()
            return request

    def sent_piece(self, request: SeenRequest) -> None:
        """Note that a chunk of content was sent."""
        with self.changed:
            request.pieces += 1
            self.changed.notify_all()

    def finished(self, seen: SeenConnection, request: SeenRequest) -> None:
        """Note that a reply was sent completely."""
        with self.changed:
            if seen.closed is None:
                request.finished = time.monotonic()
            self.changed.notify_all()

    def closed(self, seen: SeenConnection, by: str) -> None:
        """Note the end of a connection; the first call decides who ended it."""
        with self.changed:
            if seen.closed is None:
                seen.closed, seen.closed_by = time.monotonic(), by
                for request in seen.requests:
                    if by == "client" and request.finished is None:
                        request.closed = seen.closed
            self.changed.notify_all()

    def wait(self, ready: Callable[[], bool], what: str, timeout: float) -> None:
        """Wait until `ready()`, which is checked at every change."""
        with self.changed:
            if not self.changed.wait_for(ready, timeout):
                raise TimeoutError(
                    f"no {what} within {timeout:g} s: saw {len(self.requests)} requests on {len(self.connections)} "
                    f"connections, {len(self.closes())} of them ended by the client"
                )

    def closes(self) -> list[float]:
        """When clients ended connections, in order."""
        return sorted(
            seen.closed for seen in self.connections if seen.closed is not None and seen.closed_by == "client"
        )
