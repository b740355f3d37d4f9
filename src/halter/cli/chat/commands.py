"""The commands of the chat: lines that begin with a slash. One that is not known is an error, never a message.

A line that begins with a space is no command, whatever follows.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.blocking import run_blocking_async
from halter.cancel.token import NEVER
from halter.cli.chat.drawing import short
from halter.cli.chat.past import PastTurn, read_turns, to_markdown
from halter.cli.chat.words import count
from halter.cli.listing import PASSING, NotFound, describe_sessions, find_session
from halter.cli.settings import SettingsError
from halter.cli.timeline import last_stop, render
from halter.errors import HalterError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from halter.cli.chat.actions import Actions, Screen
    from halter.cli.chat.host import Host
    from halter.events import Mode

__all__ = ["COMMANDS", "KEYS", "Commands", "complete"]

_MOST_SESSIONS: Final = 20
_WORDS: Final = 60
KEYS: Final = (
    ("Enter", "send; while a turn runs, as /busy says"),
    ("Tab, Alt+Enter", "queue: send when the turn is over"),
    ("Esc", "stop the turn; what is queued is held"),
    ("Ctrl+C", "clear the line; else stop; twice: leave"),
    ("Alt+Up", "edit the last message that waits"),
    ("\\ Enter", "a new line"),
    ("Ctrl+D", "on an empty line: leave"),
)


class _Command(NamedTuple):
    takes: str
    help: str


COMMANDS: Final = {
    "stop": _Command("[step]", "stop the turn, now or after its running step"),
    "steer": _Command("TEXT", "send into the running turn, breaking its step"),
    "queue": _Command("[TEXT]", "send when the turn is over; without a text: what waits"),
    "busy": _Command("[steer|interrupt|queue]", "what Enter does while a turn runs"),
    "undo": _Command("", "take the last turn back, and its text into the line"),
    "retry": _Command("", "take the last turn back, and send it again"),
    "rollback": _Command("", "take the last turn, or the running one, out of the conversation"),
    "why": _Command("", "the last stop: who asked, and what ended when and how"),
    "tools": _Command("", "what the model may use"),
    "model": _Command("[NAME]", "which model answers; openai:NAME, anthropic:NAME, ollama:NAME or local"),
    "sessions": _Command("", "the sessions of the store"),
    "resume": _Command("[ID]", "go on with another session; its id, or how that begins"),
    "new": _Command("", "begin a new session"),
    "export": _Command("[PATH]", "write the conversation to a file"),
    "help": _Command("", "keys and commands"),
    "quit": _Command("", "leave"),
}
"""All commands: what each takes, and does."""


def complete(text: str) -> list[str]:
    """The commands that a line may become."""
    if not text.startswith("/") or " " in text or "\n" in text:
        return []
    return [f"/{name}" for name in COMMANDS if name.startswith(text[1:])]


class Commands:
    """Does what the commands say."""

    def __init__(self, host: Host, screen: Screen, actions: Actions) -> None:
        self._host = host
        self._screen = screen
        self._actions = actions

    async def run(self, line: str) -> None:
        """Do what one line says. A boundary: what goes wrong is told, and nothing else happens."""
        name, _, rest = line[1:].partition(" ")
        name = name.strip().lower()
        if name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, n=3, cutoff=0.5)
            guess = f"; did you mean {' or '.join('/' + each for each in near)}?" if near else "; /help lists them"
            self._say(f"there is no command /{name}{guess} (a line that begins with a space is no command)", "bad")
            if not self._screen.line:
                self._screen.line = line  # to be mended
            return
        do: Callable[[str], Awaitable[None]] = getattr(self, f"_{name}")
        try:
            await do(rest.strip())
        except (HalterError, NotFound, SettingsError, OSError) as error:
            self._say(f"/{name}: {error}", "bad")

    def _say(self, text: str, tone: str = "") -> None:
        self._screen.view.say(text, tone)
        self._screen.refresh()

    # -- the turn ----------------------------------------------------------------------------------------------------

    async def _stop(self, rest: str) -> None:
        if rest == "step":
            is_running = self._host.session.stop("step").stopped
            self._say("it pauses after its running step" if is_running else "nothing runs", "dim")
        elif rest:
            self._say("/stop, or /stop step", "bad")
        else:
            self._actions.stop("/stop")

    async def _steer(self, rest: str) -> None:
        self._send(rest, "steer")

    async def _queue(self, rest: str) -> None:
        if rest:
            self._send(rest, "queue")
            return
        waiting = [f"{each.state:8} {each.mode:9} {short(each.text, _WORDS)}" for each in self._host.session.inbox]
        self._say("\n".join(waiting) or "no message waits")

    def _send(self, text: str, mode: Mode) -> None:
        if not text:
            self._say(f"/{mode} TEXT", "bad")
        elif not self._actions.post(text, mode):
            self._screen.line = text

    async def _busy(self, rest: str) -> None:
        if rest in ("steer", "interrupt", "queue"):
            self._actions.busy = rest  # type: ignore[assignment]  # one of the modes
        elif rest:
            self._say(f"/busy steer, /busy interrupt or /busy queue; not {rest!r}", "bad")
            return
        does = {"steer": "goes into it", "interrupt": "stops it and is next", "queue": "waits until it is over"}
        self._say(f"while a turn runs, a message {does[self._actions.busy]} (busy = {self._actions.busy})")

    # -- taking back -------------------------------------------------------------------------------------------------

    async def _undo(self, _rest: str) -> None:
        turn = await self._take_back()
        if turn is not None:
            self._screen.clear_line()
            self._screen.line = "\n\n".join(turn.texts)

    async def _retry(self, _rest: str) -> None:
        turn = await self._take_back()
        texts = [text for text in turn.texts if text.strip()] if turn is not None else []
        if texts:
            self._host.post(list(texts))

    async def _rollback(self, _rest: str) -> None:
        await self._take_back()

    async def _take_back(self) -> PastTurn | None:
        """Take the last turn out of the conversation; gives what it was about."""
        session = self._host.session
        receipt = None
        if session.is_running:
            receipt = session.rollback()
            await receipt.settled_async()
            turns = await self._turns_with_rolled_back(session.turn.id if session.turn is not None else "")
        else:
            turns = await run_blocking_async(read_turns, self._host.store, session.id, token=NEVER)
            if turns:
                receipt = session.rollback()
        if receipt is None or not turns:
            self._say("there is no turn to take back", "dim")
            return None
        return turns[-1]

    async def _turns_with_rolled_back(self, turn_id: str) -> list[PastTurn]:
        """The running turn, as it was before it was taken back."""
        view = self._screen.view
        turn = PastTurn(turn_id)
        turn.texts = list(view.last_texts) if view.last_turn == turn_id else []
        return [turn]

    # -- looking -----------------------------------------------------------------------------------------------------

    async def _why(self, _rest: str) -> None:
        session = self._host.session
        events = await run_blocking_async(lambda: self._host.store.read(session.id, without=PASSING), token=NEVER)
        stop = last_stop(events)
        none = "no turn of this session was ever stopped"
        self._say(render(stop, width=self._screen.width) if stop is not None else none)

    async def _tools(self, _rest: str) -> None:
        tools = self._host.agent.tools.values()
        lines = [f"{tool.name:20} {short(tool.spec.description, _WORDS)}" for tool in tools]
        none = 'the model has no tools; tools = ["default"] in the settings gives it the useful ones'
        self._say("\n".join(lines) or none)

    async def _model(self, rest: str) -> None:
        if rest:
            self._host.use_model(rest)
            self._screen.load_model()
            self._say(f"{rest} answers from the next turn on")
        else:
            others = COMMANDS["model"].help.partition("; ")[2]
            self._say(f"{self._host.agent.model.name} answers; another: /model {others}")

    async def _sessions(self, _rest: str) -> None:
        lines = await run_blocking_async(describe_sessions, self._host.store, _MOST_SESSIONS, token=NEVER)
        self._say("\n".join(lines))

    async def _help(self, _rest: str) -> None:
        keys = [f"{key:16} {what}" for key, what in KEYS]
        commands = [f"{f'/{name} {each.takes}'.strip():32} {each.help}" for name, each in COMMANDS.items()]
        self._say("\n".join([*keys, "", *commands]))

    # -- sessions ----------------------------------------------------------------------------------------------------

    async def _resume(self, rest: str) -> None:
        if not rest:
            await self._sessions("")
            return
        found = await run_blocking_async(find_session, self._host.store, rest, token=NEVER)
        if found == self._host.session.id:
            self._say("this is the one", "dim")
        else:
            await self._switch(found)

    async def _new(self, _rest: str) -> None:
        await self._switch(None)

    async def _switch(self, session_id: str | None) -> None:
        if self._host.session.is_running:
            self._say("a turn runs: stop it first (Esc), or let it end", "bad")
            return
        await self._host.switch(session_id)
        self._screen.show_session()

    async def _export(self, rest: str) -> None:
        session = self._host.session
        messages = session.history
        name = rest or f"halter-{session.id}.md"
        path = await run_blocking_async(_write_new, name, to_markdown(messages), token=NEVER)
        self._say(f"{count(len(messages), 'message')} written to {path}")

    async def _quit(self, _rest: str) -> None:
        self._screen.leave(0, "/quit")


def _write_new(name: str, text: str) -> Path:
    """Write a file that is not there yet."""
    path = Path(name).expanduser()
    with path.open("x", encoding="utf-8", errors="replace") as file:
        file.write(text)
    return path
