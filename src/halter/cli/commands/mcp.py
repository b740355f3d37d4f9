"""`halter mcp`: add, list and remove the MCP servers of the settings file."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, Final

from halter.cli.output import print_error
from halter.cli.settings import SettingsError, load
from halter.cli.settings_file import add_table, remove_table
from halter.views.text import single_line

if TYPE_CHECKING:
    import argparse

__all__ = ["manage_servers"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_URL: Final = ("http://", "https://")


def manage_servers(options: argparse.Namespace) -> int:
    """Add, list or remove servers. Returns the exit code."""
    try:
        if options.action == "list":
            _list()
        elif not options.name:
            return print_error(f"usage: halter mcp {options.action} NAME")
        elif options.action == "remove":
            remove_table(load().paths.config, "mcp", options.name)
            print(f"{options.name} was removed.")
        else:
            return _add(options)
    except (SettingsError, ValueError) as error:
        return print_error(error)
    return 0


def _add(options: argparse.Namespace) -> int:
    if not _NAME.fullmatch(options.name):
        return print_error(f"{options.name!r}: a name consists of 1 to 32 letters, digits, _ and -")
    what: list[str] = options.what
    if not what:
        return print_error("usage: halter mcp add NAME URL, or halter mcp add NAME COMMAND [ARGUMENT...]")
    values: dict[str, Any] = {"url": what[0]} if what[0].startswith(_URL) else {"command": what}
    path = load().paths.config
    add_table(path, "mcp", options.name, values)
    print(f"{options.name} was added to {path}. `halter doctor` checks it.")
    if "command" in values:
        print("It runs in the sandbox, without network access; network = true in its table allows it.")
    return 0


def _list() -> None:
    servers = load().settings.mcp
    for name, each in servers.items():
        print(f"{name:20}  {single_line(each.url.partition('?')[0] or shlex.join(each.command))}")
    if not servers:
        print("No MCP servers; add one with `halter mcp add NAME COMMAND...` or `halter mcp add NAME URL`.")
