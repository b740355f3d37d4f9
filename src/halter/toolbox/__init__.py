"""Tools that people expect of an agent, each of which stops: at once, with what it has, and leaving nothing behind.

    from halter import Agent, toolbox

    agent = Agent("openai:gpt-5", toolbox.default("."), approve="ask")

Each class is a family of tools, and `tools` are its tools; take what you need. docs/tools.md tells of all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halter.lazy import lazy_names

if TYPE_CHECKING:
    import os

    from halter.toolbox.browser import Browser
    from halter.toolbox.clarify import Clarify
    from halter.toolbox.code import Code
    from halter.toolbox.delegate import Delegate
    from halter.toolbox.files import Files
    from halter.toolbox.mcp import MCP
    from halter.toolbox.media import Media
    from halter.toolbox.net import Net
    from halter.toolbox.notes import Memory, Todo
    from halter.toolbox.recall import SessionSearch
    from halter.toolbox.remote import Remote
    from halter.toolbox.speech import Speech
    from halter.toolbox.ssh import SSHMachine
    from halter.toolbox.terminal import Terminal
    from halter.toolbox.web import Web
    from halter.toolbox.workspace import Workspace
    from halter.tools.tool import Tool

_HOMES = {
    "Browser": "browser",
    "Clarify": "clarify",
    "Code": "code",
    "Delegate": "delegate",
    "Files": "files",
    "MCP": "mcp",
    "Media": "media",
    "Memory": "notes",
    "Net": "net",
    "Remote": "remote",
    "SSHMachine": "ssh",
    "SessionSearch": "recall",
    "Speech": "speech",
    "Terminal": "terminal",
    "Todo": "notes",
    "Web": "web",
    "Workspace": "workspace",
}

__all__ = [
    "MCP",
    "Browser",
    "Clarify",
    "Code",
    "Delegate",
    "Files",
    "Media",
    "Memory",
    "Net",
    "Remote",
    "SSHMachine",
    "SessionSearch",
    "Speech",
    "Terminal",
    "Todo",
    "Web",
    "Workspace",
    "default",
]


def default(workspace: str | os.PathLike[str]) -> list[Tool[..., Any]]:
    """The useful set, at work in *workspace*: terminal, files, code, web, a list of its own, and questions.

    Commands and code that destroy need approval: set the agent's `approve`, or they are denied.
    """
    from halter.toolbox.clarify import Clarify  # noqa: PLC0415  (importing a toolbox is not to import all its tools)
    from halter.toolbox.code import Code  # noqa: PLC0415
    from halter.toolbox.files import Files  # noqa: PLC0415
    from halter.toolbox.notes import Todo  # noqa: PLC0415
    from halter.toolbox.terminal import Terminal  # noqa: PLC0415
    from halter.toolbox.web import Web  # noqa: PLC0415

    tools = [*Terminal(workspace).tools, *Files(workspace).tools, *Web().tools]
    return [*tools, *Code(workspace, tools).tools, *Todo().tools, *Clarify().tools]


__getattr__, __dir__ = lazy_names(__name__, _HOMES)
