"""The default set of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from halter.toolbox.clarify import Clarify
from halter.toolbox.files.files import Files
from halter.toolbox.python.execute_code import Code
from halter.toolbox.terminal.terminal import Terminal
from halter.toolbox.todo import Todo
from halter.toolbox.web.web import Web

if TYPE_CHECKING:
    import os

    from halter.tools.tool import Tool


def default(workspace: str | os.PathLike[str]) -> list[Tool[..., Any]]:
    """The default tools, working in *workspace*: terminal, files, code, web, to-do list and questions.

    Destructive commands and code need approval: set the agent's `approve`, or they are denied.
    """
    tools = [*Terminal(workspace).tools, *Files(workspace).tools, *Web().tools]
    return [*tools, *Code(workspace, tools).tools, *Todo().tools, *Clarify().tools]
