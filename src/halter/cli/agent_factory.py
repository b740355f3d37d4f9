"""Makes the agent from the settings, for the chat, print mode and the gateway."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.agent import Agent
from halter.cli.model_choice import LOCAL
from halter.cli.settings import DEFAULT, SettingsError
from halter.tools.approval import Approval

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from halter.cli.model_choice import ModelChoice
    from halter.cli.settings import Configuration
    from halter.toolbox.instructions.instructions import Instructions
    from halter.toolbox.sandbox.sandbox import Sandbox
    from halter.tools.approval import ApprovalRequest, Policy

__all__ = [
    "PROCESS_TOOLS",
    "load_tools",
    "make_agent",
    "make_agents",
    "make_instructions",
    "sandbox_lines",
    "start_lines",
    "tool_names",
]

# Groups of the toolbox that need a workspace, and those that need nothing.
_IN_WORKSPACE: Final = ("Terminal", "Files", "Code", "Skills")
_STANDALONE: Final = ("Web", "Browser", "Media", "Speech", "Todo", "Memory", "Clarify")
PROCESS_TOOLS: Final = frozenset({"Terminal", "Code", "Browser", "terminal", "process", "execute_code"})
"""Tools and groups that start processes, and so need a sandbox."""
_MAIN_AGENT: Final = "halter"  # the name of the main agent
_MCP_PREFIX: Final = "mcp."  # before the name of an MCP server
_SANDBOX_OFF_HINT: Final = "`--sandbox off` enables them without one"


def make_agent(
    configuration: Configuration, choice: ModelChoice, *, can_ask: bool, more_tools: Collection[Any] = ()
) -> Agent:
    """Make the agent, with *more_tools* beside those of the settings.

    If nobody can be asked, calls that need approval are denied. With "ask", what stays in the sandbox and is not
    destructive still runs, as for an agent without a policy.
    """
    return next(iter(make_agents(configuration, choice, can_ask=can_ask, more_tools=more_tools).values()))


def make_agents(
    configuration: Configuration, choice: ModelChoice, *, can_ask: bool, more_tools: Collection[Any] = ()
) -> dict[str, Agent]:
    """The agent, which comes first and can delegate to the others, and the other agents of the settings, by name."""
    chosen = configuration.settings.agent
    others: dict[str, Agent] = {}
    for name in configuration.settings.agents:
        if name != chosen:
            theirs = configuration.for_agent(name)
            model = theirs.settings.model or choice.model
            others[name] = _make(theirs, model, load_tools(theirs, model), name=name, can_ask=can_ask)
    tools = _unique([*load_tools(configuration, choice.model), *more_tools])
    if not chosen:
        tools = _unique([*tools, *configuration.servers.tools()])
        if others:
            from halter.toolbox.delegate import Delegate

            tools += Delegate(others, timeout=configuration.settings.delegate_timeout).tools
    name = chosen or _MAIN_AGENT
    if name in others:
        raise SettingsError(f"{configuration.origins[f'agents.{name}']}: this is the name of the main agent")
    return {name: _make(configuration, choice.model, tools, name=name, can_ask=can_ask), **others}


def _make(configuration: Configuration, model: str, tools: list[Any], *, name: str, can_ask: bool) -> Agent:
    settings = configuration.settings
    approve: Policy = settings.approve
    if not can_ask and settings.approve != "deny":
        approve = None if settings.approve == "ask" else _approve_in_sandbox
    wanted = settings.model_settings
    try:
        agent = Agent(
            model,
            tools,
            make_instructions(configuration, tools) or settings.instructions,
            settings.fallbacks,
            name=name,
            approve=approve,
            settings=wanted.for_agent,
            limits=settings.limits,
        )
    except ValueError as error:
        raise SettingsError(str(error)) from error
    for limit in ("first_byte_timeout", "stale_timeout"):
        seconds = getattr(wanted, limit)
        for each in (agent.model, *agent.fallbacks) if seconds is not None else ():
            setattr(each, limit, seconds)
    return agent


def make_instructions(configuration: Configuration, tools: Collection[Any]) -> Instructions | None:
    """The system prompt of an agent with these tools; None if it has none, which leaves the setting `instructions`."""
    if not tools:
        return None
    from halter.toolbox.instructions.instructions import Instructions
    from halter.toolbox.instructions.skills import Skills
    from halter.toolbox.memory import Memory

    names = {getattr(tool, "name", "") for tool in tools}
    return Instructions(
        configuration.settings.instructions,
        configuration.workspace,
        sandbox=configuration.settings.sandbox if names & PROCESS_TOOLS else None,
        skills=Skills(configuration.workspace) if "read_skill" in names else None,
        memory=Memory(),  # people add notes, too
    )


def _approve_in_sandbox(request: ApprovalRequest) -> Approval:
    """The mode "auto" where nobody can be asked."""
    if request.automatic:
        return Approval(granted=True, note="approved by the policy")
    note = "it would not run in a sandbox, and nobody can be asked here; the setting approve_prefixes allows commands"
    return Approval(granted=False, note=note)


def start_lines(configuration: Configuration, choice: ModelChoice, *, is_script: bool = False) -> list[str]:
    """Notes that are shown before the first answer: about the model, and about the sandbox if it is missing or weak.

    For a script, only about a missing sandbox.
    """
    lines = [] if is_script and _has_sandbox() else sandbox_lines(configuration, choice.model)
    return [*choice.lines, *configuration.servers.problems, *lines]


def _has_sandbox() -> bool:
    """Whether this system has a sandbox."""
    from halter.toolbox.sandbox.sandbox import why_unavailable

    return not why_unavailable()


def sandbox_lines(configuration: Configuration, model: str) -> list[str]:
    """Notes about a sandbox that is missing or weak, for all users, clients of the gateway included."""
    settings = configuration.settings
    if settings.sandbox == "off" or not {"default", *PROCESS_TOOLS} & set(tool_names(configuration, model)):
        return []
    from halter.toolbox.sandbox.sandbox import why_unavailable

    if why := why_unavailable():
        return [f"No sandbox: {why}. terminal and execute_code are off; {_SANDBOX_OFF_HINT}."]
    if os.geteuid() == 0:
        return ["Halter is running as root: the sandbox is weaker than for a regular user."]
    return []


def tool_names(configuration: Configuration, model: str) -> tuple[str, ...]:
    """The names of the tools in the settings. By default the embedded model has none."""
    is_set = configuration.origins["tools"] != DEFAULT
    return configuration.settings.tools if is_set or model != LOCAL else ()


def load_tools(configuration: Configuration, model: str = "") -> list[Any]:
    """The tools that the settings name, for the workspace.

    "default" is the default set, "Files" a group of the toolbox, "read_file" one tool of the default set, "mcp.NAME"
    the tools of an MCP server, and "MODULE:NAME" the user's own: a tool, or a list of them.
    """
    tools: list[Any] = []
    names = tool_names(configuration, model)
    sandbox = _sandbox(configuration) if any(":" not in name for name in names) else None
    for name in names:
        module, colon, attribute = name.partition(":")
        if colon:
            found = _import_tool(name, module, attribute, configuration)
        else:
            found = _toolbox_tools(name, configuration, sandbox)
        tools += found if isinstance(found, (list, tuple)) else [found]
    return _unique(tools)


def _unique(tools: list[Any]) -> list[Any]:
    """Each tool once. A plain function has no name yet."""
    return list({tool.name: tool for tool in tools}.values()) if all(hasattr(each, "name") for each in tools) else tools


def _sandbox(configuration: Configuration) -> Sandbox | None:
    """The sandbox of the settings, for all tools together; None if it is off or unavailable."""
    from halter.toolbox.sandbox.sandbox import Sandbox, why_unavailable

    settings = configuration.settings
    mode = settings.sandbox
    return (
        None if mode == "off" or why_unavailable() else Sandbox(configuration.workspace, mode, network=settings.network)
    )


def _toolbox_tools(name: str, configuration: Configuration, sandbox: Sandbox | None) -> list[Any]:
    from halter import toolbox
    from halter.toolbox.defaults import file_tools, tools_in, tools_without_processes
    from halter.toolbox.sandbox.sandbox import why_unavailable

    if name.startswith(_MCP_PREFIX):
        return _server_tools(name.removeprefix(_MCP_PREFIX), configuration)
    settings = configuration.settings
    lacks_sandbox = sandbox is None and settings.sandbox != "off"
    if lacks_sandbox and name in PROCESS_TOOLS:
        msg = f"{configuration.origins['tools']}: {name} needs a sandbox: {why_unavailable()}; {_SANDBOX_OFF_HINT}"
        raise SettingsError(msg)
    workspace = configuration.workspace
    watch = toolbox.Checkpoints(workspace).watch
    prefixes = settings.approve_prefixes
    groups: dict[str, Callable[[], list[Any]]] = {
        "Terminal": lambda: watch(toolbox.Terminal(workspace, sandbox=sandbox, approve_prefixes=prefixes).tools),
        "Code": lambda: watch(toolbox.Code(workspace, sandbox=sandbox).tools),
        "Browser": lambda: toolbox.Browser(sandbox=sandbox).tools,
        "Files": lambda: watch(file_tools(workspace, settings.sandbox)),
        "Skills": lambda: toolbox.Skills(workspace).tools,
    }
    if name in groups:
        return groups[name]()
    if name in _STANDALONE:
        return list(getattr(toolbox, name)().tools)
    useful = (
        tools_without_processes(workspace, settings.sandbox)
        if lacks_sandbox
        else tools_in(workspace, sandbox, prefixes)
    )
    skills = toolbox.Skills(workspace)
    if name == "read_skill" or skills.find()[0]:  # without skills, the tool would only take room in each request
        useful += skills.tools
    found = useful if name == "default" else [tool for tool in useful if tool.name == name]
    if not found:
        known = ["default", *_IN_WORKSPACE, *_STANDALONE, *(tool.name for tool in useful)]
        msg = f"{configuration.origins['tools']}: unknown tool {name!r}; known: {', '.join(known)}"
        raise SettingsError(msg)
    return found


def _server_tools(name: str, configuration: Configuration) -> list[Any]:
    if name not in configuration.servers.names:
        known = ", ".join(configuration.servers.names) or "none"
        msg = f"{configuration.origins['tools']}: there is no MCP server {name!r}; known: {known}"
        raise SettingsError(msg)
    return list(configuration.servers.tools([name]))


def _import_tool(name: str, module: str, attribute: str, configuration: Configuration) -> object:
    origin = configuration.origins["tools"]
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # last: what is installed comes first
    try:
        return getattr(importlib.import_module(module), attribute)
    except AttributeError:
        msg = f"{origin}: there is no tool {name!r} in {module}"
    except ModuleNotFoundError as error:
        if error.name != module and not module.startswith(f"{error.name}."):
            raise
        msg = f"{origin}: there is no tool {name!r}: module {module} is neither installed nor in {here}"
    raise SettingsError(msg)
