"""Writes the pages of the reference that follow from the sources: python docs/reference_pages.py. A test compares them.

They are: every public name (`reference/api/`), the settings, the commands and the routes.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.agent import Limits
from halter.cli.main import _parser, _print_parser
from halter.cli.settings import (
    AgentSettings,
    MCPSettings,
    RequestSettings,
    Settings,
    TelegramSettings,
    flag_for,
    table_flags,
)
from halter.cli.settings_values import dotted, fields_of
from halter.gateway.http.openapi import document

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

FOLDER: Final = Path(__file__).parent / "reference"
# The public modules. A name that several of them export is on the page of the first, and the others link to it.
MODULES: Final = (
    "cancel", "tools", "models", "errors", "", "stores", "events", "toolbox", "gateway", "testing", "bridges", "asgi",
)  # fmt: skip
_MADE: Final = "This page is made from the sources by `docs/reference_pages.py`.\n"


def pages() -> dict[Path, str]:
    """All pages, by their paths."""
    found = {FOLDER / f"{name}.md": text for name, text in _api_pages().items()}
    found[FOLDER / "settings.md"] = _settings_page()
    found[FOLDER / "commands.md"] = _commands_page()
    found[FOLDER / "routes.md"] = _routes_page()
    return found


def _api_pages() -> dict[str, str]:
    """A page for each public module, and one that lists all names."""
    home: dict[str, tuple[str, str]] = {}  # where an object is defined: its page, and its name there
    lists, found = [], {}
    for short in MODULES:
        module = importlib.import_module(f"halter.{short}" if short else "halter")
        page, own, links = short or "halter", [], []
        for name, defined in sorted(exports(module)):
            path = f"{defined}.{name}"
            if path in home:
                links.append(f"[`{name}`]({home[path][0]}.md#{path})")
            else:
                home[path] = page, name
                own.append(path)
                links.append(f"[`{name}`]({page}.md#{path})")
        lists.append(f"**[`{module.__name__}`](api/{page}.md)**: {', '.join(_below('api', links))}\n")
        said = inspect.getdoc(module) or ""
        found[f"api/{page}"] = (
            f"# {module.__name__}\n\nAfter this page you know the public names of `{module.__name__}`.\n{_MADE}\n"
            f"{said}\n\n{', '.join(links)}\n\n" + "\n".join(f"::: {path}\n" for path in own)
        ).rstrip("\n") + "\n"
    intro = "After this page you know where each public name of the library is described.\n" + _MADE
    found["api"] = f"# Public names\n\n{intro}\n" + "\n".join(lists)
    return found


def _below(folder: str, links: list[str]) -> list[str]:
    return [link.replace("](", f"]({folder}/") for link in links]


def exports(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The public names of a module, and the module that defines each."""
    source = ast.parse(inspect.getsource(module))
    imported = {
        alias.asname or alias.name: node.module
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for name in module.__all__:
        defined = imported.get(name) or module.__name__
        if defined.removeprefix("halter.") in MODULES and defined != module.__name__:  # exported by both
            defined = dict(exports(importlib.import_module(defined)))[name]
        yield name, defined if defined.startswith("halter.") else module.__name__


# Settings


def _settings_page() -> str:
    tables = {
        "limits": Limits,
        "model_settings": RequestSettings,
        "telegram": TelegramSettings,
        "agents.NAME": AgentSettings,
        "mcp.NAME": MCPSettings,
    }
    own = [name for name in fields_of(Settings) if name not in {table.partition(".")[0] for table in tables}]
    parts = [
        f"# Settings\n\nAfter this page you know every setting, its default, its variable and its option.\n{_MADE}",
        "They are in one file, which `halter config path` names.",
        "[The command line](command-line.md#settings) shows one and explains variables and tables.\n",
        _settings_table(Settings, own, ""),
    ]
    for table, kind in tables.items():
        said = " ".join((inspect.getdoc(kind) or "").split())
        parts.append(f"## [{table}]\n\n{said}\n")
        parts.append(_settings_table(kind, list(fields_of(kind)), table))
    return "\n".join(parts)


def _settings_table(kind: type, names: list[str], table: str) -> str:
    said = _field_docs(kind)
    with_option = [path[-1] for path in table_flags(table)] if table in ("limits", "model_settings") else _options()
    has_variable = "." not in table and table != "telegram"
    rows = ["| setting | default | variable | option | |", "|---|---|---|---|---|"]
    for name in names:
        path = (table, name) if table else (name,)
        variable = f"`HALTER_{dotted(path).replace('.', '_').upper()}`" if has_variable else ""
        option = f"`{flag_for(path)}`" if name in with_option and has_variable else ""
        rows.append(f"| `{name}` | {_default(kind, name)} | {variable} | {option} | {_cell(said.get(name, ''))} |")
    return "\n".join(rows) + "\n"


def _options() -> set[str]:
    """The options of the parsers, by the settings that they set."""
    parsers = [_parser(), *_commands().values()]
    return {action.dest for parser in parsers for action in parser._actions if action.option_strings}  # noqa: SLF001


def _default(kind: type, name: str) -> str:
    value = getattr(kind(command=["x"]) if kind is MCPSettings else kind(), name)
    if kind is MCPSettings and name == "command":  # it needs one of two
        value = None
    if value is None or value in ("", (), [], {}):
        return ""
    if isinstance(value, tuple):
        value = list(value)
    return f"`{json.dumps(value)}`"


def _field_docs(kind: type) -> dict[str, str]:
    """What is written below the fields of a class, and of those that it inherits from."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if not each.__module__.startswith("halter"):
            continue
        [body] = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found[ast.unparse(field.target)] = " ".join(str(after.value.value).split())
    return found


# Commands


def _commands() -> dict[str, argparse.ArgumentParser]:
    [found] = [action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    return found.choices


def _commands_page() -> str:
    whole = _parser()
    [group] = [action for action in whole._actions if isinstance(action, argparse._SubParsersAction)]  # noqa: SLF001
    helps = {action.dest: action.help or "" for action in group._choices_actions}  # noqa: SLF001
    parts = [
        f"# Commands\n\nAfter this page you know every command and every option.\n{_MADE}",
        "[The command line](command-line.md) explains them.\n",
        "## halter\n\nOpens a chat. With `-p`, answers one text and exits.\n",
        _command_table(whole, _print_parser()),
    ]
    for name, parser in group.choices.items():
        said = helps[name][:1].upper() + helps[name][1:]
        parts.append(f"## halter {name}\n\n{said}.\n\n{_command_table(parser)}".rstrip("\n") + "\n")
        parts += _action_parts(name, parser)
    shared = _table_of([action for action in whole._actions if action.dest in _shared()])  # noqa: SLF001
    who = "`halter`, `serve`, `acp`, `mcp` and `doctor` have them."
    parts.append(f"## Options of the model, the tools and a turn\n\n{who}\n\n{shared}")
    return "\n".join(parts)


def _action_parts(name: str, command: argparse.ArgumentParser) -> list[str]:
    """The actions of a command that has some."""
    parts = []
    for group in command._actions:  # noqa: SLF001
        if isinstance(group, argparse._SubParsersAction):  # noqa: SLF001
            helps = {action.dest: action.help or "" for action in group._choices_actions}  # noqa: SLF001
            for action, parser in group.choices.items():
                said = helps[action][:1].upper() + helps[action][1:]
                table = _command_table(parser)
                parts.append(f"### halter {name} {action}\n\n{said}.\n\n{table}".rstrip("\n") + "\n")
    return parts


def _shared() -> set[str]:
    """The options that every command with an agent has."""
    chat, serve, doctor = (
        {action.dest for action in parser._actions}  # noqa: SLF001
        for parser in (_print_parser(), _commands()["serve"], _commands()["doctor"])
    )
    return (chat & serve & doctor) - {"help"}


def _command_table(*parsers: argparse.ArgumentParser) -> str:
    own = {action.dest: action for parser in parsers for action in parser._actions}  # noqa: SLF001
    shared = _shared()
    is_with_agent = shared <= set(own)
    table = _table_of([action for name, action in own.items() if not (is_with_agent and name in shared)])
    more = "[the options of the model, the tools and a turn](#options-of-the-model-the-tools-and-a-turn)"
    has_more = f"\nAnd {more}.\n" if table else f"It has {more}.\n"
    return table + (has_more if is_with_agent else "")


def _table_of(actions: list[argparse.Action]) -> str:
    rows: dict[str, str] = {}
    for action in actions:
        if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction | argparse._SubParsersAction):  # noqa: SLF001
            continue
        names = ", ".join(f"`{each}`" for each in action.option_strings) or f"`{action.metavar or action.dest}`"
        takes = action.metavar or ("|".join(action.choices) if action.choices else "")
        value = f" `{takes}`" if takes and action.option_strings else ""
        if takes and not action.option_strings and action.choices:
            names = f"`{takes}`"
        default = action.default if isinstance(action.default, str | int) and action.default is not False else ""
        shown = f" Default: `{default}`." if default not in ("", argparse.SUPPRESS) else ""
        said = f"{(action.help or '').rstrip('.')}.{shown}" if action.help or shown else ""
        rows[names] = f"| {_cell(names + value)} | {_cell(said)} |"
    return "\n".join(["| | |", "|---|---|", *rows.values()]) + "\n" if rows else ""


# Routes


def _routes_page() -> str:
    found = json.loads(document())
    schemas = found["components"]["schemas"]
    parts = [
        f"# Routes\n\nAfter this page you know every request that the gateway takes, and what it answers.\n{_MADE}",
        "A running gateway serves the same as OpenAPI at `/openapi.json`. [The gateway](../guides/gateway.md) explains",
        "how to use them, and [access](access.md) what the scopes of keys allow.\n",
        "| request | | scope | body | answer |\n|---|---|---|---|---|",
    ]
    for path, methods in found["paths"].items():
        for method, operation in methods.items():
            parts.append(_route_row(path, method.upper(), operation))
    parts.append("\nQuery and header parameters: " + _parameters(found["paths"]) + ".\n\n## Bodies\n")
    for name, schema in sorted(schemas.items()):
        parts.append(f"### {name}\n\n{' '.join(schema.get('description', '').split())}\n\n{_schema_table(schema)}")
    return "\n".join(parts).rstrip("\n") + "\n"


def _route_row(path: str, method: str, operation: dict[str, Any]) -> str:
    scope = operation.get("description", "").partition("`")[2].partition("`")[0] or "none"
    body = operation.get("requestBody", {}).get("content", {})
    status, answer = next(item for item in operation["responses"].items() if item[0] != "default")
    given = _content(answer.get("content", {}))
    row = f"| `{method} {path}` | {_cell(operation['summary'])} | {scope} | {_content(body)} | {status} {given} |"
    return row.replace("  |", " |")


def _content(content: dict[str, Any]) -> str:
    return ", ".join(
        _kind(each["schema"]) if "$ref" in json.dumps(each) else f"`{kind}`" for kind, each in content.items()
    )


def _parameters(paths: dict[str, Any]) -> str:
    found = {
        f"`{each['name']}` of `{operation['operationId']}` ({_kind(each['schema'])})"
        for methods in paths.values()
        for operation in methods.values()
        for each in operation["parameters"]
        if each["in"] != "path"
    }
    return ", ".join(sorted(found))


def _schema_table(schema: dict[str, Any]) -> str:
    rows = ["| field | type | default |", "|---|---|---|"]
    for name, each in schema.get("properties", {}).items():
        default = "required" if name in schema.get("required", ()) else ""
        if "default" in each and each["default"] is not None:
            default = f"`{json.dumps(each['default'])}`"
        rows.append(f"| `{name}` | {_cell(_kind(each))} | {default} |")
    return "\n".join(rows) + "\n"


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for page, text in pages().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, encoding="utf-8")
