"""Makes the agent from the settings, for the chat, print mode and the gateway."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

from halter.agent import Agent
from halter.cli.settings import SettingsError

if TYPE_CHECKING:
    from halter.cli.model_choice import ModelChoice
    from halter.cli.settings import Configuration
    from halter.tools.approval import Policy

__all__ = ["load_tools", "make_agent"]

# The groups of the toolbox that need only a workspace, and those that need not even that.
_IN_WORKSPACE: Final = ("Terminal", "Files", "Code")
_ALONE: Final = ("Web", "Browser", "Media", "Speech", "Todo", "Memory", "Clarify")


def make_agent(configuration: Configuration, choice: ModelChoice, *, can_ask: bool) -> Agent:
    """Make the agent. If nobody can be asked, what needs approval is denied, unless the settings allow it."""
    settings = configuration.settings
    approve: Policy = None if settings.approve == "ask" and not can_ask else settings.approve
    tools = load_tools(configuration)
    try:
        return Agent(
            choice.model,
            tools,
            settings.instructions,
            settings.fallbacks,
            settings.max_steps,
            approve=approve,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error


def load_tools(configuration: Configuration) -> list[Any]:
    """The tools that the settings name, for the current directory.

    "default" is the default set, "Files" a group of the toolbox, "read_file" one tool of the default set, and
    "MODULE:NAME" the user's own: a tool, or a list of them.
    """
    tools: list[Any] = []
    for name in configuration.settings.tools:
        module, colon, attribute = name.partition(":")
        found = _find(name, module, attribute, configuration) if colon else _of_toolbox(name, configuration)
        tools += found if isinstance(found, (list, tuple)) else [found]
    return list({tool.name: tool for tool in tools}.values()) if all(hasattr(each, "name") for each in tools) else tools


def _of_toolbox(name: str, configuration: Configuration) -> list[Any]:
    from halter import toolbox

    if name in _IN_WORKSPACE:
        return list(getattr(toolbox, name)(".").tools)
    if name in _ALONE:
        return list(getattr(toolbox, name)().tools)
    useful = toolbox.default(".")
    found = useful if name == "default" else [tool for tool in useful if tool.name == name]
    if not found:
        known = ["default", *_IN_WORKSPACE, *_ALONE, *(tool.name for tool in useful)]
        msg = f"{configuration.origins['tools']}: unknown tool {name!r}; known: {', '.join(known)}"
        raise SettingsError(msg)
    return found


def _find(name: str, module: str, attribute: str, configuration: Configuration) -> object:
    origin = configuration.origins["tools"]
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError:
        msg = f"{origin}: there is no tool {name!r} in {module}"
    except ModuleNotFoundError as error:
        if error.name != module and not module.startswith(f"{error.name}."):
            raise
        msg = f"{origin}: there is no tool {name!r}: no module {module}"
    raise SettingsError(msg)
