"""The commands, and what each of them takes. Each is imported when it is used: `halter --version` pays for none."""

from __future__ import annotations

# ruff: noqa: PLC0415  (each command imports what it needs, and no other)
import argparse
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run"]

_NOTE = "Without a command and without -p: a chat."
_PIPE_CLOSED = 141


def run(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says. Returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if "-p" in argv or "--print" in argv:
        from halter.cli.printing import print_turn

        return print_turn(_print_parser().parse_intermixed_args(argv))
    parser = _parser()
    options = parser.parse_args(argv)
    if options.version:
        print(f"halter {version()}")
        return 0
    if options.command is None:
        if options.json:
            parser.error("--json goes with -p")
        from halter.cli.chat.program import open_chat

        return open_chat(options)
    try:
        code = _command(options)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer would fail again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    return code


def version() -> str:
    """The version of what is installed."""
    # As importlib.metadata finds it, without what importing that costs: half of the whole start.
    for place in sys.path:
        try:
            names = os.listdir(place or ".")  # noqa: PTH208  (pathlib is another import)
        except OSError:
            continue
        for name in names:
            if name.startswith("halter-") and name.endswith(".dist-info"):
                return name.removeprefix("halter-").removesuffix(".dist-info")
    return "(run from its source, not installed)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halter",
        description="The agent runtime that stops when you say stop: now, completely, and with nothing lost.",
        epilog=_NOTE,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    _print_options(parser)
    _shared(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    serve = commands.add_parser("serve", help="the gateway: sessions over HTTP and WebSocket, and a page")
    serve.add_argument("--host", default="127.0.0.1", help="the address; others than this machine's own need a key")
    serve.add_argument("--port", type=int, default=8787, help="the port; 0: one that is free")
    _shared(serve)
    keys = commands.add_parser("keys", help="who may use the gateway: make, list or revoke keys")
    keys.add_argument("action", choices=["create", "list", "revoke"])
    keys.add_argument("name", metavar="NAME", nargs="?", help="of the key; to revoke one, its id will do, too")
    keys.add_argument("--scope", choices=["read", "write", "admin"], default="write", help="what it may do")
    _store(commands.add_parser("sessions", help="list the sessions of the store"))
    why = commands.add_parser("why", help="show the last stop of a session: who asked, and what ended when and how")
    why.add_argument("session", metavar="SESSION", nargs="?", help="its id, or how that begins; else the latest")
    why.add_argument("--json", action="store_true", help="print it as JSON")
    _store(why)
    doctor = commands.add_parser("doctor", help="see whether all that Halter needs is there, and how to mend it")
    doctor.add_argument("--online", action="store_true", help="ask the model's provider, too")
    _shared(doctor)
    config = commands.add_parser("config", help="the settings: where they are, what holds, or change them")
    config.add_argument("action", choices=["path", "show", "edit"])
    commands.add_parser("demo", help="watch one stop end a stream, threads, processes and tasks (4 s)")
    fetch = commands.add_parser("fetch-model", help="install the small model that needs no key and no network")
    fetch.add_argument("--yes", action="store_true", help="do not ask before installing")
    return parser


def _print_parser() -> argparse.ArgumentParser:
    """Of print mode alone: there are no commands in it, so its text may stand anywhere."""
    parser = argparse.ArgumentParser(prog="halter", usage="halter -p TEXT [--json] [--session ID] [--model NAME]")
    _print_options(parser)
    parser.add_argument("text", metavar="TEXT", nargs="*", help='"-", or no text, is what comes on standard input')
    _shared(parser)
    return parser


def _print_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-p",
        "--print",
        action="store_true",
        help='answer the TEXT that follows, and exit; "-", or no text, is what comes on standard input',
    )
    parser.add_argument("--json", action="store_true", help="with -p: print every event as one line of JSON")
    parser.add_argument("--session", metavar="ID", help="go on with this session")


def _shared(parser: argparse.ArgumentParser) -> None:
    # A command's own default would hide what was given in front of the command.
    parser.add_argument(
        "--model", metavar="NAME", default=argparse.SUPPRESS, help="openai:NAME, anthropic:NAME, ollama:NAME or local"
    )
    _store(parser)
    if parser.prog == "halter":
        parser.set_defaults(model=None, store=None)


def _store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", metavar="PATH", default=argparse.SUPPRESS, help="the file that keeps the sessions")


def _command(options: argparse.Namespace) -> int:  # noqa: PLR0911  (one for each command)
    match options.command:
        case "sessions":
            from halter.cli.listing import list_sessions

            return list_sessions(options)
        case "why":
            from halter.cli.listing import tell_why

            return tell_why(options)
        case "doctor":
            from halter.cli.doctor import examine

            return examine(options)
        case "config":
            from halter.cli.config import config

            return config(options.action)
        case "serve":
            from halter.cli.serving import serve_gateway

            return serve_gateway(options)
        case "keys":
            from halter.cli.serving import manage_keys

            return manage_keys(options)
        case "demo":
            return _demo()
        case _:
            from halter.models.fetch import fetch_model

            return fetch_model(is_agreed=options.yes, say=print)


def _demo() -> int:
    from halter.cancel import ExitGuard
    from halter.demo import run

    with ExitGuard(timeout=3.0) as guard:
        sys.exit(run(guard.token))
