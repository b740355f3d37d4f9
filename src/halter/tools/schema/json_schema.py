"""JSON schemas in a form that every provider accepts.

An object at the top, no references except in recursive types, and a ``type`` beside every ``enum``: some servers do not
support ``$ref``, and some require a type everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

REF_TEMPLATE: Final = "#/$defs/{name}"
_PREFIX: Final = "#/$defs/"
_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_BRIEF_CHOICES: Final = 8

Schema = dict[str, Any]


def object_schema(properties: dict[str, Schema], required: list[str], definitions: dict[str, Schema]) -> Schema:
    """The schema of all arguments, from those of the parameters, which inline() has processed."""
    schema: Schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if definitions:
        schema["$defs"] = definitions
    return schema


def inline(schema: Schema, definitions: dict[str, Schema], prefix: str) -> tuple[Schema, dict[str, Schema]]:
    """Replace references by their *definitions*. Recursive ones are kept and returned, with *prefix* in their names."""
    inliner = _Inliner(definitions, prefix)
    return inliner.inline(schema), inliner.kept


def inline_object(given: Mapping[str, Any], prefix: str) -> Schema:
    """A schema of parameters from elsewhere, with its definitions inlined: not every provider knows references."""
    schema = dict(given)
    definitions = schema.pop("$defs", None) or {}
    own, recursive = inline(schema, definitions, prefix)
    own.setdefault("type", "object")
    own.setdefault("properties", {})
    if recursive:
        own["$defs"] = recursive
    return own


class _Inliner:
    def __init__(self, definitions: dict[str, Schema], prefix: str) -> None:
        self._definitions = definitions
        self._recursive = {name for name in definitions if name in self._reachable(name)}
        self._prefix = prefix  # two parameters may have different types of one name
        self.kept: dict[str, Schema] = {}

    def _reachable(self, name: str) -> set[str]:
        seen: set[str] = set()
        todo = _references(self._definitions[name])
        while todo:
            each = todo.pop()
            if each not in seen and each in self._definitions:
                seen.add(each)
                todo |= _references(self._definitions[each])
        return seen

    def inline(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.inline(each) for each in node]
        if not isinstance(node, dict):
            return node
        reference = node.get("$ref")
        name = reference.removeprefix(_PREFIX) if isinstance(reference, str) else ""
        if name not in self._definitions:
            # A discriminator refers to definitions, and only OpenAPI supports it.
            kept = {key: self._inline_entry(key, each) for key, each in node.items() if key != "discriminator"}
            return _with_type(kept)
        if name in self._recursive:
            return {**node, "$ref": _PREFIX + self._keep(name)}
        own = {key: each for key, each in node.items() if key != "$ref"}
        return self.inline({**self._definitions[name], **own})

    def _inline_entry(self, key: str, node: Any) -> Any:
        if key in ("default", "enum", "const", "examples", "example"):
            return node  # values, not schemas
        if key in ("properties", "patternProperties") and isinstance(node, dict):
            return {name: self.inline(each) for name, each in node.items()}
        return self.inline(node)

    def _keep(self, name: str) -> str:
        new = f"{self._prefix}.{name}"
        if new not in self.kept:
            self.kept[new] = {}  # added before it is processed, because it refers to itself
            self.kept[new] = self.inline(dict(self._definitions[name]))
        return new


def _references(node: Any) -> set[str]:
    """The names that *node* refers to."""
    if isinstance(node, list):
        return {name for each in node for name in _references(each)}
    if not isinstance(node, dict):
        return set()
    reference = node.get("$ref")
    own = {reference.removeprefix(_PREFIX)} if isinstance(reference, str) else set()
    return own.union(*(_references(each) for each in node.values()))


def _with_type(schema: Schema) -> Schema:
    """Add the type of the choices, if all have the same."""
    choices = schema.get("enum")
    if isinstance(choices, list) and "type" not in schema:
        kinds = {_TYPES.get(type(choice)) for choice in choices}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            return {"type": kind, **schema}
    return schema


def brief(schema: Schema) -> str:  # noqa: PLR0911  (one for each form)
    """A schema in a few words, for error messages to the model."""
    if "enum" in schema:
        shown = [repr(choice) for choice in schema["enum"][:_BRIEF_CHOICES]]
        return "one of " + ", ".join(shown) + (", ..." if len(schema["enum"]) > _BRIEF_CHOICES else "")
    if "const" in schema:
        return repr(schema["const"])
    members = schema.get("anyOf") or schema.get("oneOf")
    if members:
        return " or ".join(dict.fromkeys(brief(member) for member in members))
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("items")
        return f"array of {brief(items)}" if isinstance(items, dict) and items else "array"
    if kind == "object" and schema.get("properties"):
        return "object with " + ", ".join(schema["properties"])
    if isinstance(kind, list):
        return " or ".join(kind)
    return str(kind) if kind else "object" if "$ref" in schema else "any value"
