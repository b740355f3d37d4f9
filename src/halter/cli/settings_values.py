"""Checks values of the settings against the types of their fields, and finds the lines in which they are set.

A table of the file is a class: a msgspec struct or a dataclass. Its fields are the keys that it may have, so a field
that is added there is a setting, a variable and an option without further code.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from typing import TYPE_CHECKING, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Path", "SettingsError", "check", "dotted", "fields_of", "is_list", "is_table", "line_of", "unknown"]

Path = tuple[str, ...]
"""The keys that lead to a setting: ("limits", "steps")."""
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


class SettingsError(Exception):
    """An invalid setting; the message says where it is set."""


def dotted(path: Path) -> str:
    """A path as TOML writes it."""
    return ".".join(key if _BARE.fullmatch(key) else f'"{key}"' for key in path)


@functools.cache
def fields_of(table: type[Any]) -> dict[str, Any]:
    """The keys of a table, and the type of each."""
    names: Iterable[str] = getattr(table, "__struct_fields__", ()) or [each.name for each in dataclasses.fields(table)]
    hints = get_type_hints(table, include_extras=True)
    return {name: hints[name] for name in names}


def is_table(hint: object) -> bool:
    """Whether a type is that of a table."""
    return isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or dataclasses.is_dataclass(hint))


def is_list(hint: object) -> bool:
    """Whether a type is that of a list of texts."""
    return hint in (tuple[str, ...], list[str])


def check(
    value: object,
    hint: Any,  # noqa: ANN401
    path: Path,
    place: Callable[[Path], str],
    *,
    strict: bool = True,
) -> Any:  # noqa: ANN401  (what the hint says)
    """The value as its type. *place* says where a path is set, for the error. Raises `SettingsError`."""
    table = next((each for each in _alternatives(hint) if is_table(each)), None)
    if table is not None and isinstance(value, dict):
        known = fields_of(table)
        for key in value:
            if key not in known:
                raise unknown((*path, key), known, place((*path, key)))
        made = {key: check(each, known[key], (*path, key), place, strict=strict) for key, each in value.items()}
        try:
            return table(**made)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{place(path)}: {dotted(path)}: {error}") from error
    if get_origin(hint) is dict and is_table(get_args(hint)[1]) and isinstance(value, dict):
        inner = get_args(hint)[1]
        return {key: check(each, inner, (*path, key), place, strict=strict) for key, each in value.items()}
    try:
        return msgspec.convert(value, hint, strict=strict)
    except msgspec.ValidationError as error:
        what, _, item = str(error).partition(" - at ")
        what = what.replace("`", "").replace("object", "a table")
        where = f"{dotted(path)}{item.strip('`').removeprefix('$')}"
        raise SettingsError(f"{place(path)}: {where}: {what[0].lower()}{what[1:]}{_choices(hint)}") from error


def unknown(path: Path, known: Iterable[str], place: str) -> SettingsError:
    """The error for a key that does not exist."""
    import difflib

    near = difflib.get_close_matches(path[-1].lower().replace("-", "_"), list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f". Known settings: {', '.join(known)}"
    return SettingsError(f"{place}: unknown setting {dotted(path)!r}{hint}")


def _alternatives(hint: object) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _choices(hint: object) -> str:
    choices = [each for one in _alternatives(hint) if get_origin(one) is Literal for each in get_args(one)]
    return f"; must be one of {', '.join(map(repr, choices))}" if choices else ""


def line_of(path: Path, text: str) -> int:
    """The line in which a key is set, or the table that has it. A line of a text only looks like it."""
    import tomllib

    quoted = re.escape(path[-1])
    key = re.compile(rf"""\s*\[*[^=\]#]*(?<![\w-])(?:{quoted}|"{quoted}"|'{quoted}')\s*[=.\]]""")
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not key.match(line):
            continue
        # Its value may go on for more lines, so any other stands for it.
        probe = line if line.lstrip().startswith("[") else f"{line.partition('=')[0]}= 0"
        try:
            found: Any = tomllib.loads("\n".join([*lines[: number - 1], probe]))
        except tomllib.TOMLDecodeError:
            continue
        for step in path:
            found = found[-1] if isinstance(found, list) and found else found
            found = found.get(step) if isinstance(found, dict) else None
        if found is not None:
            return number
    return line_of(path[:-1], text) if len(path) > 1 else 1
