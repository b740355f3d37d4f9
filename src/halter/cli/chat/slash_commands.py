"""The commands of the chat: lines that start with a slash. An unknown command is an error, never a message.

A line that starts with a space is never a command.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.loop_bridge import run_in_thread
from halter.cli.chat.past_turns import LoggedTurn, read_turns, to_markdown
from halter.cli.chat.screen.styling import THEMES, short
from halter.cli.commands.sessions import FREQUENT_EVENTS, NotFound, describe_sessions, find_session
from halter.cli.settings import SettingsError
from halter.errors import HalterError
from halter.models.tokens import message_tokens, prompt_tokens
from halter.views.file_text import show_restored
from halter.views.text import count
from halter.views.timeline import last_stop, render

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from halter.cli.chat.actions import Actions, Screen
    from halter.cli.chat.session_host import SessionHost
    from halter.events import Mode
    from halter.models.types import Usage
    from halter.session.inbox import Receipt
    from halter.tools.file_history import RestoredFiles

__all__ = ["COMMANDS", "KEY_HELP", "SlashCommands"]

_MAX_SESSIONS: Final = 20  # in the list
_MAX_WORDS: Final = 60  # characters of a message or a description in a list
_INIT_PROMPT: Final = (
    "Look at this folder and write AGENTS.md, for agents that work here: what the project is, how to build, test and "
    "lint it, where things are, and the conventions that matter. Under 60 lines. If there is one, improve it."
)
KEY_HELP: Final = (
    ("Enter", "send; while a turn runs, see /busy"),
    ("Alt+Enter", "queue: send when the turn ends"),
    ("Tab", "complete a /command or an @file"),
    ("@PATH", "refer to a file or folder; images are attached"),
    ("!COMMAND", "run a command yourself; its output is sent with your next message"),
    ("#NOTE", "remember a note for all sessions"),
    ("Esc", "stop the turn; queued messages are held"),
    ("Ctrl+C", "clear the line, or stop the turn; twice: quit"),
    ("Ctrl+O", "show the full output of the last tool call; again: of the one before"),
    ("Ctrl+R", "search your input of all sessions"),
    ("Alt+Up", "edit the last queued message"),
    ("\\ Enter", "new line"),
    ("Ctrl+D", "on an empty line: quit"),
)


class _Command(NamedTuple):
    arguments: str
    help: str


COMMANDS: Final = {
    "stop": _Command("[step]", "stop the turn now, or after the running step"),
    "steer": _Command("TEXT", "send into the running turn, interrupting its step"),
    "queue": _Command("[TEXT]", "send when the turn ends; without text: list queued messages"),
    "busy": _Command("[steer|interrupt|queue]", "choose what Enter does while a turn runs"),
    "undo": _Command(
        "[files|keep]", "remove the last turn and put its text into the line; files: restore its files too"
    ),
    "redo": _Command("", "redo the file changes that /undo files has reverted"),
    "retry": _Command("", "remove the last turn and send it again"),
    "rollback": _Command("", "remove the running or the last turn from the conversation"),
    "diff": _Command("", "show the file changes of the last turn"),
    "compact": _Command("", "summarise the older part of the conversation before the next request"),
    "context": _Command("", "show how full the model's context is"),
    "cost": _Command("", "show the tokens and the cost of the last turn and of the session"),
    "why": _Command("", "show the last stop: who asked, and what ended when and how"),
    "tools": _Command("", "list the tools"),
    "mcp": _Command("", "list the MCP servers and their tools"),
    "init": _Command("", "have the model write AGENTS.md, the instructions for agents in this folder"),
    "model": _Command("[NAME]", "show or change the model; openai:NAME, anthropic:NAME, ollama:NAME or local"),
    "sessions": _Command("", "list the sessions"),
    "resume": _Command("[ID]", "continue another session, by its id or a prefix of it"),
    "new": _Command("", "start a new session"),
    "export": _Command("[PATH]", "save the conversation to a file"),
    "theme": _Command("[dark|light]", "show or change the colours; to keep them, set `theme` in the settings"),
    "help": _Command("", "show keys and commands"),
    "quit": _Command("", "quit"),
}
"""All commands, with their arguments and help."""


class SlashCommands:
    """Runs the commands."""

    def __init__(self, host: SessionHost, screen: Screen, actions: Actions) -> None:
        self._host = host
        self._screen = screen
        self._actions = actions

    async def run(self, line: str) -> None:
        """Run one line. A boundary: errors are shown."""
        name, _, rest = line[1:].partition(" ")
        name = name.strip().lower()
        if name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, n=3, cutoff=0.5)
            guess = f"; did you mean {' or '.join('/' + each for each in near)}?" if near else "; /help lists them"
            self._say(f"unknown command /{name}{guess} (start the line with a space to send it as a message)", "bad")
            if not self._screen.line:
                self._screen.line = line  # to be corrected
            return
        do: Callable[[str], Awaitable[None]] = getattr(self, f"_{name}")
        try:
            await do(rest.strip())
        except (HalterError, NotFound, SettingsError, OSError) as error:
            self._say(f"/{name}: {error}", "bad")

    def _say(self, text: str, tone: str = "") -> None:
        self._screen.transcript.say(text, tone)
        self._screen.refresh()

    # -- the turn ----------------------------------------------------------------------------------------------------

    async def _stop(self, rest: str) -> None:
        if rest == "step":
            is_running = self._host.session.stop("step").stopped
            self._say("pausing after the running step" if is_running else "nothing is running", "dim")
        elif rest:
            self._say("usage: /stop or /stop step", "bad")
        else:
            self._actions.stop("/stop")

    async def _steer(self, rest: str) -> None:
        self._send(rest, "steer")

    async def _queue(self, rest: str) -> None:
        if rest:
            self._send(rest, "queue")
            return
        waiting = [f"{each.state:8} {each.mode:9} {short(each.text, _MAX_WORDS)}" for each in self._host.session.inbox]
        self._say("\n".join(waiting) or "no messages are queued")

    def _send(self, text: str, mode: Mode) -> None:
        if not text:
            self._say(f"usage: /{mode} TEXT", "bad")
        elif not self._actions.post(text, mode):
            self._screen.line = text

    async def _busy(self, rest: str) -> None:
        if rest in ("steer", "interrupt", "queue"):
            self._actions.busy = rest  # type: ignore[assignment]  # one of the modes
        elif rest:
            self._say(f"usage: /busy steer, /busy interrupt or /busy queue; not {rest!r}", "bad")
            return
        does = {"steer": "is sent into it", "interrupt": "stops it and is sent next", "queue": "waits until it ends"}
        self._say(f"while a turn runs, a message {does[self._actions.busy]} (busy = {self._actions.busy})")

    # -- rolling back -------------------------------------------------------------------------------------------------

    async def _undo(self, rest: str) -> None:
        if rest not in ("", "files", "keep"):
            self._say("usage: /undo, /undo files or /undo keep", "bad")
            return
        if not rest:
            diff = await run_in_thread(self._host.session.file_changes)
            if diff.files:
                self._screen.transcript.show_diff(diff)
                self._say("/undo files: restore them and remove the turn; /undo keep: only remove the turn", "warn")
                return
        turn = await self._roll_back(files=rest == "files")
        if turn is not None:
            self._screen.clear_line()
            self._screen.line = "\n\n".join(turn.texts)

    async def _redo(self, _rest: str) -> None:
        files = await run_in_thread(self._host.session.undo_rollback)
        if files.restored or files.kept:
            self._show_files(files)
        else:
            self._say("no file changes to redo", "dim")

    def _show_files(self, files: RestoredFiles | None) -> None:
        if files is not None:
            self._say(show_restored(files), "warn" if files.kept else "dim")

    async def _retry(self, _rest: str) -> None:
        turn = await self._roll_back()
        texts = [text for text in turn.texts if text.strip()] if turn is not None else []
        if texts:
            self._host.post(list(texts))

    async def _rollback(self, _rest: str) -> None:
        await self._roll_back()

    async def _roll_back(self, *, files: bool = False) -> LoggedTurn | None:
        """Remove the last turn from the conversation, and its file changes with *files*; returns the turn."""
        session = self._host.session
        receipt = None
        if session.is_running:
            receipt = await self._remove_turn(files=files)
            await receipt.settled_async()
            turns = await self._turns_with_rolled_back(receipt.turn_id)
        else:
            turns = await run_in_thread(lambda: read_turns(self._host.store, session.id))
            if turns:
                receipt = await self._remove_turn(files=files)
        if receipt is None or not turns:
            self._say("no turn to remove", "dim")
            return None
        return turns[-1]

    async def _remove_turn(self, *, files: bool) -> Receipt:
        session = self._host.session
        if not files:
            return session.rollback()
        receipt = await run_in_thread(lambda: session.rollback(files=True))
        self._show_files(receipt.files)
        return receipt

    async def _turns_with_rolled_back(self, turn_id: str) -> list[LoggedTurn]:
        """The running turn, as it was before the rollback."""
        turn = LoggedTurn(turn_id)
        turn.texts = self._screen.transcript.texts_of(turn_id)
        return [turn]

    async def _diff(self, _rest: str) -> None:
        diff = await run_in_thread(self._host.session.file_changes)
        if not diff.files:
            self._say(f"the last turn changed no files{f' ({diff.note})' if diff.note else ''}", "dim")
            return
        self._screen.transcript.show_diff(diff)
        self._screen.refresh()

    # -- showing -----------------------------------------------------------------------------------------------------

    async def _why(self, _rest: str) -> None:
        session = self._host.session
        events = await run_in_thread(lambda: self._host.store.read(session.id, without=FREQUENT_EVENTS))
        stop = last_stop(events)
        none = "no turn of this session was stopped"
        self._say(render(stop, width=self._screen.width) if stop is not None else none)

    async def _tools(self, _rest: str) -> None:
        tools = self._host.agent.tools.values()
        lines = [f"{tool.name:20} {short(tool.spec.description, _MAX_WORDS)}" for tool in tools]
        none = 'the model has no tools; set tools = ["default"] in the settings file for the usual ones'
        self._say("\n".join(lines) or none)

    async def _mcp(self, _rest: str) -> None:
        servers = self._host.configuration.servers
        lines = []
        for name in servers.names:
            tools = [tool for tool in self._host.agent.tools if tool.startswith(f"{name}_")]
            lines.append(f"{name:20} {', '.join(each.removeprefix(f'{name}_') for each in tools) or 'no tools'}")
        none = "no MCP servers; add one with `halter mcp add NAME COMMAND...` or `halter mcp add NAME URL`"
        self._say("\n".join([*lines, *servers.problems]) or none)

    async def _init(self, _rest: str) -> None:
        if "write_file" not in self._host.agent.tools:
            self._say("the model cannot write files: it has no write_file tool", "bad")
        else:
            self._send(_INIT_PROMPT, self._actions.busy)

    async def _cost(self, _rest: str) -> None:
        session, turn = self._host.session, self._host.session.turn
        rows = [("session", session.usage)] if turn is None else [("turn", turn.usage), ("session", session.usage)]
        self._say("\n".join(f"{name:8} {_usage_text(usage)}" for name, usage in rows))

    async def _context(self, _rest: str) -> None:
        session, agent = self._host.session, self._host.agent
        context = session.context
        messages = sum(map(message_tokens, session.history))
        tools = prompt_tokens("", agent.tool_specs)
        window = f" of {context.window:,} ({100 * context.tokens / context.window:.0f}%)" if context.window else ""
        parts = f"{count(len(session.history), 'message')} {messages:,}, {count(len(agent.tools), 'tool')} {tools:,}"
        lines = [f"next request: about {context.tokens:,} tokens{window}", f"estimated: {parts}, and instructions"]
        if session.history:
            lines.append("/compact summarises the older messages; /new starts with an empty context")
        self._say("\n".join(lines))

    async def _theme(self, rest: str) -> None:
        if rest and rest not in THEMES:
            self._say(f"usage: /theme {' or /theme '.join(THEMES)}", "bad")
            return
        if rest:
            self._screen.use_theme(rest)
        self._say(f"the colours are for a {self._screen.theme} background")

    async def _model(self, rest: str) -> None:
        if rest:
            self._host.use_model(rest)
            self._screen.load_model()
            self._say(f"using {rest} from the next turn on")
        else:
            others = COMMANDS["model"].help.partition("; ")[2]
            self._say(f"using {self._host.agent.model.name}; to change it: /model {others}")

    async def _sessions(self, _rest: str) -> None:
        lines = await run_in_thread(lambda: describe_sessions(self._host.store, _MAX_SESSIONS))
        self._say("\n".join(lines))

    async def _help(self, _rest: str) -> None:
        keys = [f"{key:16} {what}" for key, what in KEY_HELP]
        commands = [f"{f'/{name} {each.arguments}'.strip():32} {each.help}" for name, each in COMMANDS.items()]
        self._say("\n".join([*keys, "", *commands]))

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def _resume(self, rest: str) -> None:
        if not rest:
            await self._sessions("")
            return
        found = await run_in_thread(lambda: find_session(self._host.store, rest))
        if found == self._host.session.id:
            self._say("this session is already open", "dim")
        else:
            await self._switch(found)

    async def _new(self, _rest: str) -> None:
        await self._switch(None)

    async def _switch(self, session_id: str | None) -> None:
        if self._host.session.is_running:
            self._say("a turn is running: stop it first (Esc) or wait until it ends", "bad")
            return
        previous = await self._host.switch(session_id)
        self._screen.show_session()  # no wait in between: no event of either session is shown in the other
        await self._host.close_previous(previous)

    async def _compact(self, _rest: str) -> None:
        if await self._host.session.acompact() is None:  # what it did is shown as any event is
            self._say("the context is compacted before the next request, if there is anything to compact")

    async def _export(self, rest: str) -> None:
        session = self._host.session
        messages = session.full_history
        name = rest or f"halter-{session.id}.md"
        path = await run_in_thread(lambda: _write_new(name, to_markdown(messages)))
        self._say(f"{count(len(messages), 'message')} written to {path}")

    async def _quit(self, _rest: str) -> None:
        self._screen.quit(0, "/quit")


def _usage_text(usage: Usage) -> str:
    """Tokens by kind, and the cost."""
    kinds = [f"{usage.input_tokens:,} in", f"{usage.cached_tokens:,} of them cached"] if usage.cached_tokens else []
    kinds = kinds or [f"{usage.input_tokens:,} in"]
    cost = "cost unknown" if usage.cost is None else f"${usage.cost:.4f}"
    guess = " (estimated)" if usage.is_estimated else ""
    return f"{', '.join(kinds)}; {usage.output_tokens:,} out; {cost}{guess}"


def _write_new(name: str, text: str) -> Path:
    """Write a new file."""
    path = Path(name).expanduser()
    with path.open("x", encoding="utf-8", errors="replace") as file:
        file.write(text)
    return path
