"""The OpenAPI document, made from the routes and schemas."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from halter.gateway.http.errors import MEDIA_TYPE, ProblemBody
from halter.gateway.http.routes import ROUTES, Route
from halter.gateway.http.schemas import MessageForm
from halter.gateway.openai.errors import OpenAIErrorBody

__all__ = ["document"]

_REF: Final = "#/components/schemas/{name}"
_JSON: Final = "application/json"
_PLACE: Final = re.compile(r"\{(\w+)(?::[^}]*)?\}")
_INTRO: Final = """\
Sessions with agents. A message that was answered with 202 is stored, and is applied exactly once. Closing a connection
does not stop anything; stopping is always a command. Events resume after `Last-Event-ID`, without gaps or repeats.
Only requests to OpenAI's routes are different: they end with their connection, and store nothing."""


def document() -> bytes:
    """The document as JSON."""
    kinds: list[Any] = [ProblemBody, OpenAIErrorBody]
    for route in ROUTES:
        kinds += [kind for kind in (route.takes, route.gives) if isinstance(kind, type) and kind not in kinds]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas[MessageForm.__name__]["properties"] |= {"image": _files(), "audio": _files()}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(_PLACE.sub(r"{\1}", route.path), {})[route.method.lower()] = _operation(route)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Halter gateway", "version": "1", "description": _INTRO},
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            },
        }
    )


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": _parameters(route),
        "responses": _responses(route),
        "security": [{"key": []}] if route.scope is not None else [],
    }
    if route.scope is not None:
        operation["description"] = f"Needs a key of scope `{route.scope}`."
    if isinstance(route.takes, str):
        body = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"required": True, "content": {route.takes: body}}
    elif route.takes is not None:
        # One type for each address: generators of clients do not handle two. `messages` takes forms as well.
        kind = "multipart/form-data" if route.takes is MessageForm else _JSON
        content = {kind: {"schema": _ref(route.takes)}}
        operation["requestBody"] = {"required": not route.may_be_empty, "content": content}
    return operation


def _parameters(route: Route) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PLACE.findall(route.path)
    ]
    number = {"type": "integer", "minimum": 0, "maximum": 0xFFFFFFFF}
    if route.name in ("events", "socket"):
        found.append({"name": "after", "in": "query", "schema": number})
        found.append({"name": "Last-Event-ID", "in": "header", "schema": number})
    if route.name == "sessions":
        found.append({"name": "limit", "in": "query", "schema": number | {"maximum": 1000}})
        found.append({"name": "search", "in": "query", "schema": {"type": "string", "maxLength": 200}})
    if route.name == "changes":
        found.append({"name": "scope", "in": "query", "schema": {"enum": ["turn", "session"]}})
    return found


def _responses(route: Route) -> dict[str, Any]:
    good: dict[str, Any] = {"description": route.summary}
    if isinstance(route.gives, str):
        good["content"] = {route.gives: {}}
    elif route.gives is not None:
        schema = _ref(route.gives)
        good["content"] = {_JSON: {"schema": {"type": "array", "items": schema} if route.is_many else schema}}
    responses = {str(route.status): good}
    if route.name == "create":
        responses["200"] = {**good, "description": "It already exists"}
    if route.name in ("page", "page_file"):
        responses["304"] = {"description": "Not modified"}
    kind, error = (_JSON, OpenAIErrorBody) if route.is_openai else (MEDIA_TYPE, ProblemBody)
    responses["default"] = {
        "description": "A problem; it names the field if one is wrong",
        "content": {kind: {"schema": _ref(error)}},
    }
    return responses


def _files() -> dict[str, Any]:
    """Any number of parts with the same name."""
    return {"type": "array", "items": {"type": "string", "format": "binary", "minLength": 1}}


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}
