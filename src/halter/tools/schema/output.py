"""The type of an answer: its JSON schema for the model, and the value from what the model wrote.

Providers expect an object. Any other type (a list, a `Literal`, a union) is wrapped into `{"value": ...}` and unwrapped
again. As with the arguments of tools, unambiguous mistakes of models are corrected: a code fence around the JSON, a
value that was not wrapped, `5.0` for an integer.
"""

from __future__ import annotations

import re
from typing import Any, Final

from halter.models.types import OutputSchema
from halter.tools.schema.arguments import BadArguments, convert_value, decode_json, located_problem
from halter.tools.schema.hints import hint_of
from halter.tools.schema.json_schema import brief, inline, object_schema

__all__ = ["BadOutput", "OutputType"]

_KEY: Final = "value"
_FENCE: Final = re.compile(r"```[a-zA-Z]*\s*\n(?P<inside>.*)\n\s*```", re.DOTALL)
_NOT_IN_NAMES: Final = re.compile(r"[^a-zA-Z0-9_-]+")
_MAX_NAME: Final = 64
_MAX_LENGTH: Final = 2_000  # characters of a message


class BadOutput(ValueError):
    """An answer does not fit the type. The text tells the model how to correct it."""


class OutputType:
    """A type that answers must have."""

    def __init__(self, annotation: Any) -> None:
        """Raises TypeError if the type has no JSON schema."""
        name = annotation.__name__ if isinstance(annotation, type) else "answer"
        try:
            self._hint = hint_of(annotation)
            own, definitions = self._hint.schema()
        except (TypeError, NameError) as error:
            raise TypeError(
                f"output={annotation!r:.80} cannot be described as JSON ({error}); use a Struct, a dataclass, a "
                "TypedDict, a pydantic model, or list, dict, Literal and the like of those"
            ) from error
        schema, kept = inline(own, definitions, "of")
        self._is_wrapped = schema.get("type") != "object" or "properties" not in schema
        if self._is_wrapped:
            schema = object_schema({_KEY: schema}, [_KEY], kept)
        elif kept:
            schema = {**schema, "$defs": kept}
        self.schema = OutputSchema(_NOT_IN_NAMES.sub("_", name).strip("_")[:_MAX_NAME] or "answer", schema)
        """What the model is asked for."""

    def parse(self, text: str) -> Any:
        """Return the value of an answer, or raise BadOutput."""
        try:
            return self._convert(decode_json(_without_fence(text)))
        except BadArguments as error:
            problem = located_problem(str(error)).removeprefix(": ")[:_MAX_LENGTH] if text.strip() else "it is empty"
            raise BadOutput(
                f"Your answer does not have the required format: {problem}. Answer again with nothing but JSON: "
                f"{self._expected()}."
            ) from error

    def _expected(self) -> str:
        properties = self.schema.schema["properties"]
        shown = ", ".join(f"{name} ({brief(each)})" for name, each in properties.items())
        return f"an object with {shown[:_MAX_LENGTH]}" if shown else "{}"

    def _convert(self, value: Any) -> Any:
        if self._is_wrapped and isinstance(value, dict) and value.keys() == {_KEY}:
            value = value[_KEY]
        return convert_value(self._hint, value)


def _without_fence(text: str) -> str:
    fenced = _FENCE.fullmatch(text.strip())
    return fenced["inside"] if fenced else text
