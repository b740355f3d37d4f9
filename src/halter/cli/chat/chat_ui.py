"""The terminal UI of the chat.

Events are collected and drawn together, at most thirty times a second; when nothing happens, nothing is drawn.
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
from halter.cli.chat.key_bindings import make_keys
from halter.cli.chat.screen_layout import ScreenLayout
from halter.cli.chat.slash_commands import Commands
from halter.cli.chat.styling import warm_up
from halter.cli.chat.transcript import Transcript
from halter.events import Missed, TurnFinished
from halter.events.tools import ToolProgress
from halter.models.errors import ModelError
from halter.views.text import elapsed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from halter.cli.chat.notices import Notice
    from halter.cli.chat.session_host import SessionHost
    from halter.cli.chat.shutdown import Shutdown
    from halter.cli.chat.styling import Tone
    from halter.cli.chat.terminal import Terminal
    from halter.cli.chat.transcript import Finished
    from halter.events import Event, Mode
    from halter.session.subscription import Subscription

__all__ = ["ChatUI"]

_FRAME: Final = 1 / 30
_SLOW_FRAME: Final = 1 / 10  # if there is only progress of calls
_SLICE: Final = 0.004  # seconds of drawing before keys are handled: an answer may come all at once
_BREATH: Final = 0.004
_TICK: Final = 0.5  # seconds between updates of the clock while a turn runs
_HANGUP: Final = 129


class ChatUI:
    """The chat, in the event loop of one thread."""

    def __init__(self, host: SessionHost, terminal: Terminal, shutdown: Shutdown, *, color: bool) -> None:
        self.transcript = Transcript()
        self._host = host
        self._shutdown = shutdown
        self._unwritten: list[Finished] = []  # finished, but not written yet
        self._is_behind = False
        self._notice: tuple[str, Tone] = ("", "dim")
        self._loading = 0.0  # when loading a model began
        self._is_ticking = False
        self._listener: Subscription = host.session.subscribe()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self.actions = Actions(host, self)
        self._commands = Commands(host, self, self.actions)
        self._layout = ScreenLayout(
            terminal,
            above=(
                lambda: [""],  # an empty line below the conversation
                lambda: self._layout.live_area.tail(self.transcript),
                lambda: self._layout.live_area.calls(self.transcript),
                lambda: self._layout.live_area.queue(self.transcript),
                self._draw_question,
            ),
            below=(lambda: self._layout.live_area.hint(self.line), self._draw_notice, self._draw_status),
            color=color,
            on_begin=self.actions.begin_line,
            on_gone=self._on_gone,
        )
        self._app = self._layout.make_app(make_keys(self))

    def _draw_question(self) -> list[str]:
        display = self.transcript.display
        question = display.question
        left = self.transcript.pages_left(question)
        return self._layout.live_area.question(question, len(display.questions) - 1, left)

    def _draw_notice(self) -> list[str]:
        text, tone = self._notice
        return self._layout.live_area.styler.say(text, tone, "  ") if text else []

    def _draw_status(self) -> list[str]:
        doing = "shutting down" if self.is_shutting_down else ""
        if self._loading and not doing:
            doing = f"loading the model, {elapsed(time.monotonic() - self._loading)}"
        return [self._layout.live_area.status(self.transcript, self._host.agent.model.name, doing)]

    # -- the screen, for actions and commands ------------------------------------------------------------------------

    @property
    def line(self) -> str:
        """The text of the input line."""
        return self._layout.line

    @line.setter
    def line(self, text: str) -> None:
        self._layout.line = text

    @property
    def width(self) -> int:
        """The usable columns."""
        return self._layout.live_area.styler.width

    @property
    def is_shutting_down(self) -> bool:
        """Whether the program is about to end."""
        return self._shutdown.has_begun

    def notice(self, text: str, tone: Tone = "dim") -> None:
        """Show a notice above the status line, until the next one."""
        self._notice = (text, tone)
        self._layout.draw()

    def clear_line(self) -> None:
        """Clear the input line; the arrow keys bring it back."""
        self._layout.empty_line(self.line)

    def refresh(self) -> None:
        """Write what is finished, and draw the live area."""
        self._unwritten = self._layout.write([*self._unwritten, *self.transcript.take_finished()], _SLICE)
        self._layout.draw()
        if self._unwritten and self._loop is not None and not self._is_behind:
            self._is_behind = True
            self._loop.call_later(_BREATH, self._catch_up)

    def _catch_up(self) -> None:
        self._is_behind = False
        self.refresh()

    def leave(self, code: int, why: str) -> None:
        """End the program: say so, close the session, and exit."""
        if not self._shutdown.has_begun:
            self._shutdown.begin(code, why)
            if why not in signal.Signals.__members__:  # the exit guard announces signals
                self.say("Shutting down…")
            self._ending = self._start(self._leave(why))

    def leave_at_once(self) -> None:
        """End the program at once, by a signal, which works whatever the program is stuck in."""
        os.kill(os.getpid(), signal.SIGINT)

    def enter(self, mode: Mode | None = None) -> None:
        """Send the line, or run it as a command."""
        text = self.line
        self._notice = ("", "dim")
        if text.startswith("/") and mode is None:
            self.clear_line()
            self.actions.leave_edit()
            self._start(self._commands.run(text))
        elif self.actions.send(text, mode):
            self.clear_line()

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self, greeting: list[Notice]) -> None:
        """Run until the user quits."""
        loop = self._loop = asyncio.get_running_loop()
        self._host.on_failure = lambda error: self.call(lambda: self._on_failure(str(error)))
        self._know_waiting()
        self.transcript.finished += greeting
        self._start(self._follow(self._listener))
        loop.call_soon(self._begin)  # after the first drawing
        with contextlib.suppress(EOFError):  # the terminal was closed
            await self._app.run_async(handle_sigint=False, set_exception_handler=False)
        if self._ending is None:
            self._shutdown.begin(_HANGUP, "the terminal was closed")
            self._ending = self._start(self._leave("the terminal was closed"))
        await self._ending  # the terminal may be closed meanwhile
        if self.line.strip():
            self._shutdown.lines.append(f"Not sent: {self.line}")
        for task in self._tasks:
            task.cancel()

    def _begin(self) -> None:
        """Start to serve the session, once the input line is shown."""
        self.refresh()
        self._host.serve()
        threading.Thread(target=warm_up, name="halter-chat-warm-up", daemon=True).start()
        self.load_model()

    def load_model(self) -> None:
        """Start to load a model that runs on this machine, and show that."""
        try:
            loading = self._host.load_model()
        except ModelError as error:
            self.transcript.say(str(error), "bad")
            self.refresh()
            return
        if loading is not None and not loading.done():
            self._loading = time.monotonic()
            loading.add_done_callback(lambda done: self.call(lambda: self._on_loaded(done.exception())))
            self._keep_time()

    def call(self, do: Callable[[], object]) -> bool:
        """Call something in the loop, from any thread or signal handler; False if the loop has ended."""
        try:
            if self._loop is None:
                return False
            self._loop.call_soon_threadsafe(do)
        except RuntimeError:
            return False
        return True

    def say(self, text: str, tone: Tone = "warn") -> None:
        """Write a notice that stays."""
        self.transcript.say(text, tone)
        self.refresh()

    def resize(self) -> None:
        """Draw for a new size of the terminal."""
        self._layout.resize()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _leave(self, why: str) -> None:
        try:
            await self._shutdown.end_session(why, self.actions.late)
            while (event := self._listener.get_nowait()) is not None:
                self._take(event)
            self._unwritten = self._layout.write([*self._unwritten, *self.transcript.take_finished()])
        finally:
            if self._app.is_running:
                self._app.exit()

    # -- events ------------------------------------------------------------------------------------------------------

    async def _follow(self, listener: Subscription) -> None:
        """Take the events of one session, as long as it is open."""
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
            self._notice = ("", "dim")  # a notice about the turn is outdated
        if isinstance(event.data, Missed):
            missed = event.data
            for each in self._host.session.events(missed.first - 1):
                if each.seq <= missed.last:
                    self.transcript.apply(each)
        else:
            self.transcript.apply(event)

    def _keep_time(self) -> None:
        if not self._is_ticking and self._is_awaited:
            self._is_ticking = True
            self._start(self._tick())

    @property
    def _is_awaited(self) -> bool:
        return self.transcript.display.running is not None or bool(self._loading)

    async def _tick(self) -> None:
        """Update the clock while something runs."""
        while self._is_awaited:
            self._layout.draw()
            await asyncio.sleep(_TICK)
        self._is_ticking = False

    def _know_waiting(self) -> None:
        for pending in self._host.session.inbox:
            self.transcript.display.expect(pending)

    def show_session(self) -> None:
        """Show another session from now on."""
        self._listener = self._host.session.subscribe()
        self._start(self._follow(self._listener))
        shown, self.transcript = self.transcript.take_finished(), Transcript()
        self.transcript.finished = [*shown, *self._host.describe()]
        self._know_waiting()
        self.refresh()
        self._host.serve()

    def _on_failure(self, error: str) -> None:
        self.transcript.say(f"the session failed: {error}. Queued messages are kept; press Enter to try again.", "bad")
        self.refresh()

    def _on_loaded(self, error: BaseException | None) -> None:
        took, self._loading = time.monotonic() - self._loading, 0.0
        text = f"the model could not be loaded: {error}" if error is not None else f"the model is loaded ({took:.1f} s)"
        self.notice(text, "dim" if error is None else "bad")

    def _on_gone(self) -> None:
        """Quit if the terminal accepts no output."""
        self.call(lambda: self.leave(_HANGUP, "the terminal was closed"))
