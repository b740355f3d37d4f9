"""The default set of tools."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from halter.toolbox.clarify import Clarify
from halter.toolbox.files.checkpoints.checkpoints import Checkpoints
from halter.toolbox.files.files import Files
from halter.toolbox.python.execute_code import Code
from halter.toolbox.sandbox.sandbox import Sandbox, SandboxUnavailable
from halter.toolbox.terminal.approval.prefixes import read_prefixes
from halter.toolbox.terminal.terminal import Terminal
from halter.toolbox.todo import Todo
from halter.toolbox.web.web import Web

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from halter.toolbox.sandbox.policy import Mode
    from halter.tools.tool import Tool

_log = logging.getLogger(__name__)


def default(
    workspace: str | os.PathLike[str] = ".",
    sandbox: Mode = "workspace",
    approve_prefixes: Iterable[str | Sequence[str]] = (),
    *,
    network: bool = False,
) -> list[Tool[..., Any]]:
    """The default tools, working in *workspace*: terminal, files, code, web, to-do list and questions.

    *sandbox* says what commands and code may do: "workspace", "read-only", or "off" for all that this user may. In the
    mode "read-only" there are no tools that write files. With
    *network* they have the network in the sandbox, too; else each command has to ask for it, by an approval. Where the
    system has no sandbox, the tools that start processes are left out, unless it is "off".
    Commands that only read, and those that begin with one of *approve_prefixes* ("git push", or a list of words), run
    unasked. Others need approval, and so does code: the agent's `approve` says how. Without one, what stays in the
    sandbox and is not destructive runs, and the rest is denied.
    """
    prefixes = read_prefixes(approve_prefixes)
    try:
        made = None if sandbox == "off" else Sandbox(workspace, sandbox, network=network)
        return tools_in(workspace, made, prefixes)
    except SandboxUnavailable as error:
        _log.warning('no terminal and no execute_code: %s; sandbox="off" uses them without one', error)
        return tools_without_processes(workspace, sandbox)


def tools_in(
    workspace: str | os.PathLike[str], sandbox: Sandbox | None, approve_prefixes: Iterable[str | Sequence[str]] = ()
) -> list[Tool[..., Any]]:
    """The default tools; commands and code run in *sandbox*, and in a read-only one no tool writes files."""
    checkpoints = Checkpoints(workspace)
    terminal = Terminal(workspace, sandbox=sandbox, approve_prefixes=approve_prefixes)
    files = file_tools(workspace, sandbox.mode if sandbox is not None else "off")
    tools = checkpoints.watch([*terminal.tools, *files, *Web().tools])
    code = checkpoints.watch(Code(workspace, tools, sandbox=sandbox).tools)
    return [*tools, *code, *Todo().tools, *Clarify().tools]


def tools_without_processes(workspace: str | os.PathLike[str], sandbox: Mode) -> list[Tool[..., Any]]:
    """Those of the default tools that start no processes."""
    files = Checkpoints(workspace).watch(file_tools(workspace, sandbox))
    return [*files, *Web().tools, *Todo().tools, *Clarify().tools]


def file_tools(workspace: str | os.PathLike[str], sandbox: Mode) -> list[Tool[..., Any]]:
    """The file tools; in the mode "read-only" those that change nothing."""
    files = Files(workspace)
    return files.reading_tools if sandbox == "read-only" else files.tools
