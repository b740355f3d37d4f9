"""JSON that a client asks for: the model is given the schema, and the answer is checked to be an object.

Whether the object fits the schema is for the client to check, as OpenAI's own does: most providers hold to it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from halter.gateway.http.errors import Problem
from halter.models.errors import UNREADABLE
from halter.models.output_schema import strict_schema
from halter.models.types import OutputSchema
from halter.tools.schema.output import BadOutput, OutputType

__all__ = ["JSONFormat", "RequestedOutput", "SchemaFormat", "TextFormat", "read_format"]

_ANY_OBJECT: Final = OutputSchema("answer", {"type": "object"})
_NOT_JSON: Final = "Your answer must be one JSON object and nothing else: no other text, no code fence. Answer again."


class SchemaFormat(Struct, kw_only=True):
    """A JSON schema by its name."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
    schema: dict[str, Any]


class TextFormat(Struct, tag_field="type", tag="text"):
    """Any text."""


class JSONFormat(Struct, tag_field="type", tag="json_object"):
    """Any JSON object."""


class RequestedOutput(OutputType):
    """A JSON object, in place of a Python type."""

    def __init__(self, schema: OutputSchema) -> None:
        self.schema = schema

    def parse(self, text: str) -> dict[str, Any]:
        """Return the object, or raise `BadOutput`."""
        try:
            value = msgspec.json.decode(text)
        except UNREADABLE as error:
            raise BadOutput(_NOT_JSON) from error
        if not isinstance(value, dict):
            raise BadOutput(_NOT_JSON)
        return value


def read_format(wanted: TextFormat | JSONFormat | SchemaFormat | None, field: str) -> RequestedOutput | None:
    """What the answer has to be; None if that is text. Raises `Problem` if not every provider knows such a schema."""
    if isinstance(wanted, JSONFormat):
        return RequestedOutput(_ANY_OBJECT)
    if not isinstance(wanted, SchemaFormat):
        return None
    try:
        schema = strict_schema(wanted.schema, all_required=False)
    except RecursionError:
        schema = None
    if schema is None or schema.get("type") != "object":
        msg = "this schema is not supported: use an object with named properties, of which each has a type"
        raise Problem(422, msg, field=field, kind="schema")
    return RequestedOutput(OutputSchema(wanted.name, schema))
