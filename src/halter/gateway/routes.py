"""Every address of the gateway: what it needs, takes and gives. The app, the OpenAPI document and tests go by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from halter.gateway.messages import (
    AnswerBody,
    AnswerView,
    EditBody,
    LetterView,
    MessageBody,
    ReceiptView,
    SessionBody,
    SessionList,
    SessionView,
    StopAllBody,
    StopBody,
    StoppedView,
)

if TYPE_CHECKING:
    from msgspec import Struct

    from halter.gateway.keys import Scope

__all__ = ["ROUTES", "Route"]


class Route(NamedTuple):
    """One address. `name` is the handler's, and `scope` None where nobody needs a key."""

    method: str
    path: str
    name: str
    summary: str
    scope: Scope | None
    status: int = 200
    gives: type[Struct] | str | None = None  # a struct as JSON, or a media type
    takes: type[Struct] | None = None
    may_be_empty: bool = False
    is_many: bool = False  # gives a list of it


_SESSION: Final = "/v1/sessions/{session}"
ROUTES: Final = (
    Route("GET", "/", "page", "The page", None, gives="text/html"),
    Route("GET", "/page/{file:.+}", "page_file", "A file of the page", None, gives="*/*"),
    Route("GET", "/healthz", "health", "Whether the gateway takes messages", None, gives="application/json"),
    Route("GET", "/openapi.json", "openapi", "This document", None, gives="application/json"),
    Route("GET", "/metrics", "metrics", "Figures for Prometheus", "read", gives="text/plain"),
    Route(
        "POST", "/v1/sessions", "create", "Make a session", "write", 201, SessionView, SessionBody, may_be_empty=True
    ),
    Route("GET", "/v1/sessions", "sessions", "List the sessions, the latest used first", "read", gives=SessionList),
    Route("POST", f"{_SESSION}/stop", "stop", "Stop what runs", "write", 200, ReceiptView, StopBody, may_be_empty=True),
    Route(
        "POST", "/v1/stop", "stop_all", "Stop every session", "admin", 200, StoppedView, StopAllBody, may_be_empty=True
    ),
    Route("GET", _SESSION, "session", "How a session stands", "read", gives=SessionView),
    Route("DELETE", _SESSION, "erase", "Stop a session and erase it", "admin", 204),
    Route("POST", f"{_SESSION}/messages", "message", "Leave a message", "write", 202, ReceiptView, MessageBody),
    Route("GET", f"{_SESSION}/inbox", "inbox", "The messages that wait", "read", gives=LetterView, is_many=True),
    Route(
        "PATCH",
        f"{_SESSION}/inbox/{{message}}",
        "edit",
        "Change a message that waits",
        "write",
        200,
        LetterView,
        EditBody,
    ),
    Route(
        "DELETE", f"{_SESSION}/inbox/{{message}}", "remove", "Take out a message that waits", "write", gives=LetterView
    ),
    Route("POST", f"{_SESSION}/rollback", "rollback", "Take the last turn back", "write", gives=ReceiptView),
    Route("GET", f"{_SESSION}/speech", "speech", "The last answer, said", "read", gives="audio/ogg"),
    Route("GET", f"{_SESSION}/media/{{event}}/{{number}}", "media", "A picture or recording", "read", gives="*/*"),
    Route("GET", f"{_SESSION}/events", "events", "Events as they come", "read", gives="text/event-stream"),
    Route("GET", f"{_SESSION}/ws", "socket", "Events and commands over a WebSocket", "read", 101),
    Route(
        "POST", f"{_SESSION}/answers/{{request}}", "answer", "Answer a question", "write", 200, AnswerView, AnswerBody
    ),
)
