"""Settings: from a TOML file, the environment and flags; later ones override earlier ones.

    configuration = load({"model": "openai:gpt-5"})  # flags, as they were typed; None if one was not given
    configuration.settings.busy         # "steer"
    configuration.origins["model"]      # "--model", "HALTER_MODEL", ".../config.toml, line 3" or "default"
    SQLiteStore(configuration.make_store())

A setting is a field of `Settings`; its name in the file is that of the field, and in the environment `HALTER_` and that
in capitals, where lists are separated by commas. What cannot be understood is a `SettingsError` that says where it
stands, to the line, and what would be right. An empty value in the environment is none.

`HALTER_HOME` moves everything into one directory; see `halter._data_paths`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

from halter._data_paths import DataPaths, find_paths

__all__ = ["Configuration", "Settings", "SettingsError", "TelegramSettings", "flags_of", "load"]

_DEFAULT: Final = "default"
# Ours as well, and no settings: they are read where they are needed.
_NO_SETTINGS: Final = frozenset({"HALTER_HOME", "HALTER_KEY"})


class SettingsError(Exception):
    """An invalid setting; the message says where it is set."""


class TelegramSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The table [telegram]: with it, `halter serve` also runs a Telegram bot."""

    token: str = ""
    """The bot's token. The environment variable TELEGRAM_BOT_TOKEN overrides it."""
    users: tuple[int, ...] = ()
    """The user ids that may use the bot. Others are told their id."""
    server: str = "https://api.telegram.org"
    """The server of the Bot API."""


class Settings(Struct, frozen=True):
    """All settings and their defaults."""

    model: str = ""
    """The model: "openai:NAME", "anthropic:NAME", "ollama:NAME" or "local". Empty: choose automatically."""
    fallbacks: tuple[str, ...] = ()
    """Models to try, in this order, if the first fails."""
    instructions: str = "You are a helpful assistant. Be brief."
    """The system prompt."""
    busy: Literal["steer", "interrupt", "queue"] = "steer"
    """The delivery mode of a message that is sent while a turn runs."""
    store: str = ""
    """The file that stores the sessions. Empty: sessions.db in the data directory."""
    approve: Literal["ask", "auto", "deny"] = "ask"
    """How tools that need approval are handled. Where nobody can be asked, "ask" denies."""
    tools: tuple[str, ...] = ()
    """The tools that the model may use, by name."""
    sandbox: Literal["workspace", "read-only", "off"] = "workspace"
    """What the processes of tools may do: write the workspace, write nothing, or whatever the user may."""
    network: bool = False
    """Whether the processes of tools have the network in the sandbox. Without it, single commands may ask for it."""
    max_steps: Annotated[int, Meta(ge=1)] = 50
    """The maximum number of requests in a turn."""
    exit_timeout: Annotated[float, Meta(gt=0)] = 5.0
    """The maximum number of seconds to exit."""
    drain_timeout: Annotated[float, Meta(ge=0)] = 10.0
    """The maximum number of seconds that turns may continue when the gateway shuts down."""
    stop_phrases: tuple[str, ...] = ("stop", "halt", "cancel", "never mind")
    """Messages that stop the turn and are not sent to the model."""
    transcriber: str = "local"
    """What transcribes voice messages: "local", or the URL of an OpenAI-compatible server."""
    transcription_model: str = "whisper-1"
    """The model to request from such a server."""
    voice_timeout: Annotated[float, Meta(gt=0)] = 120.0
    """The maximum number of seconds to transcribe one voice message."""
    spoken_replies: bool = False
    """Whether answers are also sent as speech, where possible."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that the gateway logs."""
    public_name: str = ""
    """The host name of the gateway's public address, if a proxy with TLS answers for it."""
    telegram: TelegramSettings | None = None
    """The Telegram bot, if there is one."""


class Configuration(NamedTuple):
    """The effective settings, and where each of them was set."""

    settings: Settings
    origins: dict[str, str]
    paths: DataPaths

    @property
    def store(self) -> Path:
        """The file that stores the sessions."""
        return Path(self.settings.store).expanduser() if self.settings.store else self.paths.data / "sessions.db"

    def make_store(self) -> Path:
        """The same; creates its directory if that is Halter's own."""
        if not self.settings.store:
            self.paths.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.store


def flags_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the command line that are settings."""
    return {name: getattr(options, name, None) for name in Settings.__struct_fields__}


def load(flags: Mapping[str, Any] | None = None, env: Mapping[str, str] = os.environ) -> Configuration:
    """Read the settings. *flags* has the options of the command line, by the names of the settings."""
    paths = find_paths(env)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.__struct_fields__, _DEFAULT)
    layers = (_from_file(paths.config), _from_environment(env), _from_flags(flags or {}))
    for layer in layers:
        for name, (value, origin) in layer.items():
            values[name], origins[name] = value, origin
    return Configuration(Settings(**values), origins, paths)


_Layer = dict[str, tuple[Any, str]]


def _from_file(path: Path) -> _Layer:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        msg = f"cannot read {path}: {reason}"
        raise SettingsError(msg) from error
    import tomllib

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        place = where.rstrip(")") or "line 1"
        msg = f"{path}, {place}: invalid TOML: {what}"
        raise SettingsError(msg) from error
    return {name: _setting(name, value, f"{path}, line {_line_of(name, text)}") for name, value in table.items()}


def _from_environment(env: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    for name, hint in _hints().items():
        variable = f"HALTER_{name.upper()}"
        text = env.get(variable, "")
        if not text or variable in _NO_SETTINGS or hint == (TelegramSettings | None):
            continue
        value = [each.strip() for each in text.split(",") if each.strip()] if hint == tuple[str, ...] else text
        layer[name] = _setting(name, value, variable, strict=False)
    return layer


def _from_flags(flags: Mapping[str, Any]) -> _Layer:
    given = {name: value for name, value in flags.items() if value is not None}
    return {name: _setting(name, value, f"--{name.replace('_', '-')}", strict=False) for name, value in given.items()}


def _setting(name: str, value: object, origin: str, *, strict: bool = True) -> tuple[Any, str]:
    """Check one setting; returns its value and where it was set."""
    hint = _hints().get(name)
    if hint is None:
        msg = f"{origin}: unknown setting {name!r}{_suggestion(name)}"
        raise SettingsError(msg)
    try:
        return msgspec.convert(value, hint, strict=strict), origin
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at ")
        item = path.strip("`").removeprefix("$")
        msg = f"{origin}: {name}{item}: {what[0].lower()}{what[1:].replace('`', '')}{_choices(hint)}"
        raise SettingsError(msg) from error


def _hints() -> dict[str, Any]:
    global _known  # noqa: PLW0603  (read once, and only when needed)
    if not _known:
        _known = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    return _known


_known: dict[str, Any] = {}


def _suggestion(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name.lower().replace("-", "_"), Settings.__struct_fields__, n=1)
    return f"; did you mean {near[0]!r}?" if near else f". Known settings: {', '.join(Settings.__struct_fields__)}"


def _choices(hint: object) -> str:
    choices = getattr(hint, "__args__", ()) if getattr(hint, "__origin__", None) is Literal else ()
    return f"; must be one of {', '.join(map(repr, choices))}" if choices else ""


def _line_of(name: str, text: str) -> int:
    """The line in which a key is set. A line of a text that only looks like it does not end a whole document."""
    import tomllib

    quoted = re.escape(name)
    key = re.compile(rf"""\s*\[*\s*(?:{quoted}|"{quoted}"|'{quoted}')\s*[=.\]]""")
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not key.match(line):
            continue
        try:
            tomllib.loads("\n".join(lines[: number - 1]))
        except tomllib.TOMLDecodeError:
            continue
        return number
    return 1
