"""`halter doctor`: checks the installation. One line for each check, and below it how to fix a problem.

Nothing is changed. MCP servers of the settings are started or connected to, as they would be for a chat. Nobody else
is asked over the network, except with --online, and then the model's provider, for one word and a few seconds at most.
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
from halter.views.text import strip_controls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

__all__ = ["Finding", "examine", "findings"]

_LEAST_SPACE: Final = 100_000_000
_PATIENCE: Final = 15.0  # seconds for a provider's first token
_EXTRAS: Final = {
    "prompt_toolkit": "the chat",
    "playwright": "the browser",
    "trafilatura": "reading web pages",
    "mcp": "MCP servers",
    "moonshine_voice": "understanding speech",
    "espeakng_loader": "speaking",
}
_INDENT: Final = " " * 17
_COLORS: Final = {"ok": "32", "warn": "33", "fail": "31"}


class Finding(NamedTuple):
    """The result of one check, and how to fix a problem."""

    state: Literal["ok", "warn", "fail"]
    what: str
    text: str
    fix: str = ""


def examine(options: argparse.Namespace) -> int:
    """Print all results. Returns 1 if a check has failed."""
    color = may_color()
    worst = 0
    for finding in findings(flags_of(options), online=options.online):
        state = f"{finding.state:4}"
        state = f"\x1b[{_COLORS[finding.state]}m{state}\x1b[0m" if color else state
        print(f"{state}  {finding.what:9}  {strip_controls(finding.text)}", flush=True)
        if finding.fix:
            print(textwrap.fill(finding.fix, 100, initial_indent=_INDENT, subsequent_indent=_INDENT))
        worst |= finding.state == "fail"
    return int(worst)


def findings(flags: dict[str, Any], *, online: bool = False) -> Iterator[Finding]:
    """Do the checks."""
    yield _python()
    yield Finding("ok", "halter", __version__)
    try:
        configuration = load(flags)
    except SettingsError as error:
        yield Finding("fail", "settings", str(error), "`halter config edit` opens the file.")
    else:
        path = configuration.paths.config
        yield Finding("ok", "settings", str(path) if path.exists() else f"{path} does not exist: using the defaults")
        yield from _model(configuration, online=online)
        yield _tools(configuration)
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
        yield Finding("fail", "model", str(error))
        return
    from halter.models.registry import find_model

    names = [choice.model, *configuration.settings.fallbacks]
    for name in names:
        try:
            find_model(name)
        except ValueError as error:
            yield Finding("fail", "model", str(error))
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
        return Finding("fail", "model", f"{text}; {key} is not set", f"Set {key}, or choose another with --model.")
    if provider == "ollama" and model not in ollama_models():
        fix = f"Start it with `ollama serve`, and get the model with `ollama pull {model}`."
        return Finding("warn", "model", f"{text}; Ollama on this machine is not running or does not have it", fix)
    if provider == "local" and not has_local_model():
        return Finding("fail", "model", f"{text}; it is not installed", "`halter fetch-model` installs it.")
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
        async with asyncio.timeout(_PATIENCE):
            async for _ in find_model(choice.model).stream(request):
                pass

    try:
        asyncio.run(ask())
    except TimeoutError:
        return Finding("fail", "online", f"{choice.model} did not answer within {_PATIENCE:g} s")
    except Exception as error:  # noqa: BLE001
        return Finding("fail", "online", f"{choice.model}: {error}")
    return Finding("ok", "online", f"{choice.model} answers")


def _tools(configuration: Configuration) -> Finding:
    """Load the tools. A boundary: a module of the user may fail in any way."""
    from halter.cli.agent_factory import load_tools

    try:
        tools = load_tools(configuration)
    except SettingsError as error:
        return Finding("fail", "tools", str(error), "`halter config edit` opens the file.")
    except Exception as error:  # noqa: BLE001
        return Finding("fail", "tools", f"{', '.join(configuration.settings.tools)}: {type(error).__name__}: {error}")
    return Finding("ok", "tools", f"{len(tools)}" if tools else "none configured")


def _servers(configuration: Configuration) -> Iterator[Finding]:
    """Connect to the MCP servers of the settings."""
    servers = configuration.servers
    try:
        counts = {name: len(servers.tools([name])) for name in servers.names}
    except SettingsError as error:
        yield Finding("fail", "mcp", str(error), "`halter config edit` opens the file.")
        return
    finally:
        servers.close()
    for problem in servers.problems:
        yield Finding("fail", "mcp", problem)
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
            yield Finding("fail", "agents", f"{theirs.origins['model']}: agents.{name}: {error}")
            continue
        found = _tools(theirs)
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
        return Finding("fail", "sandbox", f"it cannot be made: {error}")
    finally:
        sandbox.close()
    if sandbox.without_namespaces:
        fix = "Weaker: commands have no loopback, and can write Git's hooks. docs/guides/sandbox.md says more."
        return Finding("warn", "sandbox", f"{mode}, without namespaces: {sandbox.without_namespaces}", fix)
    if os.geteuid() == 0:
        return Finding("warn", "sandbox", mode, "Halter runs as root: it is weaker than for an ordinary user.")
    return Finding("ok", "sandbox", mode)


def _instructions() -> Finding:
    """Name the files and skills that the prompt of an agent with tools has in it."""
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
    there = next(each for each in (path, *path.absolute().parents) if each.exists())
    if not path.exists():
        if os.access(there, os.W_OK):
            yield Finding("ok", "store", f"{path} will be created by the first session")
        else:
            yield Finding("fail", "store", f"cannot create {path}: {there} is not writable", _ELSEWHERE)
        return
    try:
        with SQLiteStore(path) as store:
            count = len(store.sessions())
    except StoreError as error:
        yield Finding("fail", "store", str(error), _ELSEWHERE)
        return
    if not all(os.access(each, os.W_OK) for each in (path, path.parent)):
        yield Finding("fail", "store", f"{path} is readable, but it or its directory is not writable", _ELSEWHERE)
        return
    yield Finding("ok", "store", f"{path}, {count} sessions")
    free = shutil.disk_usage(path.parent).free
    if free < _LEAST_SPACE:
        yield Finding("warn", "disk", f"{free / 1e6:.0f} MB free on the disk of the store", _ELSEWHERE)


_ELSEWHERE: Final = "Use --store PATH, HALTER_STORE or the setting `store` for another place."


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
    there = [name for name in _EXTRAS if name not in missing]
    text = f"installed: {', '.join(there) or 'none'}"
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
