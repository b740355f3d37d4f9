"""The routes of the gateway: method, path, scope and bodies. The server, the OpenAPI document and tests use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from halter.gateway.http.schemas import (
    AnswerBody,
    AnswerView,
    EditBody,
    InboxMessageView,
    MessageBody,
    MessageForm,
    ReceiptView,
    RollbackBody,
    StopAllBody,
    StopBody,
    StoppedView,
)
from halter.gateway.http.session_schemas import (
    AgentList,
    BranchBody,
    CompactionView,
    PdfText,
    RetryBody,
    SessionBody,
    SessionEditBody,
    SessionList,
    SessionView,
)
from halter.gateway.openai.chat_schemas import ChatCompletion, ChatCompletionBody
from halter.gateway.openai.model_list import ModelList, ModelView
from halter.gateway.openai.response_schemas import ResponseBody, ResponseView
from halter.tools.file_history import FileDiff, RestoredFiles

if TYPE_CHECKING:
    from msgspec import Struct

    from halter.gateway.http.keys import Scope

__all__ = ["ROUTES", "Route"]


class Route(NamedTuple):
    """One route. `name` is that of its handler; `scope` is None if it needs no key."""

    method: str
    path: str
    name: str
    summary: str
    scope: Scope | None
    status: int = 200
    gives: type[Struct] | str | None = None  # a struct as JSON, or a media type
    takes: type[Struct] | str | None = None  # the same
    may_be_empty: bool = False
    is_many: bool = False  # gives a list of it
    is_openai: bool = False  # speaks OpenAI's protocol, also in its errors

    @property
    def is_vital(self) -> bool:
        """Whether it is answered also when all ordinary connections are in use."""
        return self.name in _VITAL


_VITAL: Final = frozenset({"stop", "stop_all", "health"})
_SESSION: Final = "/v1/sessions/{session}"
ROUTES: Final = (
    Route("GET", "/", "page", "The web page", None, gives="text/html"),
    Route("GET", "/page/{file:.+}", "page_file", "A file of the web page", None, gives="*/*"),
    Route("GET", "/healthz", "health", "Health check", None, gives="application/json"),
    Route("GET", "/openapi.json", "openapi", "This document", None, gives="application/json"),
    Route("GET", "/metrics", "metrics", "Prometheus metrics", "read", gives="text/plain"),
    Route(
        "POST", "/v1/sessions", "create", "Create a session", "write", 201, SessionView, SessionBody, may_be_empty=True
    ),
    Route("GET", "/v1/sessions", "sessions", "List or search sessions, last used first", "read", gives=SessionList),
    Route(
        "POST", "/v1/pdf", "pdf", "The text of a PDF, for a message", "write", gives=PdfText, takes="application/pdf"
    ),
    Route("GET", "/v1/agents", "agents", "List the agents and models", "read", gives=AgentList),
    Route(
        "POST",
        f"{_SESSION}/stop",
        "stop",
        "Stop the running turn",
        "write",
        200,
        ReceiptView,
        StopBody,
        may_be_empty=True,
    ),
    Route(
        "POST", "/v1/stop", "stop_all", "Stop every session", "admin", 200, StoppedView, StopAllBody, may_be_empty=True
    ),
    Route("GET", _SESSION, "session", "Get a session", "read", gives=SessionView),
    Route(
        "PATCH", _SESSION, "change", "Rename a session or change its model", "write", 200, SessionView, SessionEditBody
    ),
    Route("DELETE", _SESSION, "erase", "Stop and delete a session", "admin", 204),
    Route("POST", f"{_SESSION}/messages", "message", "Send a message", "write", 202, ReceiptView, MessageBody),
    Route(
        "POST",
        f"{_SESSION}/media",
        "media_message",
        "Send a message with images or recordings",
        "write",
        202,
        ReceiptView,
        MessageForm,
    ),
    Route("GET", f"{_SESSION}/inbox", "inbox", "List queued messages", "read", gives=InboxMessageView, is_many=True),
    Route(
        "PATCH",
        f"{_SESSION}/inbox/{{message}}",
        "edit",
        "Edit or release a queued message",
        "write",
        200,
        InboxMessageView,
        EditBody,
    ),
    Route(
        "DELETE",
        f"{_SESSION}/inbox/{{message}}",
        "remove",
        "Remove a queued message",
        "write",
        gives=InboxMessageView,
    ),
    Route(
        "POST",
        f"{_SESSION}/rollback",
        "rollback",
        "Remove the last turn from the conversation; with `files`, also revert its file changes",
        "write",
        200,
        ReceiptView,
        RollbackBody,
        may_be_empty=True,
    ),
    Route(
        "POST",
        f"{_SESSION}/rollback/undo",
        "undo_rollback",
        "Redo the file changes that the last rollback reverted",
        "write",
        gives=RestoredFiles,
    ),
    Route(
        "POST",
        f"{_SESSION}/retry",
        "retry",
        "Remove the last turn and send its message again, changed or not",
        "write",
        202,
        ReceiptView,
        RetryBody,
        may_be_empty=True,
    ),
    Route(
        "POST",
        f"{_SESSION}/branch",
        "branch",
        "Create a session from the conversation before a turn",
        "write",
        201,
        SessionView,
        BranchBody,
        may_be_empty=True,
    ),
    Route("POST", f"{_SESSION}/compact", "compact", "Compact the conversation", "write", 202, CompactionView),
    Route("GET", f"{_SESSION}/changes", "changes", "Files that the last turn has changed", "read", gives=FileDiff),
    Route("GET", f"{_SESSION}/speech", "speech", "The last answer as speech", "read", gives="audio/ogg"),
    Route("GET", f"{_SESSION}/media/{{event}}/{{number}}", "media", "An image or recording", "read", gives="*/*"),
    Route("GET", f"{_SESSION}/events", "events", "Server-sent events", "read", gives="text/event-stream"),
    Route("GET", f"{_SESSION}/ws", "socket", "Events and commands over a WebSocket", "read", 101),
    Route(
        "POST",
        f"{_SESSION}/answers/{{request}}",
        "answer",
        "Answer a question or approval",
        "write",
        200,
        AnswerView,
        AnswerBody,
    ),
    Route("GET", "/v1/models", "models", "List the agents as models", "read", gives=ModelList, is_openai=True),
    Route("GET", "/v1/models/{model}", "model", "Get an agent as a model", "read", gives=ModelView, is_openai=True),
    Route(
        "POST",
        "/v1/chat/completions",
        "chat_completions",
        "Run a turn on a conversation, for OpenAI clients; closing the connection stops it",
        "write",
        gives=ChatCompletion,
        takes=ChatCompletionBody,
        is_openai=True,
    ),
    Route(
        "POST",
        "/v1/responses",
        "responses",
        "Run a turn for clients of OpenAI's Responses API; closing the connection stops it",
        "write",
        gives=ResponseView,
        takes=ResponseBody,
        is_openai=True,
    ),
)
