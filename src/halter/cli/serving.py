"""`halter serve`: the gateway, with the settings' agent and store; and `halter keys`, who may use it."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final

from halter.cli.output import complain, plain
from halter.cli.settings import SettingsError, load
from halter.extras import need

if TYPE_CHECKING:
    import argparse

    from halter.cli.settings import Configuration
    from halter.gateway.app import Gateway
    from halter.gateway.keys import Keys
    from halter.gateway.platforms.platform import Platform

__all__ = ["manage_keys", "serve_gateway"]

_KEYS: Final = "keys.json"
_SHORTEST: Final = 16  # characters of a key that others on the network could try to guess


def serve_gateway(options: argparse.Namespace) -> int:
    """Serve until a signal. Returns the exit code if it could not begin. A boundary: what goes wrong is told."""
    from halter.cli.agents import make_agent  # noqa: PLC0415  (all that follows takes a while to import)
    from halter.cli.choose import NoModel, choose  # noqa: PLC0415
    from halter.cli.voices import make_hearing  # noqa: PLC0415
    from halter.errors import HalterError  # noqa: PLC0415
    from halter.gateway import Gateway, logs  # noqa: PLC0415
    from halter.gateway.serve import serve  # noqa: PLC0415
    from halter.stores import SQLiteStore  # noqa: PLC0415

    try:
        configuration = load({"model": options.model, "store": options.store})
        settings = configuration.settings
        keys, shown = _keys(configuration, options.host)
        choice = choose(configuration)
        agent = make_agent(configuration, choice, can_ask=True)
        hearing = make_hearing(configuration)
        for line in choice.lines:
            print(line, file=sys.stderr)
        platforms = _platforms(configuration)
        logs.begin()
        with SQLiteStore(configuration.make_store()) as store:
            serve(
                lambda: Gateway(
                    agent,
                    store,
                    keys,
                    host=options.host,
                    port=options.port,
                    hearing=hearing,
                    spoken_replies=settings.spoken_replies,
                    platforms=platforms,
                ),
                patience=settings.drain_timeout,
                leaving=settings.exit_timeout,
                on_start=lambda gateway: _announce(gateway, shown),
            )
    except (HalterError, NoModel, OSError, SettingsError, ValueError) as error:
        return complain(error)
    return 0


def _platforms(configuration: Configuration) -> list[Platform]:
    """The chat platforms that the settings want. Raises `SettingsError` if something for one is missing."""
    wanted = configuration.settings.telegram
    if wanted is None:
        return []
    token = os.environ.get("TELEGRAM_BOT_TOKEN", "") or wanted.token
    if not token:
        msg = f"{configuration.origins['telegram']}: the bot has no token: set `token` there, or TELEGRAM_BOT_TOKEN"
        raise SettingsError(msg)
    try:
        need("telegram", "telegram")
    except ImportError as error:
        raise SettingsError(str(error)) from error
    from halter.gateway.platforms.telegram import Telegram  # noqa: PLC0415  (it takes half a second to import)

    settings = configuration.settings
    return [Telegram(token, wanted.users, busy=settings.busy, stop_phrases=settings.stop_phrases, server=wanted.server)]


def _announce(gateway: Gateway, shown: str) -> None:
    """Say where it is. A key stands behind the #, which no browser sends to anybody and no server logs."""
    url = f"{gateway.url}/#key={shown}" if shown else f"{gateway.url}/"
    print(f"Halter serves at {url}", flush=True)
    told = "The key in it is shown this once" if shown else "It asks for a key: that in HALTER_KEY, or one made before"
    print(f"{told}; `halter keys create NAME` makes another.", flush=True)


def _keys(configuration: Configuration, host: str) -> tuple[Keys, str]:
    """The keys that hold, and the one that was just made, to be shown.

    Raises `SettingsError` rather than let in whoever comes.
    """
    from halter.gateway.guard import is_loopback  # noqa: PLC0415
    from halter.gateway.keys import KeyFile, Keys  # noqa: PLC0415

    own = os.environ.get("HALTER_KEY", "")
    is_local = is_loopback(host)
    if own and len(own) < _SHORTEST and not is_local:
        msg = f"HALTER_KEY is too easy to guess for {host}: use {_SHORTEST} characters or more"
        raise SettingsError(msg)
    file = KeyFile(configuration.places.data / _KEYS)
    file.read()  # a damaged file is told now, and not by a gateway that lets nobody in
    keys = Keys(file, own or None)
    if not is_local and not keys.are_explicit:
        msg = f"{host} can be reached by others: set HALTER_KEY, or make a key with `halter keys create NAME`"
        raise SettingsError(msg)
    shown = "" if keys else file.create("page", "admin", auto=True)  # what somebody has set is theirs to know
    return keys, shown


def manage_keys(options: argparse.Namespace) -> int:
    """Make, list or revoke keys. Returns the exit code."""
    from halter.gateway.keys import KeyFile  # noqa: PLC0415

    try:
        file = KeyFile(load().places.data / _KEYS)
        if options.action == "create":
            print(file.create(options.name or "key", options.scope))
            print("This key is shown this once.", file=sys.stderr)
        elif options.action == "revoke":
            if not options.name or not file.revoke(options.name):
                return complain(f"there is no key {options.name!r}; `halter keys list` shows those that are")
        else:
            for key in file.read():
                when = time.strftime("%Y-%m-%d %H:%M", time.localtime(key.created_at))
                print(f"{key.id}  {key.scope:5}  {when}  {plain(key.name)}")
    except (SettingsError, OSError, ValueError) as error:
        return complain(error)
    return 0
