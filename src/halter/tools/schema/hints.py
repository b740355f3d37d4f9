"""The type hint of one parameter: its JSON schema, and the conversion of a JSON value to that type.

`msgspec` does the work. Paths are strings in JSON; a union that `msgspec` refuses is tried member by member; and a hint
with pydantic types is left to pydantic, which is imported already in that case and never by us.
"""

from __future__ import annotations

import datetime
import sys
import types
import typing
from typing import Annotated, Any, Final, Protocol

import msgspec

from halter.tools.schema.json_schema import REF_TEMPLATE, Schema

_FORMATS: Final = {datetime.datetime: "date-time", datetime.time: "time"}


class IsPath:
    """Marks a string as a file path: `Annotated[str, IsPath]`. Parameters with the hint `Path` need no mark."""


class Hint(Protocol):
    """A type that a JSON value can be checked against."""

    def schema(self) -> tuple[Schema, dict[str, Schema]]:
        """Return the JSON schema and the definitions that it refers to; TypeError if there is none."""
        ...

    def convert(self, value: Any) -> Any:
        """Convert *value* to the type; raises if it does not fit."""
        ...


def hint_of(annotation: Any) -> Hint:
    """The `Hint` for a type annotation; TypeError if it has no JSON schema."""
    if _mentions_pydantic(annotation):
        return _PydanticHint(annotation)
    hint: Hint = _MsgspecHint(annotation)
    try:
        hint.schema()
    except TypeError:
        members = _members(annotation)
        if len(members) < 2:  # noqa: PLR2004
            raise
        hint = _UnionHint([hint_of(member) for member in members])
        hint.schema()
    return hint


def is_path(annotation: Any) -> bool:
    """Whether values of this type are or contain paths: `Path`, `Path | None`, `list[Path]`, or marked IsPath."""
    if annotation is IsPath or isinstance(annotation, IsPath) or _is_path_class(annotation):
        return True
    metadata = getattr(annotation, "__metadata__", ())
    return any(is_path(each) for each in (*typing.get_args(annotation), *metadata) if not isinstance(each, str))


def description_of(annotation: Any) -> str:
    """The description inside a hint: `Annotated[int, "how many"]`, or metadata with a description."""
    for each in getattr(annotation, "__metadata__", ()):
        text = each if isinstance(each, str) else getattr(each, "description", None)
        if isinstance(text, str) and text:
            return text
    return ""


class _MsgspecHint:
    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation

    def schema(self) -> tuple[Schema, dict[str, Schema]]:
        (schema,), definitions = msgspec.json.schema_components(
            [_with_format(self._annotation)], schema_hook=_schema_hook, ref_template=REF_TEMPLATE
        )
        return schema, definitions

    def convert(self, value: Any) -> Any:
        return msgspec.convert(value, self._annotation, dec_hook=_dec_hook, str_keys=True)


class _UnionHint:
    """A union whose members are tried in order."""

    def __init__(self, members: list[Hint]) -> None:
        self._members = members

    def schema(self) -> tuple[Schema, dict[str, Schema]]:
        schemas: list[Schema] = []
        definitions: dict[str, Schema] = {}
        for member in self._members:
            schema, more = member.schema()
            definitions.update(more)
            if schema not in schemas:
                schemas.append(schema)
        return (schemas[0] if len(schemas) == 1 else {"anyOf": schemas}), definitions

    def convert(self, value: Any) -> Any:
        complaints = []
        for member in self._members:
            try:
                return member.convert(value)
            except ValueError as error:  # msgspec.ValidationError and pydantic's are such
                complaints.append(str(error))
        raise ValueError("; or ".join(dict.fromkeys(complaints)))


class _PydanticHint:
    def __init__(self, annotation: Any) -> None:
        pydantic = sys.modules["pydantic"]
        try:
            self._adapter = pydantic.TypeAdapter(annotation)
        except pydantic.errors.PydanticUserError as error:
            raise TypeError(str(error)) from error
        self._invalid = pydantic.ValidationError

    def schema(self) -> tuple[Schema, dict[str, Schema]]:
        schema = self._adapter.json_schema(ref_template=REF_TEMPLATE.replace("{name}", "{model}"))
        return schema, schema.pop("$defs", {})

    def convert(self, value: Any) -> Any:
        try:
            return self._adapter.validate_json(msgspec.json.encode(value))
        except self._invalid as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            raise ValueError("; ".join(_located(each) for each in found)) from error


def _located(error: dict[str, Any]) -> str:
    where = ".".join(str(step) for step in error["loc"])
    return f"{where}: {error['msg']}" if where else str(error["msg"])


def _mentions_pydantic(annotation: Any) -> bool:
    """Whether a pydantic model, or pydantic metadata, is part of the hint."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return False
    if isinstance(annotation, type):
        return issubclass(annotation, pydantic.BaseModel)
    if any(type(each).__module__.partition(".")[0] == "pydantic" for each in getattr(annotation, "__metadata__", ())):
        return True
    return any(_mentions_pydantic(each) for each in typing.get_args(annotation))


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, also of an annotated one."""
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return ()


def _with_format(annotation: Any) -> Any:
    """Add the format of dates to the schema, also of optional ones; msgspec says only that they are strings."""
    members = _members(annotation)
    if members:
        described: Any = typing.Union[tuple(_with_format(member) for member in members)]  # noqa: UP007
        metadata = getattr(annotation, "__metadata__", ())
        return Annotated[(described, *metadata)] if metadata else described
    if isinstance(annotation, type) and annotation in _FORMATS:
        return Annotated[annotation, msgspec.Meta(extra_json_schema={"format": _FORMATS[annotation]})]
    return annotation


def _is_path_class(annotation: Any) -> bool:
    pathlib = sys.modules.get("pathlib")  # if it was not imported yet, no hint is one of its classes
    return pathlib is not None and isinstance(annotation, type) and issubclass(annotation, pathlib.PurePath)


def _schema_hook(kind: type) -> Schema:
    if _is_path_class(kind):
        return {"type": "string"}
    raise NotImplementedError


def _dec_hook(kind: type, value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"Expected a path as `str`, got `{type(value).__name__}`")  # noqa: TRY004  (msgspec makes a ValidationError of it)
    return kind(value)
