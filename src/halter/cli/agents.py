"""An agent as the settings want it: for the chat, for print mode, for whoever serves."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from halter.agent import Agent
from halter.cli.settings import SettingsError

if TYPE_CHECKING:
    from halter.cli.choose import Choice
    from halter.cli.settings import Configuration
    from halter.tools.approval import Policy

__all__ = ["load_tools", "make_agent"]


def make_agent(configuration: Configuration, choice: Choice, *, can_ask: bool) -> Agent:
    """Make the agent. Where nobody can be asked, what needs approval is denied, unless the settings allow it."""
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
    """The tools that the settings name: "NAME" of the toolbox, or "MODULE:NAME" of the user's own.

    A name may stand for one tool or for a list of them.
    """
    tools: list[Any] = []
    for name in configuration.settings.tools:
        module, colon, attribute = name.partition(":")
        found = _find(name, *((module, attribute) if colon else ("halter.toolbox", name)), configuration)
        tools += found if isinstance(found, (list, tuple)) else [found]
    return tools


def _find(name: str, module: str, attribute: str, configuration: Configuration) -> object:
    origin = configuration.origins["tools"]
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError:
        msg = f"{origin}: there is no tool {name!r} in {module}"
    except ModuleNotFoundError as error:
        if error.name != module and not module.startswith(f"{error.name}."):
            raise
        msg = f"{origin}: there is no tool {name!r}, as there is no module {module}"
    raise SettingsError(msg)
