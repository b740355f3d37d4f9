"""The MCP servers that an editor passes for one session.

They run as the user has set them up in the editor: in the sandbox of the settings, but with the network. One that
cannot be reached does not keep the session from opening: it has no tools, and a line says why.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from halter._extras import need

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from halter.cli.settings import Configuration
    from halter.protocols.acp.schema import ClientMcpServer
    from halter.toolbox.mcp.mcp import MCP
    from halter.toolbox.sandbox.sandbox import Sandbox
    from halter.tools.external import SpecTool

__all__ = ["ConnectedServers", "connect_servers"]

_OTHERS: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME: Final = 32


class ConnectedServers(NamedTuple):
    """The tools of servers, why some have none, and what closes them all."""

    tools: list[SpecTool]
    problems: list[str]
    close: Callable[[], object]


def connect_servers(servers: Sequence[ClientMcpServer], configuration: Configuration) -> ConnectedServers:
    """Connect to all of them at the same time. Blocks, bounded. Raises `ValueError` for a transport that is unknown."""
    for each in servers:
        if each.type not in ("stdio", "http"):
            raise ValueError(
                f"MCP server {each.name!r}: the transport {each.type!r:.40} is not supported; use stdio or http"
            )
    if not servers:
        return ConnectedServers([], [], lambda: None)
    try:
        need("mcp", "mcp")
        sandbox = _sandbox(configuration)
    except (ImportError, OSError) as error:
        return ConnectedServers([], [f"The MCP servers of the editor are not used: {error}."], lambda: None)
    made = [_make(each, configuration, sandbox) for each in servers]
    found = asyncio.run(_connect(made))
    tools: list[SpecTool] = []
    problems: list[str] = []
    for given, result in zip(servers, found, strict=True):
        if isinstance(result, BaseException):
            if not isinstance(result, Exception):
                raise result
            problems.append(f"MCP server {given.name!r}: no tools: {result}.")
        else:
            tools += result
    return ConnectedServers(tools, problems, lambda: _close(made))


async def _connect(servers: Sequence[MCP]) -> list[list[SpecTool] | BaseException]:
    return await asyncio.gather(*(each.atools() for each in servers), return_exceptions=True)


def _make(given: ClientMcpServer, configuration: Configuration, sandbox: Sandbox | None) -> MCP:
    from halter.toolbox.mcp.mcp import MCP

    prefix = f"{_OTHERS.sub('_', given.name)[:_MAX_NAME]}_"
    if given.type == "http":
        return MCP.http(given.url, headers={each.name: each.value for each in given.headers}, prefix=prefix)
    env = {each.name: each.value for each in given.env}
    options: dict[str, Any] = {"env": env, "cwd": configuration.workspace, "sandbox": sandbox, "prefix": prefix}
    return MCP.stdio(given.command, given.args, **options)


def _sandbox(configuration: Configuration) -> Sandbox | None:
    """The sandbox of the settings, with the network. Raises `OSError` if the system has none."""
    from halter.toolbox.sandbox.sandbox import Sandbox, why_unavailable

    mode = configuration.settings.sandbox
    if mode == "off":
        return None
    if why := why_unavailable():
        raise OSError(f"they need a sandbox: {why}; `--sandbox off` uses them without one")
    return Sandbox(configuration.workspace, mode, network=True)


def _close(servers: Sequence[MCP]) -> None:
    for each in servers:
        each.close()
