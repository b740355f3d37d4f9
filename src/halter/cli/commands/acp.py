"""`halter acp`: an agent for editors that speak the Agent Client Protocol."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from halter.cancel import ExitGuard
from halter.cli.output import print_error
from halter.cli.settings import SettingsError, flags_of, load
from halter.views.text import strip_controls

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from halter.protocols.acp.editor_session import PreparedAgent
    from halter.protocols.acp.schema import ClientMcpServer

__all__ = ["serve_acp"]


def serve_acp(options: argparse.Namespace) -> int:
    """Serve until the client is gone. Returns the exit code if it cannot start. A boundary: errors are printed."""
    from halter.cli.model_choice import NoModel, choose_model
    from halter.errors import HalterError

    try:
        configuration = load(flags_of(options))
        timeout = configuration.settings.exit_timeout
        with ExitGuard(timeout) as guard:
            with guard.hold_signals():
                from halter.cli.agent_factory import make_agent, start_lines
                from halter.cli.client_servers import connect_servers
                from halter.protocols.acp.editor_session import PreparedAgent
                from halter.protocols.acp.server import AcpServer
                from halter.protocols.serve import serve_stdio
                from halter.stores import SQLiteStore

                choice = choose_model(configuration)
                make_agent(configuration, choice, can_ask=True)  # report errors of the settings now

            def prepare(workspace: Path, servers: list[ClientMcpServer]) -> PreparedAgent:
                here = replace(configuration, workspace=str(workspace))
                connected = connect_servers(servers, here)
                try:
                    agent = make_agent(here, choice, can_ask=True, more_tools=connected.tools)
                except SettingsError as error:
                    connected.close()
                    raise ValueError(str(error)) from error
                return PreparedAgent(agent, connected.problems, connected.close)

            for line in start_lines(configuration, choice):
                print(strip_controls(line), file=sys.stderr)
            with SQLiteStore(configuration.make_store()) as store:
                serve_stdio(lambda stream, seconds: AcpServer(stream, store, prepare).run(seconds), guard, timeout)
    except (HalterError, ImportError, NoModel, OSError, SettingsError, ValueError) as error:
        return print_error(error)
