"""Types of answers: their schemas, their values, and what a model is told about an answer that does not fit."""

from __future__ import annotations

from typing import Any, Literal

import jsonschema
import msgspec
import pytest

from halter.tools.schema.output import BadOutput, OutputType
from tests.support.output_types import EXAMPLE_NAMES, EXAMPLES, City, Person, Point


@pytest.mark.parametrize(("kind", "text", "value"), EXAMPLES, ids=EXAMPLE_NAMES)
def test_answers_are_read(kind: Any, text: str, value: Any) -> None:
    """An answer that fits the schema becomes a value of the type."""
    output = OutputType(kind)
    assert output.parse(text) == value
    assert output.schema.schema["type"] == "object"
    jsonschema.validate(msgspec.json.decode(text), output.schema.schema)


@pytest.mark.parametrize(("kind", "text", "value"), EXAMPLES, ids=EXAMPLE_NAMES)
def test_wrapping_may_be_forgotten(kind: Any, text: str, value: Any) -> None:
    """A model that was asked for `{"value": ...}` and writes the value alone is understood, in a code fence too."""
    written = msgspec.json.decode(text)
    if written.keys() == {"value"}:
        text = msgspec.json.encode(written["value"]).decode()
    assert OutputType(kind).parse(f"\n```json\n{text}\n```\n") == value


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (City, "", "it is empty"),
        (City, "Sorry, I do not know.", "the JSON is malformed"),
        (City, '{"name": "Bo', "the JSON ends too early"),
        (City, '{"name": "Bonn"}', "missing required field `people`"),
        (City, '{"name": "Bonn", "people": -1}', ".people: expected `int` >= 0"),
        (City, "[]", "expected `object`, got `array`"),
        (City, "[" * 200_000, "nested too deeply"),
        (Point, '{"x": "left"}', ".x: expected `float`, got `str`"),
        (Person, '{"name": "A"}', "name: String should have at least 2 characters"),
        (list[int], '{"value": ["a"]}', "[0]: expected `int`, got `str`"),
        (Literal["yes", "no"], '{"value": "maybe"}', "invalid enum value 'maybe'"),
    ],
)
def test_a_wrong_answer_is_explained(kind: Any, text: str, said: str) -> None:
    """The model is told what is wrong, and what is needed instead."""
    with pytest.raises(BadOutput) as raised:
        OutputType(kind).parse(text)
    assert said in str(raised.value)
    assert "Answer again with nothing but JSON: an object with " in str(raised.value)


def test_names_are_fit_for_providers() -> None:
    """A class names its schema; what has no name of its own is called an answer."""
    names = [OutputType(kind).schema.name for kind in (City, list[int], Point | None, Literal["a"], int)]
    assert names == ["City", "answer", "answer", "answer", "int"]


def test_a_type_without_a_schema_is_refused() -> None:
    """What cannot be described as JSON is refused when the agent is made, and not in its first turn."""
    with pytest.raises(TypeError, match="cannot be described as JSON"):
        OutputType(object)
