"""The default set of tools."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from halter.toolbox.clarify import Clarify
from halter.toolbox.files.checkpoints.checkpoints import Checkpoints
from halter.toolbox.files.files import Files
from halter.toolbox.python.execute_code import Code
from halter.toolbox.sandbox.sandbox import Sandbox, SandboxUnavailable
from halter.toolbox.terminal.terminal import Terminal
from halter.toolbox.todo import Todo
from halter.toolbox.web.web import Web

if TYPE_CHECKING:
    import os

    from halter.toolbox.sandbox.policy import Mode
    from halter.tools.tool import Tool

_log = logging.getLogger(__name__)


def default(workspace: str | os.PathLike[str] = ".", sandbox: Mode = "workspace") -> list[Tool[..., Any]]:
    """The default tools, working in *workspace*: terminal, files, code, web, to-do list and questions.

    *sandbox* says what commands and code may do: "workspace", "read-only", or "off" for all that this user may. Where
    the system has no sandbox, the tools that start processes are left out, unless it is "off".
    Destructive commands and code need approval: set the agent's `approve`, or they are denied.
    """
    try:
        return tools_in(workspace, None if sandbox == "off" else Sandbox(workspace, sandbox))
    except SandboxUnavailable as error:
        _log.warning('no terminal and no execute_code: %s; sandbox="off" uses them without one', error)
        return tools_without_processes(workspace)


def tools_in(workspace: str | os.PathLike[str], sandbox: Sandbox | None) -> list[Tool[..., Any]]:
    """The default tools; commands and code run in *sandbox*."""
    checkpoints = Checkpoints(workspace)
    tools = [*Terminal(workspace, sandbox=sandbox).tools, *Files(workspace).tools, *Web().tools]
    tools = checkpoints.watch(tools)
    code = checkpoints.watch(Code(workspace, tools, sandbox=sandbox).tools)
    return [*tools, *code, *Todo().tools, *Clarify().tools]


def tools_without_processes(workspace: str | os.PathLike[str]) -> list[Tool[..., Any]]:
    """Those of the default tools that start no processes."""
    return [*Checkpoints(workspace).watch(Files(workspace).tools), *Web().tools, *Todo().tools, *Clarify().tools]
