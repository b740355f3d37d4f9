"""Settings: from a TOML file, the environment and flags; later ones override earlier ones.

    configuration = load({"model": "openai:gpt-5"})  # flags, as they were typed; None if one was not given
    configuration.settings.busy         # "steer"
    configuration.origins["model"]      # "--model", "HALTER_MODEL", ".../config.toml, line 3" or "default"
    SQLiteStore(configuration.make_store())

A setting is a field of `Settings`; its name in the file is that of the field, and in the environment `HALTER_` and that
in capitals, where lists are separated by commas. A field that is a class is a table, and its fields are settings too:
`[limits] steps`, `HALTER_LIMITS_STEPS`, `--max-steps`. What cannot be understood is a `SettingsError` that says where
it stands, to the line, and what would be right. An empty value in the environment is none.

`HALTER_HOME` moves everything into one directory; see `halter._data_paths`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_origin

from msgspec import Meta, Struct

from halter._data_paths import DataPaths, find_paths
from halter._own_keys import with_taken
from halter.agent import Limits
from halter.cli.mcp_servers import MCPServers
from halter.cli.settings_values import (
    Path,
    SettingsError,
    check,
    dotted,
    fields_of,
    is_list,
    is_table,
    line_of,
    unknown,
)
from halter.models.types import ModelSettings
from halter.toolbox.sandbox.policy import Mode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping

__all__ = [
    "DEFAULT",
    "AgentSettings",
    "Configuration",
    "MCPSettings",
    "RequestSettings",
    "Settings",
    "SettingsError",
    "TelegramSettings",
    "flag_for",
    "flags_of",
    "load",
    "table_flags",
]

DELEGATE_TIMEOUT: Final = 1800.0  # as `halter.toolbox.delegate` has it, which is slow to import
DEFAULT: Final = "default"
"""The origin of a setting that is not set."""
# Variables of Halter that are not settings: they are read where they are needed.
_NOT_SETTINGS: Final = frozenset({"HALTER_HOME", "HALTER_KEY"})


class RequestSettings(ModelSettings, frozen=True, kw_only=True):
    """The table [model_settings]: how models answer, and how long they may be silent."""

    first_byte_timeout: Annotated[float, Meta(gt=0)] | None = None
    """The maximum number of seconds until an answer begins. None: the model's own."""
    stale_timeout: Annotated[float, Meta(gt=0)] | None = None
    """The maximum number of seconds between two pieces of an answer. None: the model's own."""

    @property
    def for_agent(self) -> ModelSettings:
        """What goes with each request."""
        return ModelSettings(**{name: getattr(self, name) for name in ModelSettings.__struct_fields__})


class TelegramSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The table [telegram]: with it, `halter serve` also runs a Telegram bot."""

    token: str = ""
    """The bot's token. The environment variable TELEGRAM_BOT_TOKEN overrides it."""
    users: tuple[int, ...] = ()
    """The user ids that may use the bot. Others are told their id."""
    server: str = "https://api.telegram.org"
    """The server of the Bot API."""


class MCPSettings(Struct, frozen=True):
    """A table [mcp.NAME]: an MCP server whose tools the agent has. In `env` and `headers`, ${NAME} is a variable."""

    command: tuple[str, ...] = ()
    """The program that is the server, and its arguments."""
    url: str = ""
    """The address of a server that runs already."""
    env: dict[str, str] = {}
    """Variables for the command."""
    headers: dict[str, str] = {}
    """Headers for the address."""
    sandbox: Mode | None = None
    """What the command may do. None: as the setting `sandbox` says."""
    network: bool | None = None
    """Whether the command has the network in the sandbox. None: as the setting `network` says."""
    approval: bool = False
    """Whether each call of its tools needs approval."""
    timeout: Annotated[float, Meta(gt=0)] | None = None
    """The maximum number of seconds for one call."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError("set either `command` or `url`")
        of_command = self.env or self.sandbox is not None or self.network is not None
        if self.url and of_command:
            raise ValueError("`env`, `sandbox` and `network` are for a server with `command`")
        if self.command and self.headers:
            raise ValueError("`headers` are for a server with `url`")


class AgentSettings(Struct, frozen=True):
    """A table [agents.NAME]: another agent. What is left out is as for the main one."""

    model: str | None = None
    """Its model."""
    instructions: str | None = None
    """Its system prompt. The main agent is told the first line."""
    tools: tuple[str, ...] | None = None
    """Its tools, by name; those of an MCP server as "mcp.NAME"."""
    sandbox: Mode | None = None
    """What the processes of its tools may do."""
    network: bool | None = None
    """Whether they have the network in the sandbox."""
    limits: Limits | None = None
    """What one of its turns may use."""
    model_settings: RequestSettings | None = None
    """How its model answers."""


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
    """Calls that need approval: "ask" a person, "auto" runs what stays in the sandbox and asks for the rest, "deny"."""
    approve_prefixes: tuple[str, ...] = ()
    """Prefixes of commands that run without asking: "git push"."""
    tools: tuple[str, ...] = ("default",)
    """The tools that the model may use, by name. If nothing is set, the embedded model has none: it is too small."""
    sandbox: Mode = "workspace"
    """What the processes of tools may do: write the workspace, write nothing, or whatever the user may."""
    network: bool = False
    """Whether the processes of tools have the network in the sandbox. Without it, single commands may ask for it."""
    limits: Limits = Limits()
    """What one turn may use at most."""
    model_settings: RequestSettings = RequestSettings()
    """How models answer: temperature and the like."""
    theme: Literal["auto", "dark", "light"] = "auto"
    """The colours of the chat: for a dark or for a light background. "auto": what COLORFGBG says, else dark."""
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
    cluster: str = ""
    """The addresses of NATS servers, separated by commas: the gateway shares its sessions with others through them."""
    cluster_ca: str = ""
    """The file with the CA certificate of the NATS servers. Empty: the system's CA certificates."""
    cluster_replicas: Annotated[int, Meta(ge=1, le=5)] = 1
    """How many of these servers keep each session. Used when the first gateway creates the stream."""
    lease_seconds: Annotated[float, Meta(ge=1)] = 10.0
    """How long a gateway may be out of reach before others take its sessions. The first gateway decides it."""
    workers: Annotated[int, Meta(ge=1, le=64)] = 1
    """How many processes serve. More than one share their sessions through `cluster`, or a NATS server of theirs."""
    telegram: TelegramSettings | None = None
    """The Telegram bot, if there is one."""
    agent: str = ""
    """The agent to talk to, one of [agents]. Empty: the main one."""
    agents: dict[str, AgentSettings] = {}
    """Other agents, by name: the main one can delegate to them, and clients of the gateway can choose them."""
    delegate_timeout: Annotated[float, Meta(gt=0)] = DELEGATE_TIMEOUT
    """The maximum number of seconds for one task that is delegated to another agent."""
    mcp: dict[str, MCPSettings] = {}
    """MCP servers, by name."""


# What one source sets: each value is checked, and has the place where it was set.
_Layer = dict[Path, tuple[Any, str]]


@dataclass(frozen=True)
class Configuration:
    """The effective settings, and where each of them was set."""

    settings: Settings
    origins: dict[str, str]
    paths: DataPaths
    servers: MCPServers
    """The MCP servers, for the whole program."""
    _below: _Layer = field(repr=False)
    _flags: _Layer = field(repr=False)
    workspace: str = "."
    """The directory in which tools work. Editors choose one for each session."""

    def for_agent(self, name: str) -> Configuration:
        """The settings of another agent, to delegate to. Options of the command line do not apply to it.

        The exceptions restrict what processes may do: these apply to every agent.
        """
        kept = {path: each for path, each in self._flags.items() if path[0] in ("sandbox", "network")}
        settings, origins = _merge(self._below | _layer_of(self.settings.agents, name, self.origins) | kept)
        return replace(self, settings=settings, origins=origins)

    @property
    def store(self) -> FilePath:
        """The file that stores the sessions."""
        return FilePath(self.settings.store).expanduser() if self.settings.store else self.paths.data / "sessions.db"

    def make_store(self) -> FilePath:
        """The same; creates its directory if that is Halter's own."""
        if not self.settings.store:
            self.paths.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.store


def flags_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the command line that are settings."""
    return {dotted(path): getattr(options, dotted(path), None) for path in _leaves()}


def flag_for(path: Path) -> str:
    """The option of the command line for a setting."""
    prefix = "--max-" if path[0] == "limits" else "--"
    return f"{prefix}{path[-1].replace('_', '-')}"


def table_flags(table: str) -> list[Path]:
    """The keys of a table that have an option: those with a plain value."""
    return [path for path, hint in _leaves().items() if path[0] == table and not (is_list(hint) or _is_mapping(hint))]


def load(flags: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None) -> Configuration:
    """Read the settings. *flags* has the options of the command line, by the names of the settings.

    *env* is the environment; by default that of this process, with what the program has taken out of it.
    """
    env = with_taken() if env is None else env
    paths = find_paths(env)
    below = _from_file(paths.config) | _from_environment(env)
    above = _from_flags(flags or {})
    settings, origins = _merge(below | above)
    if settings.agent:
        settings, origins = _merge(below | _layer_of(settings.agents, settings.agent, origins) | above)
    return Configuration(settings, origins, paths, MCPServers(settings, origins), below, above)


def _layer_of(agents: Mapping[str, AgentSettings], name: str, origins: Mapping[str, str]) -> _Layer:
    """What the table of an agent sets."""
    if name not in agents:
        known = f"known: {', '.join(agents)}" if agents else "there is no table [agents.NAME] in the settings"
        raise SettingsError(f"{origins['agent']}: there is no agent {name!r}; {known}")
    layer: _Layer = {}
    origin = origins[dotted(("agents", name))]
    for key in AgentSettings.__struct_fields__:
        value = getattr(agents[name], key)
        kind: Any = type(value)
        if is_table(kind):
            layer |= {(key, each): (getattr(value, each), origin) for each in fields_of(kind)}
        elif value is not None:
            layer[key,] = value, origin
    return layer


def _merge(found: _Layer) -> tuple[Settings, dict[str, str]]:
    """The settings of all layers, and where each was set; the rest are the defaults."""
    values: dict[str, Any] = {}
    origins = dict.fromkeys(Settings.__struct_fields__, DEFAULT)
    for name, hint in fields_of(Settings).items():
        inner = {path[1]: each for path, each in found.items() if path[0] == name and len(path) > 1}
        if inner:
            plain = {key: value for key, (value, _) in inner.items()}
            origins[name] = ", ".join(dict.fromkeys(origin for _, origin in inner.values()))
            origins |= {dotted((name, key)): origin for key, (_, origin) in inner.items()}
            values[name] = _make_table(hint, plain, name, origins[name]) if is_table(hint) else plain
        elif (name,) in found:
            values[name], origins[name] = found[name,]
    _check_prefixes(values.get("approve_prefixes", ()), origins["approve_prefixes"])
    return Settings(**values), origins


def _leaves() -> dict[Path, Any]:
    """All settings, those of tables included, and their types. A table whose keys are names is one setting."""
    leaves: dict[Path, Any] = {}
    for name, hint in fields_of(Settings).items():
        if is_table(hint):
            leaves |= {(name, key): each for key, each in fields_of(hint).items()}
        else:
            leaves[name,] = hint
    return leaves


def _check_prefixes(prefixes: tuple[str, ...], origin: str) -> None:
    if not prefixes:
        return
    from halter.toolbox.terminal.approval.prefixes import read_prefixes

    try:
        read_prefixes(prefixes)
    except ValueError as error:
        msg = f"{origin}: approve_prefixes: {error}"
        raise SettingsError(msg) from error


def _is_mapping(hint: object) -> bool:
    return get_origin(hint) is dict or hint == (TelegramSettings | None)


def _make_table(table: Any, values: dict[str, Any], name: str, origin: str) -> Any:  # noqa: ANN401  (a class of the file's tables)
    """A table of values that are checked one by one; it may refuse some of them together."""
    try:
        return table(**values)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"{origin}: {name}: {error}") from error


def _from_file(path: FilePath) -> _Layer:
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
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        line = where.rstrip(")") or "line 1"
        msg = f"{path}, {line}: invalid TOML: {what}"
        raise SettingsError(msg) from error

    def place(keys: Path) -> str:
        return f"{path}, line {line_of(keys, text)}"

    layer: _Layer = {}
    known = fields_of(Settings)
    for name, value in document.items():
        if name not in known:
            raise unknown((name,), known, place((name,)))
        checked = check(value, known[name], (name,), place)
        if is_table(known[name]):
            layer |= {(name, key): (getattr(checked, key), place((name, key))) for key in value}
        elif isinstance(checked, dict):
            layer |= {(name, key): (each, place((name, key))) for key, each in checked.items()}
        else:
            layer[name,] = checked, place((name,))
    return layer


def _from_environment(env: Mapping[str, str]) -> _Layer:
    layer: _Layer = {}
    for path, hint in _leaves().items():
        variable = f"HALTER_{'_'.join(path).upper()}"
        text = env.get(variable, "")
        if not text or variable in _NOT_SETTINGS or _is_mapping(hint):
            continue
        value = [each.strip() for each in text.split(",") if each.strip()] if is_list(hint) else text
        layer[path] = check(value, hint, path, _fixed_place(variable), strict=False), variable
    return layer


def _from_flags(flags: Mapping[str, Any]) -> _Layer:
    leaves = {dotted(path): path for path in _leaves()}
    layer: _Layer = {}
    for name, value in flags.items():
        if value is not None:
            path = leaves[name]
            flag = flag_for(path)
            layer[path] = check(value, _leaves()[path], path, _fixed_place(flag), strict=False), flag
    return layer


def _fixed_place(place: str) -> Callable[[Path], str]:
    return lambda _path: place
