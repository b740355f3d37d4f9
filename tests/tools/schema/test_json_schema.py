"""Schemas: valid, without references where that can be, and as the vendors' SDKs know them."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import inspect
import pathlib
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict, Union

import jsonschema
import msgspec
import openai.types.chat
import pydantic
import pytest
from anthropic.types import ToolParam
from hypothesis import given
from hypothesis import strategies as st

from halter import BadArguments
from halter.models import AnthropicModel, ModelRequest, OpenAIModel, UserMessage
from halter.tools import Tool, tool
from halter.tools.schema.json_schema import brief


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    color: Color = Color.RED


@dataclasses.dataclass
class Node:
    value: int
    children: list[Node] = dataclasses.field(default_factory=list)


class Entry(TypedDict):
    name: str
    size: NotRequired[int]


class Pair(NamedTuple):
    a: int
    b: str


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    tricks: list[str]


class Filter(pydantic.BaseModel):
    """How to filter."""

    field: str
    points: list[Point] = []


class Tree(pydantic.BaseModel):
    label: str
    below: list[Tree] = []


HINTS: list[tuple[Any, Any, Any]] = [
    (str, "a", "a"),
    (int, 1, 1),
    (float, 1, 1.0),
    (bool, True, True),
    (list, [1], [1]),
    (list[int], [1], [1]),
    (dict, {"a": 1}, {"a": 1}),
    (dict[str, list[float]], {"a": [1.5]}, {"a": [1.5]}),
    (dict[int, str], {"1": "a"}, {1: "a"}),
    (tuple[int, str], [1, "a"], (1, "a")),
    (set[int], [1, 2], {1, 2}),
    (Any, {"a": None}, {"a": None}),
    (bytes, "YQ==", b"a"),
    (Literal["a", "b"], "b", "b"),
    (Literal[1, "b"], 1, 1),
    (Color, "red", Color.RED),
    (Optional[int], None, None),  # noqa: UP045
    (Union[int, str], "a", "a"),  # noqa: UP007
    (int | None, 1, 1),
    (Point, {"x": 1}, Point(1)),
    (list[Point], [{"x": 1, "color": "blue"}], [Point(1, Color.BLUE)]),
    (Node, {"value": 1, "children": [{"value": 2}]}, Node(1, [Node(2)])),
    (Entry, {"name": "n"}, {"name": "n"}),
    (Pair, [1, "a"], Pair(1, "a")),
    (Cat | Dog, {"type": "Dog", "tricks": ["sit"]}, Dog(["sit"])),
    (Point | Entry, {"name": "n"}, {"name": "n"}),
    (Annotated[int, msgspec.Meta(ge=1, le=5, description="how many")], 5, 5),
    (Annotated[int, "how many"], 5, 5),
    (datetime.datetime, "2024-01-02T03:04:05Z", datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)),
    (datetime.date | None, "2024-01-02", datetime.date(2024, 1, 2)),
    (datetime.timedelta, "PT5S", datetime.timedelta(seconds=5)),
    (uuid.UUID, str(uuid.UUID(int=1)), uuid.UUID(int=1)),
    (decimal.Decimal, "1.50", decimal.Decimal("1.50")),
    (pathlib.Path, "/x", pathlib.Path("/x")),
    (pathlib.Path | None, None, None),
    (list[pathlib.Path], ["x"], [pathlib.Path("x")]),
    (str | pathlib.Path, "x", "x"),
    (pathlib.Path | list[pathlib.Path] | None, ["x"], [pathlib.Path("x")]),
    (Filter, {"field": "f", "points": [{"x": 1}]}, Filter(field="f", points=[Point(1)])),
    (list[Filter] | None, [{"field": "f"}], [Filter(field="f")]),
    (Tree, {"label": "a", "below": [{"label": "b"}]}, Tree(label="a", below=[Tree(label="b")])),
    (Annotated[int, pydantic.Field(ge=3, description="three or more")], 3, 3),
    (Filter | Point, {"x": 1}, Point(1)),
]


def tool_of(hint: Any, default: Any = ...) -> Tool[..., Any]:
    def f(value) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    f.__annotations__["value"] = hint
    if default is not ...:
        f.__defaults__ = (default,)
    return tool(f)


def check(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(("hint", "given_value", "wanted"), HINTS)
def test_every_hint_has_a_schema_and_a_conversion(hint: Any, given_value: Any, wanted: Any) -> None:
    """What the schema allows is converted to what the hint says, and both vendors know the schema for one."""
    made = tool_of(hint)
    schema = made.spec.parameters
    check(schema)
    arguments = {"value": given_value}
    jsonschema.validate(arguments, schema)
    assert made.bind_arguments(msgspec.json.encode(arguments).decode()) == {"value": wanted}
    request = ModelRequest([UserMessage.of("x")], tools=[made.spec])
    for body, kind in (
        (OpenAIModel("m").body(request), openai.types.chat.ChatCompletionFunctionToolParam),
        (AnthropicModel("m").body(request), ToolParam),
    ):
        pydantic.TypeAdapter(list[kind]).validate_python(body["tools"], strict=True)  # type: ignore[valid-type]
    assert brief(schema["properties"]["value"])


def test_references_are_inlined() -> None:
    """A server that knows no $ref can use every schema of a type that does not refer to itself."""
    for hint, _, _ in HINTS:
        schema = tool_of(hint).spec.parameters
        assert ("$ref" in str(schema)) == (hint in (Node, Tree)), hint
    assert tool_of(Point).spec.parameters["properties"]["value"]["properties"]["color"]["enum"] == ["blue", "red"]


def test_recursive_types_are_defined_once() -> None:
    """A type that refers to itself is kept under $defs, each parameter's apart from the others'."""

    @tool
    def f(a: Node, b: Tree) -> None: ...

    schema = f.spec.parameters
    assert sorted(schema["$defs"]) == ["a.Node", "b.Tree"]
    jsonschema.validate({"a": {"value": 1, "children": [{"value": 2}]}, "b": {"label": "x"}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"a": {"value": 1, "children": [{"value": "no"}]}, "b": {"label": "x"}}, schema)


def test_two_types_of_one_name() -> None:
    """Types that share a name are not taken for one another."""

    def make(kind: Any) -> Any:
        return dataclasses.make_dataclass("Same", [("x", kind)])

    def f(a, b) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    f.__annotations__.update(a=make(int), b=make(str))
    properties = tool(f).spec.parameters["properties"]
    assert properties["a"]["properties"]["x"] == {"type": "integer"}
    assert properties["b"]["properties"]["x"] == {"type": "string"}


def test_choices_have_a_type() -> None:
    """Literals and enums say of which type they are, if it is one."""
    assert tool_of(Literal["a", "b"]).spec.parameters["properties"]["value"] == {"type": "string", "enum": ["a", "b"]}
    assert "type" not in tool_of(Literal[1, "b"]).spec.parameters["properties"]["value"]


def test_words_come_from_the_hint_too() -> None:
    """A parameter without a line in the docstring is described by its hint."""
    for hint, words in (
        (Annotated[int, "how many"], "how many"),
        (Annotated[int, msgspec.Meta(description="how many")], "how many"),
        (Annotated[int, pydantic.Field(description="how many")], "how many"),
    ):
        assert tool_of(hint).spec.parameters["properties"]["value"]["description"] == words


@pytest.mark.parametrize(
    ("default", "told"),
    [(None, None), ([1], [1]), (Color.RED, "red"), (pathlib.Path("/x"), "/x"), (Point(1), {"x": 1, "color": "red"})],
)
def test_defaults_are_told(default: Any, told: Any) -> None:
    """A default is in the schema as JSON, and the parameter is not required."""
    schema = tool_of(Any, default).spec.parameters
    assert schema["properties"]["value"]["default"] == told
    assert schema["required"] == []


def test_a_default_without_json_is_not_told() -> None:
    """Any object may be a default; the model need not know it."""
    assert tool_of(str, object()).spec.parameters["properties"]["value"] == {"type": "string"}


class Custom:
    pass


@pytest.mark.parametrize("hint", [Custom, list[Custom], Custom | int, object, "Custom | Point"])
def test_types_that_cannot_be_told(hint: Any) -> None:
    """A type that has no JSON is an error where the tool is defined, and names the parameter."""
    with pytest.raises(TypeError, match=r"tool 'f': .*value"):
        tool_of(hint)


def test_brief_words() -> None:
    """A schema in a few words, for messages."""
    assert brief({"enum": list(range(20))}).endswith("7, ...")
    assert brief({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]}) == (
        "array of integer or null"
    )
    assert brief({"const": 1}) == "1"
    assert brief({"type": ["string", "null"]}) == "string or null"
    assert brief({"$ref": "#/$defs/x"}) == "object"
    assert brief({}) == "any value"


SIMPLE = st.sampled_from([hint for hint, _, _ in HINTS])
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=5),
        st.sampled_from(["5", "null", "[1]", "red", "/x", "2024-01-02", '{"x": 1}']),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["x", "value", "name", "children", "type", "field"]), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(SIMPLE, VALUES)
def test_what_is_converted_fits(hint: Any, value: Any) -> None:
    """Random values for random hints: arguments that fit, or a text for the model, and never another error."""
    made = TOOLS[str(hint)]
    try:
        kwargs = made.bind_arguments(msgspec.json.encode({"value": value}).decode())
    except BadArguments as error:
        assert "value" in str(error)
    else:
        assert set(kwargs) == {"value"}


@given(
    st.lists(st.tuples(SIMPLE, st.booleans()), max_size=5),
    st.dictionaries(st.sampled_from([f"p{n}" for n in range(6)]), VALUES, max_size=6),
)
def test_any_signature(hints: list[tuple[Any, bool]], values: dict[str, Any]) -> None:
    """Any signature has a valid schema, and any arguments for it fit or are answered with all that is wrong."""
    parameters = [
        inspect.Parameter(
            f"p{n}",
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hint,
            default=None if has_default else inspect.Parameter.empty,
        )
        for n, (hint, has_default) in enumerate(hints)
    ]

    def f(**_: Any) -> None: ...

    f.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made = tool(f)
    check(made.spec.parameters)
    names = {parameter.name for parameter in parameters}
    required = {parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty}
    assert set(made.spec.parameters["required"]) == required
    try:
        kwargs = made.bind_arguments(msgspec.json.encode(values).decode())
    except BadArguments as error:
        wrong = (required - set(values)) | (set(values) - names)
        assert all(name in str(error) for name in wrong)
    else:
        assert required <= set(kwargs) <= names
        assert set(values) <= names


TOOLS = {str(hint): tool_of(hint) for hint, _, _ in HINTS}
