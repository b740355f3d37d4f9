"""The chat without a terminal: each line is a message or a command, and the end of the input is the end of the chat.

Answers are plain text on standard output, all else is on standard error. One line that comes while a turn runs waits
in the session for its end, and what comes behind that waits for this one to begin, so that each has a turn of its own;
/steer and /stop do what they say to the one that runs. At the end of the input, what waits is still answered.
Three hands: one thread reads, one writes, and the main one does what the lines say, so that a reader who is slow, or
gone, holds up no turn.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

from halter.cancel import ExitGuard
from halter.cli.chat.actions import Actions
from halter.cli.chat.commands import Commands
from halter.cli.chat.host import Host
from halter.cli.chat.leaving import Leaving
from halter.cli.chat.view import View
from halter.cli.chat.words import Said
from halter.cli.choose import NoModel, choose
from halter.cli.listing import PASSING
from halter.cli.output import Output, complain
from halter.cli.settings import SettingsError
from halter.errors import HalterError
from halter.events import Event, Missed, QuestionAsked, TurnFinished
from halter.models.errors import ModelError
from halter.models.model import TextDelta
from halter.models.progress import RequestStarted
from halter.stores import SQLiteStore
from halter.tools.events import ApprovalAsked

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from halter.cli.chat.drawing import Tone
    from halter.cli.settings import Configuration
    from halter.listener import Listener

__all__ = ["talk_in_lines"]

_PIPE_CLOSED: Final = 141
_WIDTH: Final = 80
_URGENT: Final = ("/stop", "/steer", "/quit")


def talk_in_lines(configuration: Configuration, session_id: str | None) -> int:
    """Run the chat in lines. Returns the exit code. A boundary: what can go wrong is told, in a line."""
    output = Output()
    with ExitGuard(configuration.settings.exit_timeout, say=output.announce) as guard:
        try:
            choice = choose(configuration)
            with SQLiteStore(configuration.make_store()) as store:
                can_ask = sys.stdin is not None and sys.stdin.isatty()
                host = Host(configuration, choice, store, session_id, can_ask=can_ask)
                for line in choice.lines:
                    output.say(line)
                lines = _Lines(host, Leaving(guard, host), output)
                guard.on_signal = lines.on_signal
                code = asyncio.run(lines.run())
        except (HalterError, NoModel, OSError, SettingsError) as error:
            code = complain(error)
        sys.exit(code)
    return 0


class _Lines:
    """The chat, in lines."""

    width = _WIDTH

    def __init__(self, host: Host, leaving: Leaving, output: Output) -> None:
        self.line = ""  # what could not be sent, for commands that put something back
        self.view = View()
        self._host = host
        self._leaving = leaving
        self._output = output
        self._actions = Actions(host, self)
        self._actions.busy = "queue"  # lines that were written beforehand are no afterthoughts
        self._commands = Commands(host, self, self._actions)
        self._listener: Listener = host.session.listen()
        self._is_ended = False  # the input
        self._past = host.session.turn  # the last one of earlier times
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Do what the lines say, to the last of them; gives the exit code."""
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._heard: asyncio.Queue[str | None] = asyncio.Queue()
        self._moved = asyncio.Event()  # something has happened
        self._host.on_failure = lambda error: self._call(lambda: self._on_failure(error))
        for letter in self._host.session.inbox:
            self.view.know(letter.id, letter.text, letter.accepted_at)
        self._begin_to_write()
        threading.Thread(target=self._read, name="halter-chat-read", daemon=True).start()
        self._host.serve()
        self.load_model()
        self._start(self._obey())
        await self._over
        self._listener.close()
        await self._leaving.wait_for("the answer to be read", self._writer.join)
        for line in self._leaving.lines:
            self._output.say(line)
        return self._leaving.code

    # -- the screen, for actions and commands ------------------------------------------------------------------------

    @property
    def is_leaving(self) -> bool:
        """Whether the program is about to end."""
        return self._leaving.is_begun

    def notice(self, text: str, tone: Tone = "dim") -> None:
        """Say what went wrong; that all is well needs no word here."""
        if text and tone != "dim":
            self._output.say(text)

    def refresh(self) -> None:
        """Say what there is to say."""
        for each in self.view.take_shown():
            if isinstance(each, Said) and each.tone != "user":
                self._output.say(f"{each.lead}{each.text}")

    def clear_line(self) -> None:
        """Forget what could not be sent."""
        self.line = ""

    def load_model(self) -> None:
        """Begin to load a model that runs here, and say so."""
        try:
            loading = self._host.load_model()
        except ModelError as error:
            self._output.say(f"halter: {error}")
            return
        if loading is not None and not loading.done():
            self._output.say("Loading the model…")

    def leave(self, code: int, why: str) -> None:
        """End the program."""
        if not self._leaving.is_begun:
            self._leaving.begin(code, why)
            self._start(self._leave(why))

    def leave_at_once(self) -> None:
        """End the program without waiting for anything: the guard hears a second signal by itself."""

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read lines, in a thread. Not by Python's own file: a thread that waits in that can not be left at the end."""
        rest = b""
        file = sys.stdin.fileno() if sys.stdin is not None else -1
        while file >= 0:
            try:
                piece = os.read(file, 65536)
            except OSError:
                break
            if not piece:
                break
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._hear(line)
        if rest:
            self._hear(rest)
        self._call(lambda: self._heard.put_nowait(None))

    def _hear(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self._call(lambda: self._heard.put_nowait(text))

    async def _obey(self) -> None:
        while (text := await self._heard.get()) is not None:
            await self._until_next(is_urgent=text.startswith(_URGENT))
            if text.startswith("/"):
                await self._commands.run(text)
            elif text.strip():
                self._actions.begin_line()
                self._actions.send(text)
        self._is_ended = True
        self._stop_asking()
        await self._until_answered()
        turn = self._host.session.turn
        has_failed = turn is not None and turn is not self._past and turn.status == "failed"
        self.leave(int(has_failed), "the end of the input")

    async def _until_next(self, *, is_urgent: bool) -> None:
        """Wait until the line before has begun a turn of its own, or something is asked that this one may answer.

        What is urgent is meant for the turn that runs, if one does.
        """
        session = self._host.session
        while session.inbox.ready() and not self.view.prompts and not self.is_leaving:
            if is_urgent and session.is_running:
                return
            self._moved.clear()
            await self._moved.wait()

    async def _until_answered(self) -> None:
        session = self._host.session
        while not self._leaving.is_begun:
            ready = session.inbox.ready()
            bell = ready[0].bell if ready else None
            turn = session.turn
            if bell is not None:
                await bell.wait_async()
            elif session.is_running and turn is not None:
                await turn.ended.wait_async()
            elif not ready:
                return

    def _stop_asking(self) -> None:
        """Stop a turn that asks when nobody is there to answer."""
        if self._is_ended and self.view.prompts and self._is_asked():
            self._host.session.stop(detail="nobody is there to answer")

    def _is_asked(self) -> bool:
        """Whether something is still asked, by the log: the thread that hears and writes may be behind."""
        view = View()
        for event in self._host.store.read(self._host.session.id, without=PASSING):
            view.take(event)
        return bool(view.prompts)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _begin_to_write(self) -> None:
        self._writer = threading.Thread(
            target=self._write_all, args=(self._listener,), name="halter-chat-write", daemon=True
        )
        self._writer.start()

    def _write_all(self, listener: Listener) -> None:
        """Write what is heard of one session, in a thread."""
        try:
            while (event := listener.get()) is not None:
                self._write(event)
            self._output.end_line()
        except OSError:
            self._call(lambda: self.leave(_PIPE_CLOSED, "whoever read the output is gone"))

    def _write(self, event: Event) -> None:
        data = event.data
        if isinstance(data, Missed):
            for each in self._host.session.events(data.first - 1):
                if each.seq <= data.last:
                    self._write(each)
            return
        if isinstance(data, TextDelta):
            self._output.write(data.text)
            return
        if isinstance(data, (RequestStarted, TurnFinished)):
            self._output.end_line()
        self.view.take(event)
        self.refresh()
        self._call(self._moved.set)
        if isinstance(data, (ApprovalAsked, QuestionAsked)) and self.view.prompt is not None:
            choices = "".join(f"\n  {number}. {each}" for number, each in enumerate(self.view.prompt.choices or (), 1))
            self._output.say(f"? {self.view.prompt.text}{choices}")
            self._call(self._stop_asking)

    # -- its end -----------------------------------------------------------------------------------------------------

    def on_signal(self, number: int) -> bool:
        """Leave, in a signal's handler."""
        return self._call(lambda: self.leave(128 + number, "a signal"))

    def show_session(self) -> None:
        """Go on with another session."""
        self._listener = self._host.session.listen()
        self.view = View()
        self._begin_to_write()
        for said in self._host.describe():
            self._output.say(said.text)
        self._host.serve()

    def _on_failure(self, error: HalterError) -> None:
        self._output.say(f"halter: {error}")
        self.leave(1, "the store failed")

    async def _leave(self, why: str) -> None:
        await self._leaving.end_session(why, self._actions.late)
        if not self._over.done():
            self._over.set_result(None)

    def _call(self, do: Any) -> bool:  # noqa: ANN401
        try:
            self._loop.call_soon_threadsafe(do)
        except (AttributeError, RuntimeError):
            return False
        return True

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
