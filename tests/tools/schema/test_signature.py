"""Signatures: hints as text, hints that are missing, and parameters that no model can fill in."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import pytest

from halter.tools import ToolContext, tool

if TYPE_CHECKING:
    from decimal import Decimal

    from halter import ToolContext as Renamed


def test_types_of_the_function_around() -> None:
    """Hints may name types that are defined in the function that defines the tool."""

    @dataclasses.dataclass
    class Local:
        x: int

    @tool
    def plain(local: Local) -> None: ...

    @tool(name="with_options")
    def other(local: Local) -> None: ...

    assert plain.bind_arguments('{"local": {"x": 1}}') == {"local": Local(1)}
    assert other.bind_arguments('{"local": {"x": 1}}') == {"local": Local(1)}


def test_types_of_the_closure() -> None:
    """So do names that the function itself closes over, wherever it is made a tool."""

    @dataclasses.dataclass
    class Local:
        x: int

    def made() -> Any:
        def f(local: Local) -> Local:
            return Local(local.x)

        return f

    def elsewhere(fn: Any) -> Any:
        return tool(fn)

    assert elsewhere(made()).bind_arguments('{"local": {"x": 1}}') == {"local": Local(1)}


def test_a_return_hint_does_not_matter() -> None:
    """Only parameters are resolved: a return hint may name what is there for type checkers only."""

    @tool
    def f(x: int) -> Decimal:  # type: ignore[empty-body]
        ...

    assert f.bind_arguments('{"x": 1}') == {"x": 1}


def test_a_hint_that_cannot_be_resolved() -> None:
    """A parameter's hint that is there for type checkers only is an error that says so."""
    with pytest.raises(TypeError, match=r"'f'.*'Decimal' of x cannot be resolved.*type checkers"):

        @tool
        def f(x: Decimal) -> None: ...

    with pytest.raises(TypeError, match="cannot be resolved"):

        @tool
        def g(x: Renamed) -> None: ...


def test_the_context_may_be_imported_for_type_checkers_only() -> None:
    """`ToolContext` is known by its name even where it was never imported."""
    namespace: dict[str, Any] = {}
    exec("from __future__ import annotations\ndef f(x: int, ctx: ToolContext): ...", namespace)
    assert tool(namespace["f"]).context_name == "ctx"


def test_no_hint_is_any_value() -> None:
    """A parameter without a hint takes whatever JSON there is."""

    @tool
    def f(x, y=None) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    assert f.spec.parameters["properties"] == {"x": {}, "y": {"default": None}}
    assert f.bind_arguments('{"x": [1, {"a": null}]}') == {"x": [1, {"a": None}]}


def positional(x: int, /) -> None: ...
def star(*x: int) -> None: ...
def star_star(**x: int) -> None: ...
def two_contexts(a: ToolContext, b: ToolContext) -> None: ...


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (positional, "by position only"),
        (star, r"takes \*x; take a list"),
        (star_star, r"takes \*\*x; take a dict"),
        (two_contexts, "one is enough"),
        (min, "does not know the parameters|position only"),
    ],
)
def test_what_a_model_cannot_fill_in(fn: Any, words: str) -> None:
    """Parameters that have no name for the model are an error with a cure."""
    with pytest.raises(TypeError, match=words):
        tool(fn)


def test_a_wrapped_function_keeps_its_hints() -> None:
    """A decorator that uses functools.wraps does not hide the hints."""

    def logged(fn: Any) -> Any:
        @functools.wraps(fn)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return wrapper

    @tool
    @logged
    def f(x: int) -> int:
        """Do."""
        return x

    assert f.spec.parameters["properties"] == {"x": {"type": "integer"}}
    assert f.description == "Do."
    assert f(x=3) == 3
