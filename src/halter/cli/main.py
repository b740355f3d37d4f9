"""The command line: commands and their options. Each command is imported only when it is used."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

from halter._version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run"]

_NOTE = "Without a command and without -p, halter opens a chat."
_MAX_PORT = 65_535


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit code."""
    from halter.cli.output import EXIT_PIPE_CLOSED, clean_log
    from halter.cli.provider_keys import load_provider_keys

    argv = sys.argv[1:] if argv is None else argv
    clean_log()
    load_provider_keys()
    if _is_print_mode(argv):
        from halter.cli.commands.print_turn import print_turn

        _close_own_process()
        return print_turn(_print_parser().parse_intermixed_args(argv))
    parser = _parser(argv)
    options = parser.parse_args(argv)
    options.argv = list(argv)
    if options.version:
        print(f"halter {__version__}")
        return 0
    if options.command is None:
        if options.json:
            parser.error("--json needs -p")
        from halter.cli.chat.start import open_chat

        _close_own_process()
        return open_chat(options)
    try:
        code = _command(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # Flushing the rest at exit would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    return code


def _is_print_mode(argv: Sequence[str]) -> bool:
    """Whether -p is an option of ours: behind `mcp add` it is one of the server's command."""
    at = next((at for at, pair in enumerate(pairwise(argv)) if pair == ("mcp", "add")), len(argv))
    return not {"-p", "--print"}.isdisjoint(argv[:at])


def _parser(argv: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser of all commands. With *argv*, commands that are not in it lack shared options, which take time."""
    parser = argparse.ArgumentParser(
        prog="halter",
        description="The agent runtime that stops when you say stop: now, completely, and with nothing lost.",
        epilog=_NOTE,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--plain", action="store_true", help="chat in plain lines, as for a screen reader")
    parser.add_argument(
        "--resume",
        metavar="ID",
        nargs="?",
        const="",
        help="continue a session, by its id or the start of it; without one: choose from a list",
    )
    _print_options(parser)
    _shared(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    serve = commands.add_parser("serve", help="run the gateway: sessions over HTTP and WebSocket, and a web page")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on; anything but loopback needs a key")
    serve.add_argument("--port", type=_port, default=8787, help="port to listen on; 0 picks a free one")
    serve.add_argument(
        "--public-name", metavar="HOST", help="host name under which a proxy with TLS serves this gateway"
    )
    serve.add_argument("--cluster", metavar="URL", help="NATS servers through which gateways share their sessions")
    serve.add_argument("--workers", metavar="N", help="number of processes that serve; more than one share sessions")
    serve.add_argument("--worker", help=argparse.SUPPRESS)  # what the parent tells a worker
    cluster = commands.add_parser("cluster", help="show the nodes of a cluster, their sessions and the servers")
    cluster.add_argument("--cluster", metavar="URL", help="NATS servers; default: the setting, or those of --workers")
    cluster.add_argument("--json", action="store_true", help="print JSON")
    keys = commands.add_parser("keys", help="create, list or revoke keys for the gateway")
    keys.add_argument("action", choices=["create", "list", "revoke"])
    keys.add_argument("name", metavar="NAME", nargs="?", help="name of the key; its id also works for revoke")
    scopes = ["read", "write", "approve", "admin"]
    keys.add_argument("--scope", choices=scopes, default="write", help="what the key allows")
    _store(commands.add_parser("sessions", help="list sessions"))
    why = commands.add_parser("why", help="show the last stop of a session: who asked, and what ended when and how")
    why.add_argument(
        "session", metavar="SESSION", nargs="?", help="session id, or the start of one; default: the latest"
    )
    why.add_argument("--json", action="store_true", help="print JSON")
    _store(why)
    doctor = commands.add_parser("doctor", help="check the installation and suggest fixes")
    doctor.add_argument("--online", action="store_true", help="also send a request to the model's provider")
    login = commands.add_parser("login", help="check and store the key of a model provider")
    login.add_argument("provider", metavar="PROVIDER", help="openai, anthropic, gemini, openrouter, groq, ...")
    mcp = _mcp(commands)
    acp = commands.add_parser("acp", help="run as an editor's agent, by ACP on standard input")
    config = commands.add_parser("config", help="show or edit the settings")
    config.add_argument("action", choices=["path", "show", "edit"])
    commands.add_parser("demo", help="watch one stop end a stream, threads, processes and tasks (4 s)")
    fetch = commands.add_parser(
        "fetch-model", help="install the small embedded model, which needs no key and no network"
    )
    fetch.add_argument("--yes", action="store_true", help="do not ask before installing")
    for name, parsers in {"serve": [serve], "doctor": [doctor], "acp": [acp], "mcp": mcp}.items():
        for each in parsers if argv is None or name in argv else ():
            _shared(each)
    return parser


def _mcp(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> list[argparse.ArgumentParser]:
    """Add the command `mcp`; gives the parsers that serve."""
    mcp = commands.add_parser(
        "mcp", help="serve the agents as tools, by MCP on standard input; or add, list or remove servers to use"
    )
    actions = mcp.add_subparsers(dest="action", metavar="ACTION", title="actions")
    serve = actions.add_parser("serve", help="serve the agents as tools; the default")
    add = actions.add_parser("add", help="add a server, whose tools the model can use")
    add.add_argument("name", metavar="NAME", nargs="?", help="name of the server")
    add.add_argument("what", metavar="URL|COMMAND", nargs=argparse.REMAINDER, help="its address, or the command")
    actions.add_parser("list", help="list the servers")
    remove = actions.add_parser("remove", help="remove a server")
    remove.add_argument("name", metavar="NAME", nargs="?", help="name of the server")
    return [mcp, serve]


def _port(text: str) -> int:
    """A port number; what argparse says of others is the error's text."""
    if not (text.isascii() and text.isdecimal() and int(text[:6]) <= _MAX_PORT):
        msg = f"{text!r} is not a port: choose a number from 0 to {_MAX_PORT}; 0 picks a free one"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def _print_parser() -> argparse.ArgumentParser:
    """The parser of print mode: without commands, so the text may stand anywhere."""
    usage = "halter -p TEXT [--json] [--continue] [--session ID] [--model NAME]"
    parser = argparse.ArgumentParser(prog="halter", usage=usage)
    _print_options(parser)
    parser.add_argument("text", metavar="TEXT", nargs="*", help='"-" or no text: read standard input')
    _shared(parser)
    return parser


def _print_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-p",
        "--print",
        action="store_true",
        help='answer TEXT and exit; "-" or no text: read standard input',
    )
    parser.add_argument("--json", action="store_true", help="with -p: print each event as one line of JSON")
    parser.add_argument("--session", metavar="ID", help="continue this session, or start one with this id")
    parser.add_argument("-c", "--continue", dest="latest", action="store_true", help="continue the latest session")


def _shared(parser: argparse.ArgumentParser) -> None:
    from halter.cli.settings import flag_for, table_flags

    # The default of a subcommand would hide an option given before the command.
    parser.add_argument(
        "--model", metavar="NAME", default=argparse.SUPPRESS, help="openai:NAME, anthropic:NAME, ollama:NAME or local"
    )
    parser.add_argument(
        "--agent", metavar="NAME", default=argparse.SUPPRESS, help="use this agent of [agents] in the settings"
    )
    parser.add_argument(
        "--tools",
        metavar="NAMES",
        type=_names,
        default=argparse.SUPPRESS,
        help='the tools that the model has: "default", "none", or names separated by commas',
    )
    parser.add_argument(
        "--sandbox",
        choices=["workspace", "read-only", "off"],
        default=argparse.SUPPRESS,
        help="what commands of the model may write: the workspace, nothing, or whatever you may",
    )
    parser.add_argument(
        "--approve",
        choices=["ask", "auto", "deny"],
        default=argparse.SUPPRESS,
        help="commands that may change something: ask, run what stays in the sandbox and ask for the rest, or deny",
    )
    parser.add_argument(
        "--network",
        action=argparse.BooleanOptionalAction,
        default=argparse.SUPPRESS,
        help="whether commands of the model have the network in the sandbox; without it they have to ask",
    )
    _store(parser)
    for title, table in (("limits of one turn", "limits"), ("settings of the model", "model_settings")):
        group = parser.add_argument_group(title)
        for path in table_flags(table):
            group.add_argument(
                flag_for(path),
                dest=".".join(path),
                metavar="VALUE",
                default=argparse.SUPPRESS,
                help=f"`{path[-1]}` of [{table}] in the settings",
            )
    parser.add_argument(
        "--delegate-timeout",
        dest="delegate_timeout",
        metavar="SECONDS",
        default=argparse.SUPPRESS,
        help="time limit for each task that is delegated to another agent",
    )


def _names(text: str) -> list[str]:
    """Names that are separated by commas; "none" is no name."""
    return [] if text == "none" else [each.strip() for each in text.split(",") if each.strip()]


def _store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="PATH", default=argparse.SUPPRESS, help="file that stores the sessions")


def _command(options: argparse.Namespace) -> int:  # noqa: C901, PLR0911, PLR0912  (one for each command)
    is_mcp_server = options.command == "mcp" and options.action in (None, "serve")
    if options.command not in ("serve", "acp", "demo") and not is_mcp_server:  # those have an ExitGuard
        _raise_on_ctrl_c()
    match options.command:
        case "sessions":
            from halter.cli.commands.sessions import list_sessions

            return list_sessions(options)
        case "why":
            from halter.cli.commands.sessions import show_why

            return show_why(options)
        case "doctor":
            from halter.cli.commands.doctor import examine

            return examine(options)
        case "config":
            from halter.cli.commands.config import config

            return config(options.action)
        case "serve":
            from halter.cli.commands.serve import serve_gateway

            _close_own_process()
            return serve_gateway(options)
        case "cluster":
            from halter.cli.commands.cluster import show_cluster

            return show_cluster(options)
        case "keys":
            from halter.cli.commands.serve import manage_keys

            return manage_keys(options)
        case "acp":
            from halter.cli.commands.acp import serve_acp

            _close_own_process()
            return serve_acp(options)
        case "mcp" if is_mcp_server:
            from halter.cli.commands.mcp_serve import serve_mcp

            _close_own_process()
            return serve_mcp(options)
        case "mcp":
            from halter.cli.commands.mcp import manage_servers

            return manage_servers(options)
        case "login":
            from halter.cli.commands.login import login

            return login(options.provider)
        case "demo":
            return _demo()
        case _:
            from halter.models.local.fetch import fetch_model

            return fetch_model(is_agreed=options.yes, say=print)


def _raise_on_ctrl_c() -> None:
    """Have Ctrl+C raise KeyboardInterrupt again; see `halter.__main__`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _close_own_process() -> None:
    from halter.cli.own_process import protect_own_process

    protect_own_process()


def _demo() -> int:
    from halter.cancel import ExitGuard
    from halter.demo import run

    with ExitGuard(timeout=10.0) as guard:
        sys.exit(run(guard.token))
