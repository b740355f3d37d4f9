"""The MCP servers of the settings. They are connected once for the program, all at the same time.

A server that cannot be reached does not keep the program from starting: it has no tools, and a line says why. An
invalid table, such as one that refers to a variable that is not set, is an error.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from halter._extras import need
from halter._own_keys import read_key
from halter.cli.settings_values import SettingsError, dotted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from halter.cli.settings import MCPSettings, Settings
    from halter.toolbox.mcp.mcp import MCP
    from halter.toolbox.sandbox.sandbox import Sandbox
    from halter.tools.external import SpecTool

__all__ = ["MCPServers"]

_WORKSPACE: Final = "."
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")  # the names of its tools begin with it
_REFERENCE: Final = re.compile(r"\$\{(\w+)\}")


class MCPServers:
    """All servers of the settings, and their tools. Nothing is started before the tools are asked for."""

    def __init__(self, settings: Settings, origins: Mapping[str, str]) -> None:
        self.problems: list[str] = []
        """Why servers have no tools, in words for the user."""
        self._settings = settings
        self._origins = origins
        self._servers: dict[str, MCP] = {}
        self._tools: dict[str, list[SpecTool]] | None = None

    @property
    def names(self) -> list[str]:
        """The names of all servers."""
        return list(self._settings.mcp)

    def tools(self, names: Iterable[str] | None = None) -> list[SpecTool]:
        """The tools of these servers, or of all. The first call connects to all of them, and is bounded.

        Not in an event loop. Raises `SettingsError`.
        """
        if not self._settings.mcp:
            return []
        if self._tools is None:
            self._servers = {name: self._make(name, table) for name, table in self._settings.mcp.items()}
            import asyncio  # which is slow to import

            self._tools = asyncio.run(self._connect())
        return [tool for name in (self.names if names is None else names) for tool in self._tools[name]]

    async def _connect(self) -> dict[str, list[SpecTool]]:
        import asyncio

        servers = self._servers.items()
        found = await asyncio.gather(*(server.atools() for _, server in servers), return_exceptions=True)
        tools: dict[str, list[SpecTool]] = {}
        for (name, server), result in zip(servers, found, strict=True):
            if isinstance(result, BaseException):
                if not isinstance(result, Exception):
                    raise result
                server.close()
                self.problems.append(f"{self._place(name)}: no tools: {result}. {self._advice(name)}")
            tools[name] = [] if isinstance(result, BaseException) else result
        return tools

    def _make(self, name: str, table: MCPSettings) -> MCP:
        try:
            need("mcp", "mcp")
        except ImportError as error:
            raise SettingsError(f"{self._place(name)}: {error}") from error
        from halter.toolbox.mcp.mcp import MCP

        if not _NAME.fullmatch(name):
            raise SettingsError(f"{self._place(name)}: a name consists of 1 to 32 letters, digits, _ and -")
        options: dict[str, Any] = {"prefix": f"{name}_", "approval": table.approval, "timeout": table.timeout}
        if table.url:
            return MCP.http(table.url, headers=self._filled(name, "headers", table.headers), **options)
        program, *arguments = table.command
        env = self._filled(name, "env", table.env)
        return MCP.stdio(program, arguments, env=env, sandbox=self._sandbox(name, table), **options)

    def _filled(self, name: str, key: str, given: Mapping[str, str]) -> dict[str, str]:
        """The texts with the values of the variables that they name."""

        def value(found: re.Match[str]) -> str:
            secret = read_key(found[1])
            if not secret:
                raise SettingsError(f"{self._place(name)}: {key}: the variable {found[1]} is not set")
            return secret

        return {each: _REFERENCE.sub(value, text) for each, text in given.items()}

    def _sandbox(self, name: str, table: MCPSettings) -> Sandbox | None:
        from halter.toolbox.sandbox.sandbox import Sandbox, why_unavailable

        mode = table.sandbox or self._settings.sandbox
        if mode == "off":
            return None
        if why := why_unavailable():
            advice = 'sandbox = "off" in this table starts it without one'
            raise SettingsError(f"{self._place(name)}: it needs a sandbox: {why}; {advice}")
        network = self._settings.network if table.network is None else table.network
        return Sandbox(_WORKSPACE, mode, network=network)

    def _place(self, name: str) -> str:
        path = dotted(("mcp", name))
        return f"{self._origins[path]}: {path}"

    def _advice(self, name: str) -> str:
        table = self._settings.mcp[name]
        has_network = self._settings.network if table.network is None else table.network
        mode = table.sandbox or self._settings.sandbox
        if table.url or mode == "off" or has_network:
            return "`halter doctor` checks it."
        return "It runs in the sandbox, without network access; network = true in this table allows it."

    def close(self) -> None:
        """End all connections. Bounded. Without it, they end with the program."""
        for server in self._servers.values():
            server.close()
