"""Makes the agent from the settings, for the chat, print mode and the gateway."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any, Final

from halter.agent import Agent
from halter.cli.settings import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection

    from halter.cli.model_choice import ModelChoice
    from halter.cli.settings import Configuration
    from halter.toolbox.instructions.instructions import Instructions
    from halter.toolbox.sandbox.sandbox import Sandbox
    from halter.tools.approval import Policy

__all__ = ["load_tools", "make_agent", "make_instructions", "start_lines"]

# The groups of the toolbox that need only a workspace, and those that need not even that.
_IN_WORKSPACE: Final = ("Terminal", "Files", "Code", "Skills")
_ALONE: Final = ("Web", "Browser", "Media", "Speech", "Todo", "Memory", "Clarify")
# They start processes, and so need a sandbox.
_WITH_PROCESSES: Final = frozenset({"Terminal", "Code", "Browser", "terminal", "process", "execute_code"})
_WORKSPACE: Final = "."
_WITHOUT_SANDBOX: Final = "`--sandbox off` uses them without one"


def make_agent(configuration: Configuration, choice: ModelChoice, *, can_ask: bool) -> Agent:
    """Make the agent. If nobody can be asked, what needs approval is denied, unless the settings allow it."""
    settings = configuration.settings
    approve: Policy = None if settings.approve == "ask" and not can_ask else settings.approve
    tools = load_tools(configuration)
    try:
        return Agent(
            choice.model,
            tools,
            make_instructions(configuration, tools) or settings.instructions,
            settings.fallbacks,
            settings.max_steps,
            approve=approve,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error


def make_instructions(configuration: Configuration, tools: Collection[Any]) -> Instructions | None:
    """What an agent with these tools is told beside the setting `instructions`; None if it has no tools."""
    if not tools:
        return None
    from halter.toolbox.instructions.instructions import Instructions
    from halter.toolbox.instructions.skills import Skills
    from halter.toolbox.memory import Memory

    names = {getattr(tool, "name", "") for tool in tools}
    return Instructions(
        configuration.settings.instructions,
        _WORKSPACE,
        sandbox=configuration.settings.sandbox if names & _WITH_PROCESSES else None,
        skills=Skills(_WORKSPACE) if "read_skill" in names else None,
        memory=Memory() if "memory" in names else None,
    )


def start_lines(configuration: Configuration, choice: ModelChoice) -> list[str]:
    """What every face shows before the first answer: about the model, and about the sandbox if that is not as usual."""
    settings = configuration.settings
    lines = list(choice.lines)
    if settings.sandbox == "off" or not {"default", *_WITH_PROCESSES} & set(settings.tools):
        return lines
    from halter.toolbox.sandbox.sandbox import why_unavailable

    if why := why_unavailable():
        lines.append(f"No sandbox: {why}. So terminal and execute_code are off; {_WITHOUT_SANDBOX}.")
    elif os.geteuid() == 0:
        lines.append("Halter runs as root: the sandbox is weaker than for an ordinary user.")
    return lines


def load_tools(configuration: Configuration) -> list[Any]:
    """The tools that the settings name, for the current directory.

    "default" is the default set, "Files" a group of the toolbox, "read_file" one tool of the default set, and
    "MODULE:NAME" the user's own: a tool, or a list of them.
    """
    tools: list[Any] = []
    names = configuration.settings.tools
    sandbox = _sandbox(configuration) if any(":" not in name for name in names) else None
    for name in names:
        module, colon, attribute = name.partition(":")
        found = _find(name, module, attribute, configuration) if colon else _of_toolbox(name, configuration, sandbox)
        tools += found if isinstance(found, (list, tuple)) else [found]
    return list({tool.name: tool for tool in tools}.values()) if all(hasattr(each, "name") for each in tools) else tools


def _sandbox(configuration: Configuration) -> Sandbox | None:
    """The sandbox of the settings, for all tools together; None if it is off, or cannot be had."""
    from halter.toolbox.sandbox.sandbox import Sandbox, why_unavailable

    mode = configuration.settings.sandbox
    return None if mode == "off" or why_unavailable() else Sandbox(_WORKSPACE, mode)


def _of_toolbox(name: str, configuration: Configuration, sandbox: Sandbox | None) -> list[Any]:
    from halter import toolbox
    from halter.toolbox.defaults import tools_in, tools_without_processes
    from halter.toolbox.sandbox.sandbox import why_unavailable

    has_none = sandbox is None and configuration.settings.sandbox != "off"
    if has_none and name in _WITH_PROCESSES:
        msg = f"{configuration.origins['tools']}: {name} needs a sandbox: {why_unavailable()}; {_WITHOUT_SANDBOX}"
        raise SettingsError(msg)
    if name in ("Terminal", "Code"):
        return toolbox.Checkpoints(_WORKSPACE).watch(getattr(toolbox, name)(_WORKSPACE, sandbox=sandbox).tools)
    if name == "Browser":
        return toolbox.Browser(sandbox=sandbox).tools
    if name in _IN_WORKSPACE:
        return toolbox.Checkpoints(_WORKSPACE).watch(getattr(toolbox, name)(_WORKSPACE).tools)
    if name in _ALONE:
        return list(getattr(toolbox, name)().tools)
    useful = tools_without_processes(_WORKSPACE) if has_none else tools_in(_WORKSPACE, sandbox)
    skills = toolbox.Skills(_WORKSPACE)
    if name == "read_skill" or skills.find()[0]:  # without skills, the tool would only take room in each request
        useful += skills.tools
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
