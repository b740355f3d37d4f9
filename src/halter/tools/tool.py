"""A tool: a function that a model may call, and the options for running it.

``@tool`` reads the signature, the type hints and the docstring once, where the function is defined, and raises there if
something is wrong with them. The result can still be called, tested and awaited like the function.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar, overload

import msgspec

from halter.cancel.deadlines import check_seconds
from halter.models.types import ToolSpec
from halter.tools.context import ToolContext
from halter.tools.not_a_function import check_function
from halter.tools.schema.arguments import Argument, read_arguments
from halter.tools.schema.docstring import read_docstring
from halter.tools.schema.hints import description_of, hint_of, is_path
from halter.tools.schema.json_schema import Schema, inline, object_schema
from halter.tools.schema.signature import EMPTY, Parameter, read_signature, takes_self, underlying

if TYPE_CHECKING:
    from halter.tools.approval import ApprovalNeed
    from halter.tools.file_history import FileHistory

P = ParamSpec("P")
R = TypeVar("R")

Kind: TypeAlias = Literal["function", "coroutine", "generator", "async_generator"]
OnSteer: TypeAlias = Literal["break", "finish"]
# Whether a call with these arguments needs approval: False, True, the reason that the user is shown, or more than that.
# In the body of a class it is a method.
ApprovalRule: TypeAlias = Callable[..., "bool | str | ApprovalNeed"]

_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Tool(Generic[P, R]):
    """A function, its description for models, and its options. Made by ``@tool``."""

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
        self.file_history: FileHistory | None = None  # keeps the files that it may change; see `Checkpoints.watch()`
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
        functools.update_wrapper(self, fn, updated=())  # the function's own attributes must not overwrite ours

    # -- as a function --------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Tool[..., R]:
        """A tool in the body of a class is a method: on an instance it is a tool with `self` bound."""
        if instance is None or not self.needs_self:
            return self
        bound = copy.copy(self)
        bound.fn = bound.__wrapped__ = self.fn.__get__(instance, owner)
        bound.needs_self = False
        if not isinstance(self.approval, bool) and takes_self(self.approval):
            bound.approval = self.approval.__get__(instance, owner)
        return bound

    # -- for the code that runs it --------------------------------------------------------------

    def bind_arguments(self, raw_json: str, context: ToolContext | None = None) -> dict[str, Any]:
        """Check a model's arguments and convert them for the function; *context* is added to them.

        Whatever the model wrote, this raises nothing but BadArguments, whose text is for the model. A parameter that
        was left out is not in the result: the function's default applies.
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
        """The files that a call touches, absolute and with links resolved. Calls on the same one run one by one.

        They are the values of parameters with the hint `Path` or the mark `IsPath`. Reads the file system.
        """
        found = (path for name in self._paths for path in _paths_in(kwargs.get(name)))
        return sorted({_real(path) for path in found})

    def __copy__(self) -> Tool[P, R]:
        twin: Tool[P, R] = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle by name, as functions do, if the name refers to this tool; else by the function and its options."""
        qualname = str(getattr(self, "__qualname__", ""))
        if _global(self.__module__, qualname) is self:
            return qualname
        return _make_again, (self.fn, self._options())

    def __repr__(self) -> str:
        return f"<Tool {self.name} ({self.kind})>"

    def _options(self) -> dict[str, Any]:
        names = ("name", "timeout", "on_steer", "grace", "isolate", "exclusive", "approval")
        return {name: getattr(self, name) for name in names}

    def _check_options(self) -> None:
        if self.on_steer not in ("break", "finish"):
            msg = f'tool {self.name!r}: on_steer must be "break" or "finish", not {self.on_steer!r}'
            raise ValueError(msg)
        for option in ("isolate", "exclusive", "approval"):
            value = getattr(self, option)
            if not isinstance(value, bool) and not (option == "approval" and callable(value)):
                raise TypeError(f"tool {self.name!r}: {option} must be True or False, not {value!r}")

    def _check_isolation(self) -> None:
        why = ""
        if self.kind != "function":
            why = f"it is a {self.kind.replace('_', ' ')}; only plain functions can be"
        elif not inspect.isfunction(self.fn) or self.needs_self or "<" in self.fn.__qualname__:
            why = "it cannot be imported by its name; define it with `def` at the top of a module"
        elif self.context_name is not None:
            why = "it takes a ToolContext, which lives in this process; there, use halter.current_token()"
        if why:
            raise TypeError(f"tool {self.name!r} cannot be isolated: {why}")


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
    """Turn a function into a tool: `@tool`, or `@tool(timeout=5)`.

    Args:
        fn: a function, coroutine function, generator function of either kind, method, or other callable.
        options: name (default: the function's), timeout in seconds (none), on_steer ("break", or "finish" if a steer
            must not interrupt it), grace in seconds after a stop (the batch's), isolate (run in a process that can be
            killed), exclusive (never in parallel with another call), approval (the user must allow each call; or a
            function of the arguments that returns False, True, the reason, or an `ApprovalNeed`. Omitted arguments are
            not in them).

    """
    if fn is None:
        return functools.partial(_decorate, options)
    return _make(fn, options, sys._getframe(1).f_locals)  # noqa: SLF001  (documented; hints may name what is local there)


def _decorate(options: dict[str, Any], fn: Callable[P, R]) -> Tool[P, R]:
    return _make(fn, options, sys._getframe(1).f_locals)  # noqa: SLF001  (documented; hints may name what is local there)


def _make(fn: Callable[P, R], options: dict[str, Any], local_names: Mapping[str, Any]) -> Tool[P, R]:
    if isinstance(fn, Tool):
        raise TypeError(f"{fn.name!r} is already a tool")
    check_function(fn)
    return Tool(fn, **options, local_names=local_names)


def _make_again(fn: Callable[P, R], options: dict[str, Any]) -> Tool[P, R]:
    return Tool(fn, **options)


def kind_of(fn: Any) -> Kind:
    """Whether a callable is a function, a coroutine function or a generator."""
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
        raise ValueError(
            f"{name!r} cannot be a tool's name: it has 1 to 64 letters, digits, _ and -; give one with @tool(name=...)"
        )
    return name


def _docstring_of(fn: Any) -> str | None:
    own = underlying(fn).__doc__
    return own if inspect.isroutine(fn) or isinstance(fn, functools.partial) else own or type(fn).__doc__


def _describe(tool: str, parameters: list[Parameter], docs: dict[str, str]) -> tuple[list[Argument], Schema]:
    """The parameters, for checking arguments and as a schema for the model."""
    arguments: list[Argument] = []
    properties: dict[str, Schema] = {}
    definitions: dict[str, Schema] = {}
    for each in parameters:
        try:
            hint = hint_of(each.annotation)
            own, recursive = inline(*hint.schema(), prefix=each.name)
        except (TypeError, NameError, ValueError) as error:
            raise TypeError(
                f"tool {tool!r}: there is no JSON schema for {each.name}: {each.annotation!r}. {error}"
            ) from error
        description = docs.get(each.name) or description_of(each.annotation)
        properties[each.name] = {**own, **({"description": description} if description else {}), **_default(each)}
        definitions.update(recursive)
        arguments.append(Argument(each.name, hint, own, each.is_required))
    schema = object_schema(properties, [each.name for each in parameters if each.is_required], definitions)
    return arguments, schema


def _default(parameter: Parameter) -> Schema:
    """The default value for the schema, if there is one and JSON can express it."""
    if parameter.default is EMPTY:
        return {}
    try:
        return {"default": msgspec.to_builtins(parameter.default, str_keys=True, enc_hook=os.fspath)}
    except Exception:  # noqa: BLE001  (a boundary: any object may be a default)
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
        return os.path.realpath(os.path.expanduser(path))  # noqa: PTH111  (pathlib would cost an import at every start)
    except (OSError, ValueError):  # such as one with a null byte, which no file has
        return os.path.join(os.getcwd(), path)  # noqa: PTH109, PTH118


def _global(module: str, qualname: str) -> object:
    found: object = sys.modules.get(module)
    for step in qualname.split("."):
        found = getattr(found, step, None)
    return found
