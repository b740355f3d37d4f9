"""Arguments as models write them: taken when there is no doubt, else answered with what is wrong."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halter import BadArguments
from halter.tools import tool


@dataclasses.dataclass
class Range:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise KeyError("upside down")


class Filter(pydantic.BaseModel):
    name: str
    size: int = 0


@tool
def search(
    query: str,
    limit: int = 5,
    *,
    tags: list[str] | None = None,
    within: Range | None = None,
    mode: Literal["fast", "deep"] = "fast",
    scale: float = 1.0,
    filters: list[Filter] = [],  # noqa: B006
    root: pathlib.Path = pathlib.Path(),
) -> None:
    """Search."""


@tool
def nothing() -> None:
    """Do nothing."""


def complaint(raw: str) -> str:
    with pytest.raises(BadArguments) as caught:
        search.bind_arguments(raw)
    return str(caught.value)


@pytest.mark.parametrize("raw", ["", "  \n", "null", "{}", '"{}"', '""', '"null"'])
def test_no_arguments(raw: str) -> None:
    """However a model says "no arguments", a tool without required parameters runs."""
    assert nothing.bind_arguments(raw) == {}
    assert "query is missing: expected string" in complaint(raw)


@pytest.mark.parametrize(
    ("raw", "wanted"),
    [
        ('{"query": "x"}', {"query": "x"}),
        ('"{\\"query\\": \\"x\\"}"', {"query": "x"}),
        ('{"query": "5", "limit": "5"}', {"query": "5", "limit": 5}),
        ('{"query": "x", "limit": 5.0}', {"query": "x", "limit": 5}),
        ('{"query": "x", "limit": "5.0"}', {"query": "x", "limit": 5}),
        ('{"query": "x", "limit": null}', {"query": "x"}),
        ('{"query": "x", "tags": null}', {"query": "x", "tags": None}),
        ('{"query": "x", "tags": "[\\"a\\"]"}', {"query": "x", "tags": ["a"]}),
        ('{"query": "x", "mode": "\\"deep\\""}', {"query": "x", "mode": "deep"}),
        ('{"query": "x", "scale": 2}', {"query": "x", "scale": 2.0}),
        ('{"query": "x", "within": "{\\"low\\": 1, \\"high\\": 2.0}"}', {"query": "x", "within": Range(1, 2)}),
        ('{"query": "x", "filters": [{"name": "a"}]}', {"query": "x", "filters": [Filter(name="a")]}),
        ('{"query": "x", "root": "a/b"}', {"query": "x", "root": pathlib.Path("a/b")}),
        ('{"query": "[1]"}', {"query": "[1]"}),
    ],
)
def test_what_is_taken(raw: str, wanted: dict[str, Any]) -> None:
    """Arguments that fit are converted; mistakes that leave no doubt about the meaning are taken as meant."""
    assert search.bind_arguments(raw) == wanted


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ('{"query": 1}', "query: expected `str`, got `int`"),
        ('{"query": "x", "limit": "five"}', "limit: expected `int`, got `str`"),
        ('{"query": "x", "limit": 5.5}', "limit: expected `int`, got `float`"),
        ('{"query": "x", "limit": true}', "limit: expected `int`, got `bool`"),
        ('{"query": null}', "query: expected `str`, got `null`"),
        ('{"query": "x", "tags": [1]}', "tags[0]: expected `str`, got `int`"),
        ('{"query": "x", "within": {"low": 1}}', "within: object missing required field `high`"),
        ('{"query": "x", "within": {"low": 1, "high": "h"}}', "within.high: expected `int`, got `str`"),
        ('{"query": "x", "within": {"low": 2, "high": 1}}', "within: 'upside down'"),
        ('{"query": "x", "mode": "slow"}', "mode: invalid enum value 'slow'"),
        ('{"query": "x", "filters": [{"size": "x"}]}', "filters: 0.name: Field required"),
        ('{"query": "x", "root": 5}', "root: expected a path as `str`, got `int`"),
        ('{"query": "x", "limt": 5}', "there is no parameter 'limt'; did you mean 'limit'?"),
        ('{"query": "x", "zzz": 5}', "there is no parameter 'zzz'"),
        ("[1, 2]", "must be one JSON object, not an array"),
        ("5", "must be one JSON object, not a number"),
        ("true", "must be one JSON object, not a boolean"),
        ('"words"', "the JSON is malformed"),
        ('{"query": "x",\n "limit" 5}', "malformed at line 2, column 10, between"),
        ('{"query": "x"', "ends too early, after 13 characters"),
        ('{"query": "x"} and more', "trailing characters"),
        ("{'query': 'x'}", "line 1, column 2"),
        ('{"query": 1e999}', "Number out of range"),
        ("[" * 100_000, "nested too deeply"),
        ('{"query": "\ud800"}', "not Unicode"),
    ],
)
def test_what_is_refused(raw: str, words: str) -> None:
    """The message names the place and what was expected there, and what the tool takes."""
    text = complaint(raw)
    assert words in text
    assert "query (string, required)" in text
    assert "mode (one of 'deep', 'fast')" in text


def test_all_mistakes_are_told_at_once() -> None:
    """A model need not be corrected one mistake at a time."""
    text = complaint('{"limit": "x", "scale": [], "nope": 1}')
    for words in ("query is missing", "limit: expected", "scale: expected", "'nope'"):
        assert words in text


def test_the_message_is_bounded() -> None:
    """A model that sends a flood is not answered with one."""
    text = complaint(msgspec.json.encode({f"unknown{n}": n for n in range(5000)}).decode())
    assert len(text) < 5000


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["query", "limit", "tags", "within", "low", "high", "filters"]), st.text(max_size=3)
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=15,
)


@given(st.one_of(st.text(), JSON.map(lambda value: msgspec.json.encode(value).decode())), st.integers(0, 200))
def test_whatever_the_model_sends(raw: str, cut: int) -> None:
    """Any text, whole or cut off anywhere: arguments that fit, or BadArguments; never another exception."""
    for text in (raw, raw[:cut], msgspec.json.encode(raw).decode() if raw.isascii() else raw):
        for each in (search, nothing):
            try:
                kwargs = each.bind_arguments(text)
            except BadArguments as error:
                assert each.name in str(error)
            else:
                assert set(kwargs) <= set(each.spec.parameters["properties"])


@given(
    st.fixed_dictionaries(
        {"query": st.text()},
        optional={"limit": st.integers(), "tags": st.lists(st.text()), "mode": st.sampled_from(["fast", "deep"])},
    )
)
def test_what_fits_arrives_unchanged(arguments: dict[str, Any]) -> None:
    """Valid arguments are what the function gets, to the letter."""
    assert search.bind_arguments(msgspec.json.encode(arguments).decode()) == arguments
