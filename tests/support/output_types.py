"""Types of answers for tests: of each kind, and with what providers find hard."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic


class City(msgspec.Struct):
    """A city."""

    name: str
    people: Annotated[int, msgspec.Meta(ge=0, description="Who lives there.")]
    founded: date | None = None


@dataclass
class Point:
    x: float
    y: float = 0.0


class Reply(TypedDict):
    mood: Literal["good", "bad"] | None
    remark: NotRequired[str]


class Person(pydantic.BaseModel):
    """A person."""

    name: Annotated[str, pydantic.Field(min_length=2)]
    home: Point | None = None
    tags: list[str] = []


class Tree(pydantic.BaseModel):
    name: str
    below: list[Tree] = []


class Counts(msgspec.Struct):
    of: dict[str, int]


# A type, an answer of it, and the value of that.
EXAMPLES: list[tuple[Any, str, Any]] = [
    (City, '{"name": "Bonn", "people": 3, "founded": null}', City("Bonn", 3)),
    (City, '{"name": "Bonn", "people": 3, "founded": "2020-01-31"}', City("Bonn", 3, date(2020, 1, 31))),
    (Point, '{"x": 1.5, "y": 2}', Point(1.5, 2.0)),
    (Reply, '{"mood": "bad", "remark": "no"}', {"mood": "bad", "remark": "no"}),
    (
        Person,
        '{"name": "Ada", "home": {"x": 1, "y": 0}, "tags": ["a"]}',
        Person(name="Ada", home=Point(1.0), tags=["a"]),
    ),
    (
        Tree,
        '{"value": {"name": "a", "below": [{"name": "b", "below": []}]}}',
        Tree(name="a", below=[Tree(name="b")]),
    ),
    (Counts, '{"of": {"a": 1}}', Counts({"a": 1})),
    (list[Point], '{"value": [{"x": 1, "y": 2}]}', [Point(1.0, 2.0)]),
    (list[Person], '{"value": []}', []),
    (Literal["yes", "no"], '{"value": "yes"}', "yes"),
    (int, '{"value": 5}', 5),
    (bool, '{"value": false}', False),
    (Point | None, '{"value": null}', None),
    (City | int, '{"value": 4}', 4),
    (dict[str, int], '{"value": {"a": 1}}', {"a": 1}),
    (tuple[int, str], '{"value": [1, "a"]}', (1, "a")),
]
EXAMPLE_NAMES = [f"{number}-{getattr(kind, '__name__', 'union')}" for number, (kind, _, _) in enumerate(EXAMPLES)]
