"""`halter doctor`: checks the installation. One line for each check, and below a problem the command that fixes it.

Nothing is changed. MCP servers of the settings are started or connected to, as for a chat. There is no other network
traffic, except with --online: one short request to the model's provider.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from halter._version import __version__
from halter.cli.model_choice import ModelChoice, NoModel, choose_model, has_local_model, ollama_models
from halter.cli.output import may_color
from halter.cli.settings import Configuration, SettingsError, flags_of, load
from halter.views.text import count, strip_controls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

__all__ = ["Finding", "examine", "findings"]

_MIN_FREE: Final = 100_000_000  # bytes
_ONLINE_TIMEOUT: Final = 15.0  # seconds for the provider's answer
_EXTRAS: Final = {
    "prompt_toolkit": "the chat",
    "playwright": "the browser",
    "trafilatura": "reading web pages",
    "mcp": "MCP servers",
    "moonshine_voice": "speech recognition",
    "espeakng_loader": "speech synthesis",
}
_INDENT: Final = " " * 14
_MARKS: Final = {"ok": "✓", "warn": "!", "fail": "✗"}
_COLORS: Final = {"ok": "32", "warn": "33", "fail": "31"}
_EDIT_SETTINGS: Final = "`halter config edit` opens the settings."


class Finding(NamedTuple):
    """The result of one check, and how to fix a problem."""

    state: Literal["ok", "warn", "fail"]
    what: str
    text: str
    fix: str = ""


def _failed(what: str, text: str, fix: str) -> Finding:
    """A check that has failed. Every failure has a fix."""
    return Finding("fail", what, text, fix)


def examine(options: argparse.Namespace) -> int:
    """Print all results. Returns 1 if a check has failed."""
    color = may_color()
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    counts = {"ok": 0, "warn": 0, "fail": 0}
    for finding in findings(flags_of(options), online=options.online):
        mark = _MARKS[finding.state] if is_unicode else f"{finding.state:4}"
        mark = f"\x1b[{_COLORS[finding.state]}m{mark}\x1b[0m" if color else mark
        print(f"{mark} {finding.what:11} {strip_controls(finding.text)}", flush=True)
        if finding.fix:
            arrow = "→ " if is_unicode else "-> "
            indent = _INDENT + " " * len(arrow)
            print(
                textwrap.fill(
                    strip_controls(finding.fix), 100, initial_indent=_INDENT + arrow, subsequent_indent=indent
                )
            )
        counts[finding.state] += 1
    print(_summary(counts["fail"], counts["warn"]))
    return int(counts["fail"] > 0)


def _summary(failed: int, warned: int) -> str:
    hints = f"{count(warned, 'hint')}" if warned else ""
    if failed:
        return f"{count(failed, 'problem')} to fix{f', {hints}' if hints else ''}"
    return f"Ready{f', with {hints}' if hints else ''}: `halter` opens a chat"


def findings(flags: dict[str, Any], *, online: bool = False) -> Iterator[Finding]:
    """Do the checks."""
    yield _python()
    yield Finding("ok", "halter", __version__)
    try:
        configuration = load(flags)
    except SettingsError as error:
        yield _failed("settings", str(error), _EDIT_SETTINGS)
    else:
        path = configuration.paths.config
        yield Finding("ok", "settings", str(path) if path.exists() else f"{path} does not exist: using the defaults")
        yield from _model(configuration, online=online)
        yield _tools(configuration, _model_name(configuration))
        yield from _servers(configuration)
        yield from _agents(configuration)
        yield _sandbox(configuration)
        yield _instructions()
        yield from _store(configuration)
    yield _local()
    yield _chromium()
    yield _extras()
    yield _terminal()


def _python() -> Finding:
    number = ".".join(map(str, sys.version_info[:3]))
    text = f"{number} ({sys.executable})"
    if not sys.platform.startswith("linux"):
        return Finding("warn", "python", text, "Processes that tools leave behind are found reliably on Linux only.")
    return Finding("ok", "python", text)


def _model(configuration: Configuration, *, online: bool) -> Iterator[Finding]:
    try:
        choice = choose_model(configuration)
    except NoModel as error:
        yield _failed("model", str(error), _ANY_MODEL)
        return
    from halter.models.registry import find_model

    names = [choice.model, *configuration.settings.fallbacks]
    for name in names:
        try:
            find_model(name)
        except ValueError as error:
            yield _failed(
                "model", str(error), f"{_EDIT_SETTINGS} `halter --model openai:NAME` uses another one for this run."
            )
        else:
            yield _provider(name, choice.why if name == choice.model else "a fallback")
    if online:
        yield _online(choice)


def _provider(name: str, why: str) -> Finding:
    from halter.models.providers import PROVIDERS

    provider, _, model = name.partition(":")
    text = f"{name} ({why})"
    row = PROVIDERS.get(provider)
    if row is not None and not row.start and not row.find_key():
        key, base = row.key_variable, row.url_variable
        if row.url and os.environ.get(base):
            return Finding("warn", "model", f"{text}; {key} is not set", f"{base} is set: it may need no key.")
        fix = f"`halter login {provider}` asks for a key and stores it; or set {key}, or choose another with --model."
        return _failed("model", f"{text}; {key} is not set", fix)
    if provider == "ollama" and model not in ollama_models():
        fix = f"Start it with `ollama serve`, and get the model with `ollama pull {model}`."
        return Finding("warn", "model", f"{text}; Ollama on this machine is not running or does not have it", fix)
    if provider == "local" and not has_local_model():
        return _failed("model", f"{text}; it is not installed", "`halter fetch-model` installs it.")
    if provider == "local":
        fix = "Good for trying Halter out. For real work, set OPENAI_API_KEY or ANTHROPIC_API_KEY, or run Ollama."
        return Finding("warn", "model", text, fix)
    return Finding("ok", "model", text)


def _online(choice: ModelChoice) -> Finding:
    """Ask the model for one word. A boundary: any error is the result of the check."""
    import asyncio

    from halter.models import ModelRequest, ModelSettings, UserMessage
    from halter.models.registry import find_model

    async def ask() -> None:
        request = ModelRequest([UserMessage.of("Say: ok")], settings=ModelSettings(max_output_tokens=16))
        async with asyncio.timeout(_ONLINE_TIMEOUT):
            async for _ in find_model(choice.model).stream(request):
                pass

    try:
        asyncio.run(ask())
    except TimeoutError:
        return _failed(
            "online", f"{choice.model} did not answer within {_ONLINE_TIMEOUT:g} s", _online_fix(choice.model)
        )
    except Exception as error:  # noqa: BLE001
        return _failed("online", f"{choice.model}: {error}", _online_fix(choice.model))
    return Finding("ok", "online", f"{choice.model} answers")


def _online_fix(model: str) -> str:
    """What to check if a provider does not answer as it should."""
    from halter.models.providers import PROVIDERS

    provider = model.partition(":")[0]
    row = PROVIDERS.get(provider)
    address = f", the address ({row.url_variable})" if row is not None and row.url_variable else ""
    key = f"the key (`halter login {provider}` stores another)" if row is not None and row.key_variable else "the model"
    return f"Check {key}{address} and the network."


def _model_name(configuration: Configuration) -> str:
    try:
        return choose_model(configuration).model
    except NoModel:
        return ""


def _tools(configuration: Configuration, model: str) -> Finding:
    """Load the tools for this model. A boundary: a module of the user may fail in any way."""
    from halter.cli.agent_factory import load_tools

    try:
        tools = load_tools(configuration, model)
    except SettingsError as error:
        return _failed("tools", str(error), _EDIT_SETTINGS)
    except Exception as error:  # noqa: BLE001
        names = ", ".join(configuration.settings.tools)
        fix = f"Fix the module, or remove it from `tools`: {_EDIT_SETTINGS}"
        return _failed("tools", f"{names}: {type(error).__name__}: {error}", fix)
    names = ", ".join(getattr(tool, "name", "") or getattr(tool, "__name__", "?") for tool in tools)
    return Finding("ok", "tools", f"{len(tools)}: {names}" if tools else "none")


def _servers(configuration: Configuration) -> Iterator[Finding]:
    """Connect to the MCP servers of the settings."""
    servers = configuration.servers
    try:
        counts = {name: len(servers.tools([name])) for name in servers.names}
    except SettingsError as error:
        yield _failed("mcp", str(error), _EDIT_SETTINGS)
        return
    finally:
        servers.close()
    for problem in servers.problems:
        fix = "`halter mcp list` shows how it is started or reached; `halter mcp remove NAME` removes it."
        yield _failed("mcp", problem, fix)
    for name, number in counts.items():
        if number:
            yield Finding("ok", "mcp", f"{name}: {number} tools")


def _agents(configuration: Configuration) -> Iterator[Finding]:
    """Check the model and the tools of each of [agents]. Without a model of its own, it has that of the main agent."""
    from halter.models.registry import find_model

    for name in configuration.settings.agents:
        theirs = configuration.for_agent(name)
        model = theirs.settings.model
        try:
            if model:
                find_model(model)
        except ValueError as error:
            yield _failed("agents", f"{theirs.origins['model']}: agents.{name}: {error}", _EDIT_SETTINGS)
            continue
        found = _tools(theirs, model or "")
        yield found._replace(what="agents", text=f"{name}: {model or 'the same model'}; tools: {found.text}")


def _sandbox(configuration: Configuration) -> Finding:
    """Run a command in a sandbox that writes nothing."""
    from halter.toolbox.sandbox.sandbox import Sandbox, why_unavailable

    mode = configuration.settings.sandbox
    if mode == "off":
        return Finding("warn", "sandbox", f"off ({configuration.origins['sandbox']}): tools can do whatever you can")
    if why := why_unavailable():
        fix = "The default tools that start processes are off. --sandbox off uses them without a sandbox."
        return Finding("warn", "sandbox", why, fix)
    sandbox = Sandbox(mode="read-only")
    try:
        sandbox.prepare()
    except OSError as error:
        fix = "`halter --sandbox off` works without one; docs/guides/sandbox.md lists what the system needs."
        return _failed("sandbox", f"it cannot be created: {error}", fix)
    finally:
        sandbox.close()
    if sandbox.without_namespaces:
        fix = "Weaker: commands have no loopback and can write Git's hooks; see docs/guides/sandbox.md."
        return Finding("warn", "sandbox", f"{mode}, without namespaces: {sandbox.without_namespaces}", fix)
    if os.geteuid() == 0:
        return Finding(
            "warn", "sandbox", mode, "Halter is running as root: the sandbox is weaker than for a regular user."
        )
    return Finding("ok", "sandbox", mode)


def _instructions() -> Finding:
    """List the files and skills in the prompt of an agent with tools."""
    from halter.toolbox.instructions.instructions import Instructions
    from halter.toolbox.instructions.skills import Skills

    skills = Skills()
    prompt = Instructions(skills=skills).read()
    found = [*(str(each.path) for each in prompt.files if each.text), *(str(each.path) for each in skills.find()[0])]
    text = ", ".join(found) or "no AGENTS.md, no skills"
    return Finding("warn" if prompt.problems else "ok", "prompt", text, "; ".join(prompt.problems))


def _store(configuration: Configuration) -> Iterator[Finding]:
    """Check whether the store can be opened and written. It is not created here."""
    from halter.errors import StoreError
    from halter.stores import SQLiteStore

    path = configuration.store
    existing = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not path.exists():
        if os.access(existing, os.W_OK):
            yield Finding("ok", "store", f"{path} will be created by the first session")
        else:
            yield _failed("store", f"cannot create {path}: {existing} is not writable", _OTHER_STORE)
        return
    try:
        with SQLiteStore(path) as store:
            count = len(store.sessions())
    except StoreError as error:
        yield _failed("store", str(error), _OTHER_STORE)
        return
    if not all(os.access(each, os.W_OK) for each in (path, path.parent)):
        yield _failed("store", f"{path} is readable, but it or its directory is not writable", _OTHER_STORE)
        return
    yield Finding("ok", "store", f"{path}, {count} sessions")
    free = shutil.disk_usage(path.parent).free
    if free < _MIN_FREE:
        yield Finding("warn", "disk", f"{free / 1e6:.0f} MB free on the disk of the store", _OTHER_STORE)


_ANY_MODEL: Final = "`halter login PROVIDER` asks for a key and stores it; `halter fetch-model` installs a small model."
_OTHER_STORE: Final = "Choose another file with --store PATH, HALTER_STORE or the setting `store`."


def _local() -> Finding:
    if has_local_model():
        return Finding("ok", "local", "the embedded model is installed")
    return Finding("warn", "local", "the embedded model is not installed", "`halter fetch-model` installs it.")


def _chromium() -> Finding:
    from halter.toolbox.browser.chromium import find_executable
    from halter.toolbox.browser.page import PageFailed

    try:
        return Finding("ok", "chromium", find_executable(None))
    except PageFailed as error:
        return Finding("warn", "chromium", "not found", f"The browser tools need it. {error}.")


def _extras() -> Finding:
    missing = {name: use for name, use in _EXTRAS.items() if importlib.util.find_spec(name) is None}
    existing = [name for name in _EXTRAS if name not in missing]
    text = f"installed: {', '.join(existing) or 'none'}"
    if not missing:
        return Finding("ok", "optional", text)
    wanted = ", ".join(f"{name.replace('_', '-')} ({use})" for name, use in missing.items())
    return Finding("ok", "optional", text, f"Not installed: {wanted}.")


def _terminal() -> Finding:
    if not sys.stdout.isatty():
        return Finding("ok", "terminal", "the output is not a terminal")
    name = os.environ.get("TERM", "")
    size = shutil.get_terminal_size()
    text = f"{name or 'unknown'}, {size.columns} x {size.lines}, {sys.stdout.encoding}"
    if name in {"", "dumb"}:
        return Finding("warn", "terminal", text, "TERM is not set or dumb: the chat will use plain lines.")
    if sys.stdout.encoding.lower() != "utf-8":
        return Finding("warn", "terminal", text, "Set LANG to a UTF-8 locale to see all characters.")
    return Finding("ok", "terminal", text)
