"""`halter mcp`: the agents of the settings as tools for other programs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from halter.cancel import ExitGuard
from halter.cli.output import print_error
from halter.cli.settings import SettingsError, flags_of, load
from halter.views.text import strip_controls

if TYPE_CHECKING:
    import argparse

__all__ = ["serve_mcp"]


def serve_mcp(options: argparse.Namespace) -> int:
    """Serve until the client is gone. Returns the exit code if it cannot start. A boundary: errors are printed."""
    from halter._extras import need
    from halter.cli.model_choice import NoModel, choose_model
    from halter.errors import HalterError

    try:
        need("mcp", "mcp")
        configuration = load(flags_of(options))
        timeout = configuration.settings.exit_timeout
        with ExitGuard(timeout) as guard:
            with guard.hold_signals():
                from halter.cli.agent_factory import make_agents, start_lines
                from halter.protocols.mcp.server import McpServer
                from halter.protocols.serve import serve_stdio
                from halter.stores import SQLiteStore

                choice = choose_model(configuration)
                agents = make_agents(configuration, choice, can_ask=False)
            for line in start_lines(configuration, choice):
                print(strip_controls(line), file=sys.stderr)
            with SQLiteStore(configuration.make_store()) as store:
                serve_stdio(McpServer(agents, store).run, guard, timeout)
    except (HalterError, ImportError, NoModel, OSError, SettingsError, ValueError) as error:
        return print_error(error)
