"""The parameters of a function: with resolved type hints, and the ToolContext separately."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halter.tools.context import ToolContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EMPTY: Final = inspect.Parameter.empty


class Parameter(NamedTuple):
    """One parameter that the model fills in."""

    name: str
    annotation: Any
    default: Any  # EMPTY if it must be given

    @property
    def is_required(self) -> bool:
        return self.default is EMPTY


class Signature(NamedTuple):
    """What a tool takes."""

    parameters: list[Parameter]
    context_name: str | None  # the parameter that receives the ToolContext


def read_signature(fn: Callable[..., Any], name: str, local_names: Mapping[str, Any]) -> Signature:
    """Read the parameters of *fn*; TypeError if a tool cannot have them. String hints may use *local_names*."""
    try:
        found = inspect.signature(fn)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"tool {name!r}: Python does not know the parameters of {fn!r}; wrap it in a function with type hints"
        ) from error
    names = {"ToolContext": ToolContext, **namespace_of(fn), **local_names}
    parameters: list[Parameter] = []
    context_name: str | None = None
    for at, each in enumerate(found.parameters.values()):
        if at == 0 and takes_self(fn):
            continue
        _check_kind(name, each)
        annotation = _resolve(name, each, names)
        if not _is_context(annotation):
            parameters.append(Parameter(each.name, annotation, each.default))
        elif context_name is None:
            context_name = each.name
        else:
            raise TypeError(f"tool {name!r}: {context_name} and {each.name} are both a ToolContext; one is enough")
    return Signature(parameters, context_name)


def takes_self(fn: Callable[..., Any]) -> bool:
    """Whether *fn* is a method in the body of its class, which gets its instance later."""
    if not inspect.isfunction(fn):
        return False
    owner, dot, _ = fn.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(fn).parameters), "")
    return bool(dot) and not owner.endswith("<locals>") and first == "self"


def underlying(fn: Any) -> Any:
    """The function behind partial objects, methods and callable instances."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if not inspect.isroutine(fn) and not isinstance(fn, type):
        fn = type(fn).__call__
    return getattr(fn, "__func__", fn)


def namespace_of(fn: Any) -> dict[str, Any]:
    """The names that the hints of *fn* may use: those of its module and its closure."""
    function = underlying(fn)
    names = dict(getattr(function, "__globals__", {}))
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    for free, cell in zip(code.co_freevars if code else (), cells or (), strict=False):
        try:
            names[free] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def _check_kind(tool: str, parameter: inspect.Parameter) -> None:
    kinds = {
        inspect.Parameter.VAR_POSITIONAL: f"takes *{parameter.name}; take a list instead",
        inspect.Parameter.VAR_KEYWORD: f"takes **{parameter.name}; take a dict instead",
        inspect.Parameter.POSITIONAL_ONLY: f"takes {parameter.name} by position only; remove the / after it",
    }
    if parameter.kind in kinds:
        raise TypeError(f"tool {tool!r} {kinds[parameter.kind]}: a model passes each parameter by name")


def _resolve(tool: str, parameter: inspect.Parameter, names: dict[str, Any]) -> Any:
    if parameter.annotation is EMPTY:
        return Any
    holder = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        return typing.get_type_hints(holder, globalns=names, localns=names, include_extras=True)[parameter.name]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise TypeError(
            f"tool {tool!r}: the hint {parameter.annotation!r} of {parameter.name} cannot be resolved ({error}); its "
            "names must exist when the tool is defined: at the top of the module, not only for type checkers"
        ) from error


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, ToolContext)
    return any(_is_context(member) for member in typing.get_args(annotation))
