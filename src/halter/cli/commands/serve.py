"""`halter serve` runs the gateway; `halter keys` creates, lists and revokes its keys."""

from __future__ import annotations

import socket
import sys
import time
from typing import TYPE_CHECKING, Final

from halter._extras import need
from halter._own_keys import read_key
from halter.cli.cluster_store import open_cluster
from halter.cli.output import print_error
from halter.cli.settings import SettingsError, flags_of, load
from halter.views.text import single_line, strip_controls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from halter.cli.settings import Configuration
    from halter.gateway.chat.adapter import ChatAdapter
    from halter.gateway.http.keys import KeyFile, Keys
    from halter.stores import NATSStore, SQLiteStore

__all__ = ["manage_keys", "serve_gateway"]

_KEYS: Final = "keys.json"
_MIN_KEY: Final = 16  # characters of HALTER_KEY on a public address


def serve_gateway(options: argparse.Namespace) -> int:
    """Serve until a signal. Returns the exit code if it cannot start. A boundary: errors are printed."""
    from halter.cli.model_choice import NoModel
    from halter.errors import HalterError
    from halter.gateway.http.connections import CannotListen

    try:
        configuration = load(flags_of(options))
        if options.worker is None and configuration.settings.workers > 1:
            _serve_workers(configuration, options)
        else:
            _serve(configuration, options)
    except CannotListen as error:
        return print_error(f"{error}; choose another with --port (0: any free one) or --host")
    except (HalterError, ImportError, NoModel, OSError, SettingsError, ValueError) as error:
        return print_error(error)
    return 0


def _serve(configuration: Configuration, options: argparse.Namespace) -> None:
    """Serve in this process; ends by `SystemExit`."""
    from halter.cli.agent_factory import make_agents, sandbox_lines, start_lines
    from halter.cli.model_choice import choose_model
    from halter.cli.voice_factory import make_voice_messages
    from halter.gateway import Gateway
    from halter.gateway.observe import logs
    from halter.gateway.serve import serve
    from halter.gateway.workers import READY, WorkerArguments

    settings = configuration.settings
    worker = WorkerArguments.parse(options.worker) if options.worker is not None else None
    sockets = [socket.socket(fileno=each) for each in worker.sockets] if worker is not None else None
    servers = sys.stdin.readline().strip() if worker is not None else settings.cluster
    keys, file = _keys(configuration, options.host)
    choice = choose_model(configuration)
    agents = make_agents(configuration, choice, can_ask=True)
    voice_messages = make_voice_messages(configuration)
    lines = start_lines(configuration, choice)
    platforms = _platforms(configuration) if worker is None or worker.number == 0 else []
    logs.begin(settings.log_level)

    def on_start(gateway: Gateway) -> None:
        if worker is None:
            _announce(gateway.url, keys, file, settings.public_name, lines)
        else:
            print(READY, flush=True)

    with _open_store(configuration, servers) as store:
        serve(
            lambda: Gateway(
                agents,
                store,
                keys,
                host=options.host,
                port=options.port,
                public_name=settings.public_name,
                voice_messages=voice_messages,
                spoken_replies=settings.spoken_replies,
                platforms=platforms,
                keep_prefixes=lambda prefixes: _keep_prefixes(configuration, prefixes),
                notices=sandbox_lines(configuration, choice.model),
                sockets=sockets,
            ),
            drain_timeout=settings.drain_timeout,
            exit_timeout=settings.exit_timeout,
            on_start=on_start,
        )


def _serve_workers(configuration: Configuration, options: argparse.Namespace) -> None:
    """Serve in several processes; ends by `SystemExit`."""
    from halter.cli.agent_factory import start_lines
    from halter.cli.model_choice import choose_model
    from halter.gateway.observe import logs
    from halter.gateway.workers import run_workers

    need("cluster", "nats")
    settings = configuration.settings
    keys, file = _keys(configuration, options.host)
    lines = start_lines(configuration, choose_model(configuration))
    logs.begin(settings.log_level)
    run_workers(
        settings.workers,
        options.argv,
        host=options.host,
        port=options.port,
        cluster=settings.cluster,
        folder=configuration.paths.data / "nats",
        drain_timeout=settings.drain_timeout,
        exit_timeout=settings.exit_timeout,
        on_start=lambda url: _announce(url, keys, file, settings.public_name, lines),
    )


def _open_store(configuration: Configuration, servers: str) -> SQLiteStore | NATSStore:
    """The store of the sessions: in a file, or in NATS if there are servers."""
    from halter.stores import SQLiteStore

    if not servers:
        return SQLiteStore(configuration.make_store())
    return open_cluster(configuration.settings, servers)


def _keep_prefixes(configuration: Configuration, prefixes: Sequence[tuple[str, ...]]) -> None:
    """Add prefixes that an admin allows permanently to the settings file. Raises `ValueError` if that fails."""
    from halter.cli.settings_file import add_prefixes

    try:
        add_prefixes(configuration.paths.config, prefixes)
    except SettingsError as error:
        raise ValueError(str(error)) from error


def _platforms(configuration: Configuration) -> list[ChatAdapter]:
    """The chat platforms of the settings. Raises `SettingsError` if one is incomplete."""
    telegram = configuration.settings.telegram
    if telegram is None:
        return []
    token = read_key("TELEGRAM_BOT_TOKEN") or telegram.token
    if not token:
        msg = f"{configuration.origins['telegram']}: the bot has no token: set `token` or TELEGRAM_BOT_TOKEN"
        raise SettingsError(msg)
    try:
        need("telegram", "telegram")
    except ImportError as error:
        raise SettingsError(str(error)) from error
    from halter.gateway.chat.telegram import Telegram

    settings = configuration.settings
    return [
        Telegram(token, telegram.users, busy=settings.busy, stop_phrases=settings.stop_phrases, server=telegram.server)
    ]


def _announce(url: str, keys: Keys, file: KeyFile, public_name: str, lines: list[str]) -> None:
    """Print *lines* and the URL: on a terminal with a new key for the page, elsewhere only if there is no key yet.

    The key is behind the #, which browsers never send and servers never log. It is created only now that the gateway
    listens: a start that fails creates none.
    """
    for line in lines:
        print(strip_controls(line), file=sys.stderr)
    if sys.stdout.isatty() or not keys:
        key = file.create("page", "admin", auto=True)
        print(f"Halter serves at {url}/#key={key}")
        hint = "This address opens the page. Its key is shown only once; each start on a terminal prints a new one"
    else:
        print(f"Halter serves at {url}/")
        hint = "The page asks for a key: the one in HALTER_KEY, or one created before"
    if public_name:
        print(f"Requests that a proxy passes on from https://{public_name}/ are accepted too.")
    print(f"{hint}; `halter keys create NAME` creates another.", flush=True)


def _keys(configuration: Configuration, host: str) -> tuple[Keys, KeyFile]:
    """The valid keys, and their file.

    Raises `SettingsError` if a public address would be served without a strong key that the user has set.
    """
    from halter.gateway.http.auth import is_loopback
    from halter.gateway.http.keys import KeyFile, Keys

    own = read_key("HALTER_KEY")
    public = configuration.settings.public_name or ("" if is_loopback(host) else host)
    if own and len(own) < _MIN_KEY and public:
        msg = f"HALTER_KEY is too short for {public}: use at least {_MIN_KEY} characters"
        raise SettingsError(msg)
    file = KeyFile(configuration.paths.data / _KEYS)
    file.read()  # report a damaged file now, instead of refusing every request
    keys = Keys(file, own or None)
    if public and not keys.are_explicit:
        msg = (
            f"{public} can be reached from other machines: set HALTER_KEY, or create a key with "
            "`halter keys create NAME`"
        )
        raise SettingsError(msg)
    return keys, file


def _check_creator(file: KeyFile) -> None:
    """Refuse to create a key, except at a terminal or with an admin key in HALTER_KEY.

    With a key of its own, a command of an agent could approve what the agent asks for.
    """
    from halter.cancel.processes.origin import is_started_for_tool
    from halter.gateway.http.keys import Keys

    if is_started_for_tool():
        msg = "an agent's command may not create keys"
        raise SettingsError(msg)
    own = Keys(file).find(read_key("HALTER_KEY"))
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if not is_terminal and (own is None or own.scope != "admin"):
        msg = "creating a key needs a terminal, or an admin key of `halter keys create` in HALTER_KEY"
        raise SettingsError(msg)


def manage_keys(options: argparse.Namespace) -> int:
    """Create, list or revoke keys. Returns the exit code."""
    from halter.gateway.http.keys import KeyFile

    try:
        file = KeyFile(load().paths.data / _KEYS)
        if options.action == "create":
            _check_creator(file)
            print(file.create(options.name or "key", options.scope))
            print("This key is shown only once.", file=sys.stderr)
        elif options.action == "revoke":
            if not options.name or not file.revoke(options.name):
                return print_error(f"there is no key {options.name!r}; `halter keys list` lists them")
        else:
            for key in file.read():
                when = time.strftime("%Y-%m-%d %H:%M", time.localtime(key.created_at))
                print(f"{key.id}  {key.scope:7}  {when}  {single_line(key.name)}")
    except (SettingsError, OSError, ValueError) as error:
        return print_error(error)
    return 0
