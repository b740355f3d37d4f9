"""Changes the settings file: prefixes of commands, tables of MCP servers. Everything else stays, comments too."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import msgspec

from halter.cli.settings import SettingsError
from halter.toolbox.files.atomic import locked_folder, write_whole
from halter.toolbox.files.workspace import Workspace
from halter.toolbox.terminal.approval.prefixes import check_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

__all__ = ["add_prefixes", "add_table", "remove_table"]

_NAME = "approve_prefixes"
_PRIVATE = 0o600


def add_prefixes(path: Path, prefixes: Iterable[tuple[str, ...]]) -> None:
    """Add prefixes of commands to `approve_prefixes`. Atomic; other processes may do it at the same time.

    Raises `ValueError` for a prefix that is refused, and `SettingsError` if the file cannot be changed.
    """
    wanted = list(prefixes)
    for each in wanted:
        check_prefix(each)
    _change(path, lambda text: _with_prefixes(text, [shlex.join(each) for each in wanted], path))


def add_table(path: Path, kind: str, name: str, values: Mapping[str, object]) -> None:
    """Add a table [kind.NAME] at the end. Raises `SettingsError` if there is one, or the file cannot be changed."""

    def with_table(text: str) -> str:
        if name in _parsed(text, path).get(kind, {}):
            raise SettingsError(f"{path}: the table [{kind}.{name}] already exists")
        lines = [f"{key} = {_toml(value)}\n" for key, value in values.items()]
        gap = "" if not text else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}[{kind}.{name}]\n{''.join(lines)}"

    _change(path, with_table)


def remove_table(path: Path, kind: str, name: str) -> None:
    """Remove the table [kind.NAME]. Raises `SettingsError` if it is not there, or is written in another way."""

    def without_table(text: str) -> str:
        before = _parsed(text, path)
        if name not in before.get(kind, {}):
            raise SettingsError(f"{path}: there is no table [{kind}.{name}]")
        lines = text.splitlines(keepends=True)
        headers = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
        mine = [number for number in headers if lines[number].split("#")[0].strip() == f"[{kind}.{name}]"]
        if len(mine) == 1:
            end = next((number for number in headers if number > mine[0]), len(lines))
            changed = "".join([*lines[: mine[0]], *lines[end:]])
            left = {key: value for key, value in before[kind].items() if key != name}
            if _parsed(changed, path) == {key: value for key, value in (before | {kind: left}).items() if value != {}}:
                return changed.rstrip("\n") + "\n" if changed.strip() else ""
        raise SettingsError(f"cannot change {path} automatically: remove {kind}.{name} with `halter config edit`")

    _change(path, without_table)


def _change(path: Path, change: Callable[[str], str]) -> None:
    """Replace the text of the file by what *change* makes of it. Raises `SettingsError`."""
    try:
        with locked_folder(path.parent):
            text = path.read_text("utf-8") if path.exists() else ""
            changed = change(text)
            if changed != text:
                with Workspace(path.parent).find(path.name) as place:
                    write_whole(place, changed.encode(), _PRIVATE)
    except OSError as error:
        raise SettingsError(f"cannot change {path}: {error.strerror or error}") from error


def _parsed(text: str, path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: invalid TOML: {error}; `halter config edit` opens it") from error


def _toml(value: object) -> str:
    """A value as TOML: texts, booleans and lists are as in JSON."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_json(key)} = {_toml(each)}' for key, each in value.items())} }}"
    return _json(value)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _with_prefixes(text: str, added: list[str], path: Path) -> str:
    """The text of the file with these prefixes in it. Raises `SettingsError` if that cannot be done safely."""
    import tomllib

    try:
        before = tomllib.loads(text)
        known = list(before.get(_NAME, []))
        wanted = [*known, *(each for each in added if each not in known)]
        if wanted == known:
            return text
        line = f"{_NAME} = {msgspec.json.encode(wanted).decode()}\n"
        changed = _replaced(text, line) if _NAME in before else _inserted(text, line)
        if tomllib.loads(changed) == before | {_NAME: wanted}:
            return changed
    except (tomllib.TOMLDecodeError, TypeError):
        pass
    raise SettingsError(
        f"cannot change {path} automatically: add {', '.join(added)} to {_NAME} with `halter config edit`"
    )


def _inserted(text: str, line: str) -> str:
    """The text with a line before its first table: what follows a table's name belongs to the table."""
    lines = text.splitlines(keepends=True)
    at = next((number for number, each in enumerate(lines) if each.lstrip().startswith("[")), len(lines))
    before = "".join(lines[:at])
    gap = "\n" if before and not before.endswith("\n") else ""
    return f"{before}{gap}{line}{''.join(lines[at:])}"


def _replaced(text: str, line: str) -> str:
    """The text with the lines of the setting replaced; they end where they are a whole document."""
    import tomllib

    lines = text.splitlines(keepends=True)
    start = next(number for number, each in enumerate(lines) if each.split("=")[0].strip(" \t\"'") == _NAME)
    for end in range(start + 1, len(lines) + 1):
        try:
            tomllib.loads("".join(lines[start:end]))
        except tomllib.TOMLDecodeError:
            continue
        return "".join([*lines[:start], line, *lines[end:]])
    return text
