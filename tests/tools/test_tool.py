"""`@tool`: what it takes, what it refuses, and what it leaves as it was."""

from __future__ import annotations

import asyncio
import functools
import os
import pathlib
import pickle
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

import halter
from halter import tool
from halter.tools import IsPath, Tool, ToolContext
from tests.support.processes import run_python


@tool
def double(x: int) -> int:
    """Double a number."""
    return 2 * x


@tool(isolate=True, timeout=5)
def apart(x: int) -> int:
    """Run in a process of its own."""
    return os.getpid() * x


async def coroutine(x: int) -> int:
    return x


def generator(x: int) -> Iterator[int]:
    yield x


async def async_generator(x: int) -> AsyncIterator[int]:
    yield x


class Callables:
    """A callable with a docstring of its class."""

    def __call__(self, x: int) -> int:
        return x

    def method(self, x: int) -> int:
        """Be a method."""
        return x

    async def amethod(self, x: int) -> int:
        return x

    @tool
    def decorated(self, x: int) -> tuple[object, int]:
        """Be a tool of each instance."""
        return self, x

    @staticmethod
    def static(x: int) -> int:
        return x


class Named:
    """A callable whose own attributes look like a tool's."""

    name = "mine"

    def __init__(self) -> None:
        self.timeout = "mine"
        self.spec = "mine"

    def __call__(self, x: int) -> int:
        return x


def takes_more(x: int, y: int = 0) -> int:
    return x + y


@pytest.mark.parametrize(
    ("fn", "name", "kind"),
    [
        (takes_more, "takes_more", "function"),
        (coroutine, "coroutine", "coroutine"),
        (generator, "generator", "generator"),
        (async_generator, "async_generator", "async_generator"),
        (Callables(), "Callables", "function"),
        (Callables().method, "method", "function"),
        (Callables().amethod, "amethod", "coroutine"),
        (Callables.static, "static", "function"),
        (functools.partial(takes_more, y=1), "takes_more", "function"),
        (functools.partial(coroutine), "coroutine", "coroutine"),
    ],
)
def test_every_kind_of_function_can_be_a_tool(fn: Any, name: str, kind: str) -> None:
    """Functions, coroutines, generators, methods, partials and callable objects are tools, each known for its kind."""
    made = tool(fn)
    assert (made.name, made.kind) == (name, kind)
    assert made.spec.parameters["properties"]["x"] == {"type": "integer"}
    assert made.bind_arguments('{"x": 3}') == {"x": 3}


def test_a_tool_still_is_its_function() -> None:
    """A decorated function is called, awaited and iterated as before, so that it can be tested."""
    assert double(4) == 8
    assert double.__name__ == "double"
    assert double.__doc__ == "Double a number."
    assert asyncio.run(tool(coroutine)(3)) == 3
    assert list(tool(generator)(3)) == [3]


def test_the_options_are_attributes() -> None:
    """What was asked for is there for whoever runs the tool."""

    @tool(name="other", timeout=3, on_steer="finish", grace=1, exclusive=True, approval=True)
    def f() -> None: ...

    assert (f.name, f.timeout, f.on_steer, f.grace) == ("other", 3.0, "finish", 1.0)
    assert (f.isolate, f.exclusive, f.approval) == (False, True, True)
    assert (double.timeout, double.grace, double.on_steer, double.approval) == (None, None, "break", False)
    assert repr(f) == "<Tool other (function)>"


def test_the_docstring_is_what_the_model_is_told() -> None:
    """The spec has the description, the parameters' docs, their types and defaults."""

    @tool
    def web_search(query: str, limit: int = 5) -> str:
        """Search the web.

        Args:
            query: what for

        """
        return query * limit

    assert web_search.description == "Search the web."
    assert web_search.spec.description == "Search the web."
    assert web_search.spec.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "what for"},
            "limit": {"type": "integer", "default": 5},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


def test_attributes_of_the_function_stay_its_own() -> None:
    """A callable object with attributes of our names does not change what the tool is."""
    made = tool(Named())
    assert (made.name, made.timeout, made.spec.name) == ("Named", None, "Named")


def test_a_callable_object_is_described_by_its_class() -> None:
    """An object without a docstring on its call has its class's."""
    assert tool(Callables()).description == "A callable with a docstring of its class."


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"name": "no spaces"}, ValueError, "letters, digits"),
        ({"name": ""}, ValueError, "1 to 64"),
        ({"name": "x" * 65}, ValueError, "1 to 64"),
        ({"name": "line\n"}, ValueError, "letters"),
        ({"timeout": -1}, ValueError, "timeout"),
        ({"timeout": "5"}, TypeError, "timeout"),
        ({"grace": float("nan")}, ValueError, "grace"),
        ({"on_steer": "stop"}, ValueError, "on_steer"),
        ({"isolate": 1}, TypeError, "isolate must be True or False"),
        ({"approval": "ask"}, TypeError, "approval must be True or False"),
        ({"retries": 3}, TypeError, "retries"),
    ],
)
def test_bad_options_are_refused_at_once(options: dict[str, Any], error: type[Exception], words: str) -> None:
    """A mistake in the options is an error where the tool is defined."""
    with pytest.raises(error, match=words):
        tool(**options)(takes_more)


@pytest.mark.parametrize("fn", [5, "name", int, Callables, None.__class__])
def test_what_is_no_function_is_refused(fn: Any) -> None:
    """Values and classes are no tools."""
    with pytest.raises(TypeError, match="made from a function"):
        tool(fn)


def test_a_tool_is_not_made_twice() -> None:
    """Decorating a tool again is a mistake."""
    with pytest.raises(TypeError, match="already"):
        tool(double)


def test_a_lambda_needs_a_name() -> None:
    """A function without a usable name can be given one."""
    with pytest.raises(ValueError, match="name="):
        tool(lambda x: x)
    assert tool(name="same")(lambda x: x).name == "same"


def test_only_what_can_be_imported_can_be_isolated() -> None:
    """Isolation of what cannot run in another process is refused where the tool is defined."""

    def local(x: int) -> int:
        return x

    def with_context(ctx: ToolContext) -> None: ...

    with_context.__qualname__ = "with_context"
    for fn in (local, lambda x: x, coroutine, generator, async_generator, Callables().method, Callables()):
        with pytest.raises(TypeError, match="cannot be isolated"):
            tool(name="t", isolate=True)(fn)
    with pytest.raises(TypeError, match="current_token"):
        tool(isolate=True)(with_context)


def test_an_isolated_tool_runs_in_another_process() -> None:
    """A tool travels by its name, whether it was decorated in place or made of a function elsewhere."""
    assert halter.run_isolated(apart, x=1) not in (0, os.getpid())
    assert pickle.loads(pickle.dumps(apart)) is apart
    made = tool(name="elsewhere", isolate=True)(takes_more)
    assert pickle.loads(pickle.dumps(made)).name == "elsewhere"
    assert halter.run_isolated(made, x=1, y=2) == 3


def test_a_method_becomes_a_tool_of_its_instance() -> None:
    """A tool in the body of a class has no `self` for the model, and each instance has its own."""
    one, two = Callables(), Callables()
    assert list(one.decorated.spec.parameters["properties"]) == ["x"]
    assert one.decorated(x=1) == (one, 1)
    assert two.decorated(x=2) == (two, 2)
    assert isinstance(Callables.decorated, Tool)
    assert Callables.decorated.needs_self
    assert not one.decorated.needs_self


def test_the_context_is_injected() -> None:
    """A ToolContext parameter of any name gets the context and is not in the schema."""

    @tool
    def f(x: int, whatever: ToolContext | None = None) -> None: ...

    context = ToolContext(halter.NEVER, call_id="c", is_async=False)
    assert f.context_name == "whatever"
    assert list(f.spec.parameters["properties"]) == ["x"]
    assert f.bind_arguments('{"x": 1}', context) == {"x": 1, "whatever": context}
    assert f.bind_arguments('{"x": 1}') == {"x": 1}
    with pytest.raises(halter.BadArguments, match="no parameter 'whatever'"):
        f.bind_arguments('{"x": 1, "whatever": 5}', context)


def test_paths_are_known(tmp_path: pathlib.Path) -> None:
    """Two names of one file are one path: links are followed, relative ones made absolute, marked texts included."""

    @tool
    def f(
        a: pathlib.Path,
        b: list[pathlib.Path] | None = None,
        c: Annotated[str, IsPath] = "",
        d: Annotated[str, IsPath()] = "",
        e: str = "",
        g: dict[str, pathlib.Path] | None = None,
    ) -> None: ...

    real = tmp_path / "real"
    link = tmp_path / "link"
    link.symlink_to(real)
    here = os.path.realpath(".")
    found = f.paths({"a": link, "b": [real, pathlib.Path("x")], "c": "y", "d": "~", "e": "not", "g": {"k": real}})
    assert {str(real.resolve()), f"{here}/x", f"{here}/y", os.path.realpath(os.path.expanduser("~"))} <= set(found)
    assert f"{here}/not" not in found
    assert f.paths({"a": pathlib.Path("nul\0byte")})
    assert f.paths({"a": None}) == []
    assert double.paths({"x": 1}) == []


def test_importing_halter_imports_no_tools() -> None:
    """The names are there, and nothing is loaded for them before they are used; pydantic never is by us."""
    done = run_python(
        """
        import sys, halter
        assert "halter.tools" not in sys.modules
        from halter import tool, ToolContext, ToolOutcome, BadArguments
        import halter.tools
        from halter.tools import tool as same
        assert same is tool and callable(tool), tool
        for name in halter.tools.__all__:
            assert getattr(halter.tools, name) is not None
        assert halter.tools.tool is tool
        assert dir(halter.tools) == sorted(halter.tools.__all__)
        assert not hasattr(halter.tools, "nothing")
        @tool
        def f(x: int): "Do."
        f.bind_arguments('{"x": 1}')
        assert "pydantic" not in sys.modules
        """
    )
    assert done.returncode == 0, done.stderr
