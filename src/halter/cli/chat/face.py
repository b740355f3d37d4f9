"""The chat on a terminal: what goes on in the session is shown, and what a person types reaches it.

Events are heard as they come and shown together, at most thirty times a second; when nothing happens, nothing runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from halter.cli.chat.actions import Actions
from halter.cli.chat.canvas import Canvas
from halter.cli.chat.commands import Commands
from halter.cli.chat.drawing import warm_up
from halter.cli.chat.keys import make_keys
from halter.cli.chat.picture import elapsed
from halter.cli.chat.view import View
from halter.events import Missed, TurnFinished
from halter.models.errors import ModelError
from halter.tools.events import ToolProgress

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from halter.cli.chat.drawing import Tone
    from halter.cli.chat.host import Host
    from halter.cli.chat.leaving import Leaving
    from halter.cli.chat.terminal import Terminal
    from halter.cli.chat.view import Shown
    from halter.cli.chat.words import Said
    from halter.events import Event, Mode
    from halter.listener import Listener

__all__ = ["Face"]

_FRAME: Final = 1 / 30
_SLOW_FRAME: Final = 1 / 10  # if nothing has come but how far calls are
_SLICE: Final = 0.004  # seconds of drawing, and then of listening to keys: an answer may come all at once
_BREATH: Final = 0.004
_TICK: Final = 0.5  # between two looks at the clock, while something runs
_HANGUP: Final = 129


class Face:
    """The chat, in the event loop of one thread."""

    def __init__(self, host: Host, terminal: Terminal, leaving: Leaving, *, color: bool) -> None:
        self.view = View()
        self._host = host
        self._leaving = leaving
        self._unwritten: list[Shown] = []  # what is to stay, and was too much for once
        self._is_behind = False
        self._notice: tuple[str, Tone] = ("", "dim")
        self._loading = 0.0  # since when a model is
        self._is_ticking = False
        self._listener: Listener = host.session.listen()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self.actions = Actions(host, self)
        self._commands = Commands(host, self, self.actions)
        self._canvas = Canvas(
            terminal,
            above=(
                lambda: [""],  # between what stays and what changes
                lambda: self._canvas.picture.tail(self.view),
                lambda: self._canvas.picture.calls(self.view),
                lambda: self._canvas.picture.queue(list(self._host.session.inbox), self.view),
                lambda: self._canvas.picture.prompt(self.view.prompt, len(self.view.prompts) - 1),
            ),
            below=(lambda: self._canvas.picture.hint(self.line), self._draw_notice, self._draw_status),
            color=color,
            on_begin=self.actions.begin_line,
            on_gone=self._on_gone,
        )
        self._app = self._canvas.make_app(make_keys(self))

    def _draw_notice(self) -> list[str]:
        text, tone = self._notice
        return self._canvas.picture.pen.say(text, tone, "  ") if text else []

    def _draw_status(self) -> list[str]:
        doing = "shutting down" if self.is_leaving else ""
        if self._loading and not doing:
            doing = f"loading the model, {elapsed(time.monotonic() - self._loading)}"
        return [self._canvas.picture.status(self.view, self._host.agent.model.name, doing)]

    # -- the screen, for actions and commands ------------------------------------------------------------------------

    @property
    def line(self) -> str:
        """What is being typed."""
        return self._canvas.line

    @line.setter
    def line(self, text: str) -> None:
        self._canvas.line = text

    @property
    def width(self) -> int:
        """The columns that can be written in."""
        return self._canvas.picture.pen.width

    @property
    def is_leaving(self) -> bool:
        """Whether the program is about to end."""
        return self._leaving.is_begun

    def notice(self, text: str, tone: Tone = "dim") -> None:
        """Say something above the state, until there is something else to say."""
        self._notice = (text, tone)
        self._canvas.draw()

    def clear_line(self) -> None:
        """Take away what is being typed; the arrow keys bring it back."""
        self._canvas.empty_line(self.line)

    def refresh(self) -> None:
        """Write above what has come to stay, and draw the picture."""
        self._unwritten = self._canvas.write([*self._unwritten, *self.view.take_shown()], _SLICE)
        self._canvas.draw()
        if self._unwritten and self._loop is not None and not self._is_behind:
            self._is_behind = True
            self._loop.call_later(_BREATH, self._catch_up)

    def _catch_up(self) -> None:
        self._is_behind = False
        self.refresh()

    def leave(self, code: int, why: str) -> None:
        """End the program: say so, wait for what has to end, and go."""
        if not self._leaving.is_begun:
            self._leaving.begin(code, why)
            if why not in signal.Signals.__members__:  # of a signal the guard tells, with its name
                self.say("Shutting down…")
            self._ending = self._start(self._leave(why))

    def leave_at_once(self) -> None:
        """End the program without waiting for anything. By a signal: it is heard whatever the program is stuck in."""
        os.kill(os.getpid(), signal.SIGINT)

    def enter(self, mode: Mode | None = None) -> None:
        """Send the line, or do what it says."""
        text = self.line
        self._notice = ("", "dim")
        if text.startswith("/") and mode is None:
            self.clear_line()
            self.actions.leave_edit()
            self._start(self._commands.run(text))
        elif self.actions.send(text, mode):
            self.clear_line()

    # -- its life ----------------------------------------------------------------------------------------------------

    async def run(self, greeting: list[Said]) -> None:
        """Run until it is left."""
        loop = self._loop = asyncio.get_running_loop()
        self._host.on_failure = lambda error: self.call(lambda: self._on_failure(str(error)))
        self._know_waiting()
        self.view.shown += greeting
        self._start(self._hear(self._listener))
        loop.call_soon(self._begin)  # which is when the first picture is drawn
        with contextlib.suppress(EOFError):  # the terminal was closed
            await self._app.run_async(handle_sigint=False, set_exception_handler=False)
        if self._ending is None:
            self._leaving.begin(_HANGUP, "the terminal was closed")
            self._ending = self._start(self._leave("the terminal was closed"))
        await self._ending  # a terminal may be closed in the middle of it
        if self.line.strip():
            self._leaving.lines.append(f"Not sent: {self.line}")
        for task in self._tasks:
            task.cancel()

    def _begin(self) -> None:
        """Begin to answer, now that the line is there."""
        self.refresh()
        self._host.serve()
        threading.Thread(target=warm_up, name="halter-chat-warm-up", daemon=True).start()
        self.load_model()

    def load_model(self) -> None:
        """Begin to load a model that runs here, and show that it is being loaded."""
        try:
            loading = self._host.load_model()
        except ModelError as error:
            self.view.say(str(error), "bad")
            self.refresh()
            return
        if loading is not None and not loading.done():
            self._loading = time.monotonic()
            loading.add_done_callback(lambda done: self.call(lambda: self._on_loaded(done.exception())))
            self._keep_time()

    def call(self, do: Callable[[], object]) -> bool:
        """Have something done in the loop, from any thread or a signal's handler; False if there is none any more."""
        try:
            if self._loop is None:
                return False
            self._loop.call_soon_threadsafe(do)
        except RuntimeError:
            return False
        return True

    def say(self, text: str, tone: Tone = "warn") -> None:
        """Say something that stays."""
        self.view.say(text, tone)
        self.refresh()

    def resize(self) -> None:
        """Draw for another size of the terminal."""
        self._canvas.resize()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _leave(self, why: str) -> None:
        try:
            await self._leaving.end_session(why, self.actions.late)
            while (event := self._listener.get_nowait()) is not None:
                self._take(event)
            self._unwritten = self._canvas.write([*self._unwritten, *self.view.take_shown()])
        finally:
            if self._app.is_running:
                self._app.exit()

    # -- hearing -----------------------------------------------------------------------------------------------------

    async def _hear(self, listener: Listener) -> None:
        """Hear of one session, as long as it is open."""
        async for event in listener:
            self._take(event)
            is_news = not isinstance(event.data, ToolProgress)
            while (more := listener.get_nowait()) is not None:
                self._take(more)
                is_news = is_news or not isinstance(more.data, ToolProgress)
            self.refresh()
            self._keep_time()
            await asyncio.sleep(_FRAME if is_news else _SLOW_FRAME)

    def _take(self, event: Event) -> None:
        if isinstance(event.data, TurnFinished):
            self._notice = ("", "dim")  # what a key has done to the turn is done
        if isinstance(event.data, Missed):
            missed = event.data
            for each in self._host.session.events(missed.first - 1):
                if each.seq <= missed.last:
                    self.view.take(each)
        else:
            self.view.take(event)

    def _keep_time(self) -> None:
        if not self._is_ticking and self._is_awaited:
            self._is_ticking = True
            self._start(self._tick())

    @property
    def _is_awaited(self) -> bool:
        return bool(self.view.turn or self._loading)

    async def _tick(self) -> None:
        """Show how time passes, as long as somebody waits."""
        while self._is_awaited:
            self._canvas.draw()
            await asyncio.sleep(_TICK)
        self._is_ticking = False

    def _know_waiting(self) -> None:
        for letter in self._host.session.inbox:
            self.view.know(letter.id, letter.text, letter.accepted_at)

    def show_session(self) -> None:
        """Show another session, from now on."""
        self._listener = self._host.session.listen()
        self._start(self._hear(self._listener))
        shown, self.view = self.view.take_shown(), View()
        self.view.shown = [*shown, *self._host.describe()]
        self._know_waiting()
        self.refresh()
        self._host.serve()

    def _on_failure(self, error: str) -> None:
        self.view.say(f"the session can not go on: {error}. What waits is kept; the next Enter tries again.", "bad")
        self.refresh()

    def _on_loaded(self, error: BaseException | None) -> None:
        took, self._loading = time.monotonic() - self._loading, 0.0
        text = f"the model could not be loaded: {error}" if error is not None else f"the model is loaded ({took:.1f} s)"
        self.notice(text, "dim" if error is None else "bad")

    def _on_gone(self) -> None:
        """Leave a terminal that does not take what is written."""
        self.call(lambda: self.leave(_HANGUP, "the terminal was closed"))
