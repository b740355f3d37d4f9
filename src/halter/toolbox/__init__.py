"""Tools for agents. Each of them stops at once, returns what it has, and leaves nothing behind.

    from halter import Agent, toolbox

    agent = Agent("openai:gpt-5", toolbox.default("."), approve="ask")

Each class has related tools, in its attribute `tools`. docs/guides/tools.md describes all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from halter._lazy import lazy_exports

if TYPE_CHECKING:
    from halter.toolbox.browser.browser import Browser as Browser
    from halter.toolbox.clarify import Clarify as Clarify
    from halter.toolbox.defaults import default as default
    from halter.toolbox.delegate import Delegate as Delegate
    from halter.toolbox.files.checkpoints.checkpoints import Checkpoints as Checkpoints
    from halter.toolbox.files.files import Files as Files
    from halter.toolbox.files.workspace import Workspace as Workspace
    from halter.toolbox.http.fetch import Net as Net
    from halter.toolbox.images import Media as Media
    from halter.toolbox.instructions.instructions import Instructions as Instructions
    from halter.toolbox.instructions.skills import Skills as Skills
    from halter.toolbox.mcp.mcp import MCP as MCP
    from halter.toolbox.memory import Memory as Memory
    from halter.toolbox.python.execute_code import Code as Code
    from halter.toolbox.remote.remote import Remote as Remote
    from halter.toolbox.remote.ssh import SSHMachine as SSHMachine
    from halter.toolbox.session_search import SessionSearch as SessionSearch
    from halter.toolbox.speech import Speech as Speech
    from halter.toolbox.terminal.terminal import Terminal as Terminal
    from halter.toolbox.todo import Todo as Todo
    from halter.toolbox.web.web import Web as Web

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "browser.browser": ["Browser"],
        "clarify": ["Clarify"],
        "defaults": ["default"],
        "delegate": ["Delegate"],
        "files.checkpoints.checkpoints": ["Checkpoints"],
        "files.files": ["Files"],
        "files.workspace": ["Workspace"],
        "http.fetch": ["Net"],
        "images": ["Media"],
        "instructions.instructions": ["Instructions"],
        "instructions.skills": ["Skills"],
        "mcp.mcp": ["MCP"],
        "memory": ["Memory"],
        "python.execute_code": ["Code"],
        "remote.remote": ["Remote"],
        "remote.ssh": ["SSHMachine"],
        "session_search": ["SessionSearch"],
        "speech": ["Speech"],
        "terminal.terminal": ["Terminal"],
        "todo": ["Todo"],
        "web.web": ["Web"],
    },
)
