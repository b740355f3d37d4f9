"""`halter config`: show the path of the settings file, the effective settings, or edit them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from halter._data_paths import find_paths
from halter._secrets import HIDDEN, is_secret
from halter.cli.output import may_color, print_error
from halter.cli.settings import DEFAULT, MCPSettings, Settings, SettingsError, load
from halter.cli.settings_values import dotted, fields_of, is_table
from halter.views.text import path_text

__all__ = ["config"]

_PRIVATE = 0o600
_BOLD, _FAINT = 1, 2  # SGR codes
_REFERENCE = re.compile(r"(?:[A-Za-z]+ )?\$\{\w+\}")  # a variable, maybe after a word such as "Bearer"


def config(action: str) -> int:
    """Do one of "path", "show" and "edit". Returns the exit code."""
    try:
        if action == "path":
            print(find_paths().config)
            return 0
        return _show() if action == "show" else _edit(find_paths().config)
    except BrokenPipeError:
        raise
    except (SettingsError, OSError) as error:
        return print_error(error)


def _show() -> int:
    configuration = load()
    color = may_color()
    for name in Settings.__struct_fields__:
        text = f"{name} = {_toml(getattr(configuration.settings, name), name)}"
        origin = f"# {path_text(Path(configuration.origins[name]))}"  # a variable is a path as well
        if color:  # what was set stands out
            is_set = configuration.origins[name] != DEFAULT
            text, origin = f"\x1b[{_BOLD if is_set else _FAINT}m{text}\x1b[0m", f"\x1b[{_FAINT}m{origin}\x1b[0m"
        print(f"{text}  {origin}")
    return 0


def _edit(path: Path) -> int:
    """Open the file in the user's editor, with all settings as comments if it is new, then check it.

    It may contain tokens, so only its owner may read it: afterwards too, as editors may write a new file.
    """
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(_PRIVATE)
        path.write_text(_template(), "utf-8")
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.run([*shlex.split(editor), str(path)], check=False).returncode
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.chmod(_PRIVATE)
    if code:
        return print_error(f"{editor} exited with code {code}")
    load()
    return 0


def _template() -> str:
    defaults = Settings()
    lines = [f"# {name} = {_toml(getattr(defaults, name))}" for name in Settings.__struct_fields__]
    return "\n".join(["# Halter's settings. Each commented line shows the default.", "", *lines, ""])


def _toml(value: object, name: str = "") -> str:
    """A value as TOML: strings, numbers and lists are as in JSON. Secrets are not shown."""
    if value is None:
        return "{}"
    if isinstance(value, MCPSettings):
        value = _shown_server(value)
    kind: Any = type(value)
    if is_table(kind):
        value = {key: getattr(value, key) for key in fields_of(kind) if getattr(value, key) is not None}
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{dotted((key,))} = {_toml(each, key)}' for key, each in value.items())} }}"
    if isinstance(value, str) and value and is_secret(name, value):
        value = HIDDEN
    return msgspec.json.encode(value).decode()


def _shown_server(server: MCPSettings) -> MCPSettings:
    """The server without secrets: values that are not read from variables, options that look like one, a query."""

    def hidden(given: dict[str, str]) -> dict[str, str]:
        return {name: text if _REFERENCE.fullmatch(text) else HIDDEN for name, text in given.items()}

    command: list[str] = []
    for argument in server.command:
        option, equals, _ = argument.partition("=")
        if command and command[-1].startswith("-") and is_secret(command[-1]):
            argument = HIDDEN  # noqa: PLW2901
        elif (equals and is_secret(option)) or is_secret("", argument):
            argument = f"{option}={HIDDEN}" if equals else HIDDEN  # noqa: PLW2901
        command.append(argument)
    url, mark, _ = server.url.partition("?")
    return msgspec.structs.replace(
        server,
        command=tuple(command),
        url=f"{url}?{HIDDEN}" if mark else url,
        env=hidden(server.env),
        headers=hidden(server.headers),
    )
