"""The schema of a typed answer, in the forms that providers accept.

Providers that enforce a schema accept only a part of JSON Schema, and refuse the request if there is more in it. So
`strict_schema` keeps what all of them accept and moves the rest, such as `minimum`, into descriptions, where the model
can read it. It is enforced in any case: the session checks the answer against the type itself.

Where a provider has no means, or the schema cannot be written this way, `with_schema` adds it to the instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from halter.models.types import ModelRequest, OutputSchema

__all__ = ["is_overridden", "is_recursive", "openai_schema", "strict_schema", "with_schema"]

Schema = dict[str, Any]

_FORMATS: Final = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_LOOSE: Final = frozenset({"allOf", "patternProperties", "prefixItems"})
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
# Of keywords that are handled below. A schema that a client has sent may have anything there.
_SHAPES: Final = {
    "$defs": dict,
    "$ref": str,
    "anyOf": list,
    "description": str,
    "enum": list,
    "format": str,
    "oneOf": list,
    "properties": dict,
    "required": list,
    "type": str,
}
# Handled below, or of no use to a model.
_HANDLED: Final = frozenset(
    {
        "$defs",
        "additionalProperties",
        "anyOf",
        "const",
        "description",
        "discriminator",
        "enum",
        "items",
        "oneOf",
        "properties",
        "required",
        "title",
        "type",
    }
)
_MAX_DEPTH: Final = 100  # of nesting; providers accept less, and how deep Python can go depends on its version
_INSTRUCTIONS: Final = (
    "Your final answer must be one JSON value that fits this JSON schema, and nothing else: no other text, no code "
    "fence.\n{}"
)


class _NotStrict(Exception):
    """The schema has something that cannot be written in the strict form."""


def strict_schema(schema: Schema, *, all_required: bool) -> Schema | None:
    """The schema in the form that providers enforce; None if it has none, such as objects with any keys.

    With *all_required* the model has to write every property, also those that have a default.
    """
    try:
        return _strict(schema, all_required, _MAX_DEPTH)
    except _NotStrict:
        return None


def openai_schema(output: OutputSchema) -> dict[str, Any]:
    """The name and the schema as OpenAI's APIs expect them: strict if it can be."""
    strict = strict_schema(output.schema, all_required=True)
    schema = output.schema if strict is None else strict
    return {"name": output.name, "strict": strict is not None, "schema": schema}


def is_recursive(schema: Schema) -> bool:
    """Whether the schema refers to itself. All other references were replaced when it was made."""
    return "$defs" in schema


def is_overridden(request: ModelRequest, key: str) -> bool:
    """Whether the user has set *key* of the body, or removed it because the server refuses it: `extra={key: None}`."""
    return key in request.settings.extra


def with_schema(request: ModelRequest) -> ModelRequest:
    """The request with the schema of its answer in the instructions."""
    assert request.output is not None
    text = _INSTRUCTIONS.format(msgspec.json.encode(request.output.schema).decode())
    instructions = f"{request.instructions}\n\n{text}" if request.instructions else text
    return msgspec.structs.replace(request, instructions=instructions)


def _strict(node: Any, all_required: bool, depth: int) -> Schema:  # noqa: ANN401, FBT001  (JSON; and it is passed down)
    if not depth or not isinstance(node, dict) or _LOOSE & node.keys():
        raise _NotStrict
    if not all(isinstance(node[key], kind) for key, kind in _SHAPES.items() if key in node):
        raise _NotStrict
    if "$ref" in node:  # beside it nothing else is allowed
        return {"$ref": node["$ref"]}
    strict: Schema = {key: node[key] for key in ("type", "enum", "const") if key in node}
    members = node.get("anyOf") or node.get("oneOf") or _choices_by_type(node)
    if members:
        strict.pop("enum", None)
        strict["anyOf"] = [_strict(member, all_required, depth - 1) for member in members]
    elif node.get("type") == "object":
        strict |= _object(node, all_required, depth)
    elif node.get("type") == "array":
        strict["items"] = _strict(node.get("items"), all_required, depth - 1)
    elif not strict:
        raise _NotStrict  # any value
    description = _description(node, strict)
    if description:
        strict["description"] = description
    if "$defs" in node:
        strict["$defs"] = {name: _strict(each, all_required, depth - 1) for name, each in node["$defs"].items()}
    return strict


def _choices_by_type(node: Schema) -> list[Schema]:
    """The choices of a node that has several types of them: in the strict form each needs its type."""
    if "enum" not in node or "type" in node:
        return []
    found: dict[str, list[Any]] = {}
    for each in node["enum"]:
        found.setdefault(_TYPES.get(type(each), ""), []).append(each)
    if "" in found:
        raise _NotStrict
    return [{"type": kind, "enum": each} for kind, each in found.items()]


def _object(node: Schema, all_required: bool, depth: int) -> Schema:  # noqa: FBT001
    if "properties" not in node or node.get("additionalProperties", False) is not False:
        raise _NotStrict  # any keys
    properties = {name: _strict(each, all_required, depth - 1) for name, each in node["properties"].items()}
    required = list(properties) if all_required else [name for name in properties if name in node.get("required", ())]
    return {"properties": properties, "required": required, "additionalProperties": False}


def _description(node: Schema, strict: Schema) -> str:
    """The description, and behind it what the strict form does not have."""
    rest = {key: value for key, value in node.items() if key not in _HANDLED}
    if rest.get("format") in _FORMATS:
        strict["format"] = rest.pop("format")
    if rest.get("default", ...) is None:
        del rest["default"]
    noted = ", ".join(f"{key}: {msgspec.json.encode(value).decode()}" for key, value in rest.items())
    return " ".join(filter(None, (node.get("description", ""), f"({noted})" if noted else "")))
