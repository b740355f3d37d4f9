"""The first lines of the chat: the model, its tools and where they work, what it may do, and what to type."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from halter.cli.agent_factory import PROCESS_TOOLS, start_lines
from halter.cli.model_choice import LOCAL
from halter.views.text import path_text

if TYPE_CHECKING:
    from halter.agent import Agent
    from halter.cli.model_choice import ModelChoice
    from halter.cli.settings import Configuration

__all__ = ["USAGE_HINT", "welcome", "workspace_text"]

USAGE_HINT: Final = "Type a message and press Enter. @ adds a file, ! runs a command, Esc stops, /help lists the rest."
_MAX_NAMES: Final = 14
_SANDBOXES: Final = {
    "workspace": "Sandbox: commands can write to this folder only",
    "read-only": "Sandbox: commands cannot write",
    "off": "No sandbox: commands can do whatever you can",
}
_APPROVALS: Final = {
    "ask": "Approvals: you are asked before anything that may change something",
    "auto": "Approvals: what stays in the sandbox runs without asking",
    "deny": "Approvals: whatever needs one is denied",
}


def welcome(configuration: Configuration, choice: ModelChoice, agent: Agent) -> list[str]:
    """The lines; the last one says what to type."""
    lines: list[str] = []
    if choice.model != LOCAL:
        lines.append(f"{choice.model} ({choice.why}) in {workspace_text()}")
    lines += start_lines(configuration, choice)
    if agent.tools:
        names = list(agent.tools)
        rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
        lines.append(f"Tools: {', '.join(names[:_MAX_NAMES])}{rest}")
        lines.append(f"{_sandbox(configuration, agent)}{_APPROVALS[configuration.settings.approve]}.")
    elif choice.model != LOCAL:
        lines.append('No tools: set `tools = ["default"]` in the settings file for the usual ones.')
    return [*lines, USAGE_HINT]


def _sandbox(configuration: Configuration, agent: Agent) -> str:
    settings = configuration.settings
    if not PROCESS_TOOLS & set(agent.tools):
        return ""
    text = _SANDBOXES[settings.sandbox]
    if settings.sandbox != "off":
        text += ", with network" if settings.network else ", without network"
    return f"{text}. "


def workspace_text() -> str:
    """The current folder, with ~ for the home folder."""
    return path_text(Path.cwd())
