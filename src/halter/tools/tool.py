"""A tool: a function that a model may call, and how it wants to be run.

``@tool`` reads the signature, the hints and the docstring once, where the function is defined, and says there and then
what is wrong with them. What it returns still is the function: call it, test it, await it as before.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

import msgspec

from halter.cancel.seconds import check_seconds
from halter.models.model import ToolSpec
from halter.tools.arguments import Argument, read_arguments
from halter.tools.context import ToolContext
from halter.tools.docstring import read_docstring
from halter.tools.hint import hint_of, is_path, words_of
from halter.tools.schema import Schema, inline, object_schema
from halter.tools.signature import EMPTY, Parameter, read_signature, takes_self, underlying

P = ParamSpec("P")
R = TypeVar("R")

Kind: TypeAlias = Literal["function", "coroutine", "generator", "async_generator"]
OnSteer: TypeAlias = Literal["break", "finish"]
# Does a call with these arguments need approval? False, True, or True with the reason that a person is told.
ApprovalRule: TypeAlias = Callable[[Mapping[str, Any]], bool | str]

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Tool(Generic[P, R]):
    """A function with what a model is told of it and how it is to be run. Made by ``@tool``."""

    __name__: str
    __wrapped__: Callable[P, R]

    def __init__(  # noqa: PLR0913  (the options of @tool are the contract)
        self,
        fn: Callable[P, R],
        *,
        name: str | None = None,
        timeout: float | None = None,
        on_steer: OnSteer = "break",
        grace: float | None = None,
        isolate: bool = False,
        exclusive: bool = False,
        approval: bool | ApprovalRule = False,
        local_names: Mapping[str, Any] | None = None,
    ) -> None:
        self.fn = fn
        self.name = _checked_name(fn, name)
        self.timeout = None if timeout is None else check_seconds("timeout", timeout)
        self.grace = None if grace is None else check_seconds("grace", grace)  # None: the batch's default
        self.on_steer: OnSteer = on_steer
        self.isolate = isolate
        self.exclusive = exclusive
        self.approval = approval
        self._check_options()
        self.kind: Kind = kind_of(fn)
        self.needs_self = takes_self(fn)
        signature = read_signature(fn, self.name, local_names or {})
        self.context_name = signature.context_name
        doc = read_docstring(_docstring_of(fn))
        self.description = doc.description
        self._arguments, schema = _describe(self.name, signature.parameters, doc.parameters)
        self._paths = [each.name for each in signature.parameters if is_path(each.annotation)]
        self.spec = ToolSpec(self.name, self.description, schema)
        if isolate:
            self._check_isolation()
        functools.update_wrapper(self, fn, updated=())  # attributes of the function's own must not become ours

    # -- for those who call it ------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as if it were no tool."""
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., R]:
        """A tool in the body of a class is a method: that of an instance is a tool with `self` filled in."""
        if instance is None or not self.needs_self:
            return self
        bound = copy.copy(self)
        bound.fn = bound.__wrapped__ = self.fn.__get__(instance, owner)
        bound.needs_self = False
        return bound

    # -- for those who run it -------------------------------------------------------------------

    def bind_arguments(self, raw_json: str, context: ToolContext | None = None) -> dict[str, Any]:
        """Check a model's arguments and return them as the function wants them, the context among them.

        Raises BadArguments, whose text is for the model, and nothing else, whatever the model wrote. A parameter
        that was left out is not in the result: the function's own default holds.
        """
        kwargs = read_arguments(self.name, self._arguments, raw_json)
        if self.context_name is not None and context is not None:
            kwargs[self.context_name] = context
        return kwargs

    @property
    def touches_paths(self) -> bool:
        """Whether any of its parameters is a path."""
        return bool(self._paths)

    def paths(self, kwargs: Mapping[str, Any]) -> list[str]:
        """The files that a call touches, absolute and with links followed; tools on the same one run in turn.

        They are the values of parameters hinted `Path` or marked `IsPath`. Following links asks the file system.
        """
        found = (path for name in self._paths for path in _paths_in(kwargs.get(name)))
        return sorted({_real(path) for path in found})

    def __copy__(self) -> Tool[P, R]:
        twin: Tool[P, R] = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Travel by name, as functions do: that name means this tool where it was decorated, else its function."""
        qualname = str(getattr(self, "__qualname__", ""))
        if _global(self.__module__, qualname) is self:
            return qualname
        return _remade, (self.fn, self._options())

    def __repr__(self) -> str:
        return f"<Tool {self.name} ({self.kind})>"

    def _options(self) -> dict[str, Any]:
        names = ("name", "timeout", "on_steer", "grace", "isolate", "exclusive", "approval")
        return {name: getattr(self, name) for name in names}

    def _check_options(self) -> None:
        if self.on_steer not in ("break", "finish"):
            msg = f'tool {self.name!r}: on_steer is "break" or "finish", not {self.on_steer!r}'
            raise ValueError(msg)
        for option in ("isolate", "exclusive", "approval"):
            value = getattr(self, option)
            if not isinstance(value, bool) and not (option == "approval" and callable(value)):
                msg = f"tool {self.name!r}: {option} is True or False, not {value!r}"
                raise TypeError(msg)

    def _check_isolation(self) -> None:
        why = ""
        if self.kind != "function":
            why = f"it is a {self.kind.replace('_', ' ')}; only plain functions can be"
        elif not inspect.isfunction(self.fn) or self.needs_self or "<" in self.fn.__qualname__:
            why = "it cannot be imported by its name; define it with `def` at the top of a module"
        elif self.context_name is not None:
            why = "it takes a ToolContext, which lives in this process; there, use halter.current_token()"
        if why:
            msg = f"tool {self.name!r} cannot be isolated: {why}"
            raise TypeError(msg)


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    timeout: float | None = None,
    on_steer: OnSteer = "break",
    grace: float | None = None,
    isolate: bool = False,
    exclusive: bool = False,
    approval: bool | ApprovalRule = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(fn: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function: `@tool`, or `@tool(timeout=5)`.

    Args:
        fn: a function, coroutine function, generator function of either kind, method, or other callable.
        options: name (the function's own), timeout in seconds (none), on_steer ("break", or "finish" for one that must
            not be cut), grace in seconds after a stop (the batch's), isolate (in a process of its own that can be
            killed), exclusive (never beside another call), approval (a person has to allow each call; or a function of
            the arguments that says whether, and why: False, True, or a reason. Arguments left out are not among them).

    """
    if fn is None:
        return functools.partial(_decorate, options)
    return _make(fn, options, sys._getframe(1).f_locals)  # noqa: SLF001  (documented; hints may name what is local there)


def _decorate(options: dict[str, Any], fn: Callable[P, R]) -> Tool[P, R]:
    return _make(fn, options, sys._getframe(1).f_locals)  # noqa: SLF001  (documented; hints may name what is local there)


def _make(fn: Callable[P, R], options: dict[str, Any], local_names: Mapping[str, Any]) -> Tool[P, R]:
    if isinstance(fn, Tool):
        msg = f"{fn.name!r} is a tool already"
        raise TypeError(msg)
    if not callable(fn) or isinstance(fn, type):
        msg = f"a tool is made of a function, not of {fn!r}"
        raise TypeError(msg)
    return Tool(fn, **options, local_names=local_names)


def _remade(fn: Callable[P, R], options: dict[str, Any]) -> Tool[P, R]:
    return Tool(fn, **options)


def kind_of(fn: Any) -> Kind:
    """How a callable gives its result."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not inspect.isroutine(fn):
        fn = type(fn).__call__
    if inspect.isasyncgenfunction(fn):
        return "async_generator"
    if inspect.iscoroutinefunction(fn):
        return "coroutine"
    return "generator" if inspect.isgeneratorfunction(fn) else "function"


def _checked_name(fn: Any, name: str | None) -> str:
    if name is None:
        while isinstance(fn, functools.partial):
            fn = fn.func
        name = getattr(fn, "__name__", None) or type(fn).__name__
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        msg = (
            f"{name!r} cannot be a tool's name: it has 1 to 64 letters, digits, _ and -; give one with @tool(name=...)"
        )
        raise ValueError(msg)
    return name


def _docstring_of(fn: Any) -> str | None:
    own = underlying(fn).__doc__
    return own if inspect.isroutine(fn) or isinstance(fn, functools.partial) else own or type(fn).__doc__


def _describe(tool: str, parameters: list[Parameter], docs: dict[str, str]) -> tuple[list[Argument], Schema]:
    """Describe the parameters to us and to the model."""
    arguments: list[Argument] = []
    properties: dict[str, Schema] = {}
    definitions: dict[str, Schema] = {}
    for each in parameters:
        try:
            hint = hint_of(each.annotation)
            own, recursive = inline(*hint.schema(), prefix=each.name)
        except (TypeError, NameError, ValueError) as error:
            msg = f"tool {tool!r}: a model cannot be told what {each.name}: {each.annotation!r} is. {error}"
            raise TypeError(msg) from error
        words = docs.get(each.name) or words_of(each.annotation)
        properties[each.name] = {**own, **({"description": words} if words else {}), **_default(each)}
        definitions.update(recursive)
        arguments.append(Argument(each.name, hint, own, each.is_required))
    schema = object_schema(properties, [each.name for each in parameters if each.is_required], definitions)
    return arguments, schema


def _default(parameter: Parameter) -> Schema:
    """The default, if there is one and JSON can say it."""
    if parameter.default is EMPTY:
        return {}
    try:
        return {"default": msgspec.to_builtins(parameter.default, str_keys=True, enc_hook=os.fspath)}
    except Exception:  # noqa: BLE001  (a boundary: any object may be a default, and need not be told)
        return {}


def _paths_in(value: Any) -> list[str]:
    if isinstance(value, (str, os.PathLike)):
        return [os.fsdecode(value)]
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [path for item in value for path in _paths_in(item)]
    return []


def _real(path: str) -> str:
    try:
        return os.path.realpath(Path(path).expanduser())
    except (OSError, ValueError):  # such as one with a null byte, which no file has
        return str(Path(path).absolute())


def _global(module: str, qualname: str) -> object:
    found: object = sys.modules.get(module)
    for step in qualname.split("."):
        found = getattr(found, step, None)
    return found
