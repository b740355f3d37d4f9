"""What the user has set: in one TOML file, in the environment, and by flags, each above the one before.

    configuration = load({"model": "openai:gpt-5"})  # flags, as they were typed; None if one was not given
    configuration.settings.busy         # "steer"
    configuration.origins["model"]      # "--model", "HALTER_MODEL", ".../config.toml, line 3" or "default"
    SQLiteStore(configuration.make_store())

A setting is a field of `Settings`; its name in the file is that of the field, and in the environment `HALTER_` and that
in capitals, where lists are separated by commas. What can not be understood is a `SettingsError` that says where it
stands, to the line, and what would be right. An empty value in the environment is none.

`HALTER_HOME` moves everything into one directory. Without it the file is where XDG wants configuration and the rest
where it wants data.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Configuration", "Places", "Settings", "SettingsError", "TelegramSettings", "find_places", "load"]

_DEFAULT: Final = "default"
# Ours as well, and no settings: they are read where they are needed.
_NO_SETTINGS: Final = frozenset({"HALTER_HOME", "HALTER_KEY"})


class SettingsError(Exception):
    """A setting that can not be used; says where it stands."""


class TelegramSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The table [telegram]: with it, `halter serve` is a Telegram bot as well."""

    token: str = ""
    """The bot's token. TELEGRAM_BOT_TOKEN, in the environment, is above it."""
    users: tuple[int, ...] = ()
    """The numbers of those who may speak to it. Whoever else tries is told theirs."""
    server: str = "https://api.telegram.org"
    """The server of the Bot API."""


class Settings(Struct, frozen=True):
    """Everything that can be set, and what holds if it is not."""

    model: str = ""
    """Which model answers: "openai:NAME", "anthropic:NAME", "ollama:NAME", "local". Empty: what is found."""
    fallbacks: tuple[str, ...] = ()
    """Models to ask, in this order, when the first fails."""
    instructions: str = "You are a helpful assistant. Be brief."
    """What the model is told to be."""
    busy: Literal["steer", "interrupt", "queue"] = "steer"
    """What happens to a message that is typed while a turn runs."""
    store: str = ""
    """The file that keeps the sessions. Empty: sessions.db where the data is."""
    approve: Literal["ask", "auto", "deny"] = "ask"
    """Who allows a tool that needs approval. Where nobody can be asked, "ask" denies."""
    tools: tuple[str, ...] = ()
    """The tools of the toolbox that the model may use, by their names."""
    max_steps: Annotated[int, Meta(ge=1)] = 50
    """The most requests that one turn may make."""
    exit_timeout: Annotated[float, Meta(gt=0)] = 5.0
    """The most seconds that leaving the program may take."""
    drain_timeout: Annotated[float, Meta(ge=0)] = 10.0
    """The most seconds that turns may go on when the gateway is to end."""
    stop_phrases: tuple[str, ...] = ("stop", "halt", "cancel", "never mind")
    """Messages that mean to stop, and are no messages to the model."""
    transcriber: str = "local"
    """Who transcribes voice messages: "local", or the address of an OpenAI-compatible server."""
    transcription_model: str = "whisper-1"
    """The model that such a server is asked for."""
    voice_timeout: Annotated[float, Meta(gt=0)] = 120.0
    """The most seconds that the transcription of one voice message may take."""
    spoken_replies: bool = False
    """Whether answers are said as well, where there is a way to."""
    telegram: TelegramSettings | None = None
    """The Telegram bot, if there is one."""


class Places(NamedTuple):
    """Where things are."""

    config: Path  # the file
    data: Path  # a directory


class Configuration(NamedTuple):
    """All settings as they hold now, and where each of them was set."""

    settings: Settings
    origins: dict[str, str]
    places: Places

    @property
    def store(self) -> Path:
        """The file that keeps the sessions."""
        return Path(self.settings.store).expanduser() if self.settings.store else self.places.data / "sessions.db"

    def make_store(self) -> Path:
        """The same, its directory made if that is Halter's own."""
        if not self.settings.store:
            self.places.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.store


def find_places(env: Mapping[str, str] = os.environ) -> Places:
    """Where the file and the data are, by HALTER_HOME or by XDG."""
    home = env.get("HALTER_HOME", "")
    if home:
        root = Path(home).expanduser().absolute()
        return Places(root / "config.toml", root)
    return Places(
        _base(env, "XDG_CONFIG_HOME", ".config") / "halter" / "config.toml",
        _base(env, "XDG_DATA_HOME", ".local/share") / "halter",
    )


def load(flags: Mapping[str, Any] | None = None, env: Mapping[str, str] = os.environ) -> Configuration:
    """Read the settings. *flags* has what was given on the command line, by the names of the settings."""
    places = find_places(env)
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.__struct_fields__, _DEFAULT)
    layers = (_from_file(places.config), _from_environment(env), _from_flags(flags or {}))
    for layer in layers:
        for name, (value, origin) in layer.items():
            values[name], origins[name] = value, origin
    return Configuration(Settings(**values), origins, places)


_Layer = dict[str, tuple[Any, str]]


def _from_file(path: Path) -> _Layer:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        msg = f"{path} can not be read: {reason}"
        raise SettingsError(msg) from error
    import tomllib  # noqa: PLC0415  (most starts have no file to read)

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        place = where.rstrip(")") or "line 1"
        msg = f"{path}, {place}: this is not TOML: {what}"
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
    """Check one setting; gives its value, and where it was set."""
    hint = _hints().get(name)
    if hint is None:
        msg = f"{origin}: there is no setting {name!r}{_suggestion(name)}"
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
    import difflib  # noqa: PLC0415  (only for mistakes)

    near = difflib.get_close_matches(name.lower().replace("-", "_"), Settings.__struct_fields__, n=1)
    return f"; did you mean {near[0]!r}?" if near else f". There are: {', '.join(Settings.__struct_fields__)}"


def _choices(hint: object) -> str:
    choices = getattr(hint, "__args__", ()) if getattr(hint, "__origin__", None) is Literal else ()
    return f"; it is one of {', '.join(map(repr, choices))}" if choices else ""


def _line_of(name: str, text: str) -> int:
    """The line in which a key is set. A line of a text that only looks like it does not end a whole document."""
    import tomllib  # noqa: PLC0415  (as above)

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


def _base(env: Mapping[str, str], variable: str, below_home: str) -> Path:
    """A base directory of XDG, which says that a relative path is to be ignored."""
    value = Path(env.get(variable, ""))
    return value if value.is_absolute() else Path.home() / below_home
