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
from halter.cli.chat.attention import REPORT_FOCUS, REPORT_NO_FOCUS, Attention
from halter.cli.chat.input_line.completion import common_prefix, complete
from halter.cli.chat.input_line.history import InputHistory
from halter.cli.chat.input_line.key_bindings import make_keys
from halter.cli.chat.screen.layout import ScreenLayout
from halter.cli.chat.screen.styling import find_theme, warm_up
from halter.cli.chat.screen.transcript import ChatTranscript
from halter.cli.chat.slash_commands import SlashCommands
from halter.cli.chat.user_command import UserCommandRun
from halter.events import (
    ChildFinished,
    ContextCompacted,
    MessageApplied,
    Missed,
    RequestCancelled,
    RequestFinished,
    ToolFinished,
    ToolProgress,
    TurnFinished,
    TurnRolledBack,
)
from halter.models.errors import ModelError
from halter.session.subscription import Subscription, with_missed
from halter.views.text import elapsed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from halter.cli.chat.notices import Notice
    from halter.cli.chat.screen.status_line import SessionFigures
    from halter.cli.chat.screen.styling import Tone
    from halter.cli.chat.screen.terminal import TerminalDevice
    from halter.cli.chat.screen.transcript import Finished
    from halter.cli.chat.session_host import SessionHost
    from halter.cli.chat.shutdown import Shutdown
    from halter.events import Event, Mode

__all__ = ["ChatUI"]

_FRAME: Final = 1 / 30  # seconds between two frames
_SLOW_FRAME: Final = 1 / 10  # if there is only progress of calls
_SLICE: Final = 0.004  # seconds of drawing before keys are handled: an answer may come all at once
_SLICE_PAUSE: Final = 0.004  # seconds between two slices
_CLOCK_INTERVAL: Final = 0.5  # seconds between updates of the clock while a turn runs
_EXIT_HANGUP: Final = 129  # 128 + SIGHUP
# Events after which the figures of the status line are counted again.
_FIGURE_EVENTS: Final = (
    ChildFinished,
    ContextCompacted,
    MessageApplied,
    Missed,
    RequestCancelled,
    RequestFinished,
    ToolFinished,
    TurnFinished,
    TurnRolledBack,
)


class ChatUI:
    """The chat, in the event loop of one thread."""

    def __init__(self, host: SessionHost, terminal: TerminalDevice, shutdown: Shutdown, *, color: bool) -> None:
        self.transcript = ChatTranscript()
        self._host = host
        self._terminal = terminal
        self._user_command: UserCommandRun | None = None
        self._is_suspended = False
        self._shutdown = shutdown
        self._unwritten: list[Finished] = []  # finished, but not written yet
        self._is_behind = False
        self._notice: tuple[str, Tone] = ("", "dim")
        self._loading = 0.0  # when loading a model began
        self._clock_is_running = False
        self._known_figures: SessionFigures | None = None
        self._session = host.session  # that is shown
        self._listener: Subscription = self._session.subscribe()
        self._following: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._shutdown_task: asyncio.Task[None] | None = None
        self.actions = Actions(host, self)
        self._commands = SlashCommands(host, self, self.actions)
        self._layout = ScreenLayout(
            terminal,
            above=(
                lambda: [""],  # an empty line below the conversation
                lambda: self._layout.live_area.tail(self.transcript),
                lambda: self._layout.live_area.calls(self.transcript),
                lambda: self._layout.live_area.children(self.transcript),
                lambda: self._layout.live_area.queue(self.transcript),
                self._draw_question,
            ),
            below=(
                lambda: self._layout.live_area.hint(self._layout.before_cursor),
                self._draw_notice,
                self._draw_status,
            ),
            color=color,
            theme=find_theme(host.configuration.settings.theme),
            history=InputHistory(host.configuration.paths.data / "history.jsonl"),
            on_begin=self.actions.begin_line,
            on_closed=self._on_terminal_closed,
        )
        keys = make_keys(self)
        self._attention = Attention(terminal)
        self._attention.bind(keys)
        self._app = self._layout.make_app(keys)

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
        return [self._layout.live_area.status(self.transcript, self._figures(), doing)]

    def _figures(self) -> SessionFigures:
        """The figures of the status line. They are counted again when an event has changed them."""
        if self._known_figures is None:
            self._known_figures = self._host.figures()
        return self._known_figures

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
        """Write what is finished, and draw the live area; later, if a command of the user has the terminal."""
        if self._is_suspended:
            return
        self._unwritten = self._layout.write([*self._unwritten, *self.transcript.take_finished()], _SLICE)
        self._layout.draw()
        if self._unwritten and self._loop is not None and not self._is_behind:
            self._is_behind = True
            self._loop.call_later(_SLICE_PAUSE, self._catch_up)

    def _catch_up(self) -> None:
        self._is_behind = False
        self.refresh()

    def quit(self, code: int, why: str) -> None:
        """End the program: say so, close the session, and exit."""
        if not self._shutdown.has_begun:
            self._shutdown.begin(code, why)
            if why not in signal.Signals.__members__:  # a signal was announced before
                self.say("Shutting down…")
            if self._user_command is not None:
                self._user_command.hang_up()
            self._shutdown_task = self._start(self._shut_down(why))

    def quit_now(self) -> None:
        """End the program at once, by a signal, which works whatever the program is stuck in."""
        os.kill(os.getpid(), signal.SIGINT)

    def enter(self, mode: Mode | None = None) -> None:
        """Send the line, or run it as a command."""
        text = self.line
        self._notice = ("", "dim")
        work = self._line_command(text) if mode is None else None
        if work is not None:
            self.clear_line()
            self.actions.cancel_edit()
            self._start(work)
        elif self.actions.send(text, mode):
            self.clear_line()

    def _line_command(self, text: str) -> Coroutine[Any, Any, None] | None:
        """The work of a line that is not a message: a command of the chat, one for the shell, or a note."""
        if text.startswith("/"):
            return self._commands.run(text)
        is_one_line = "\n" not in text and bool(text[1:].strip())
        if text.startswith("!") and is_one_line:
            return self._run_user_command(text[1:].strip())
        if text.startswith("#") and is_one_line:
            return self.actions.remember(text[1:].strip())
        return None

    async def _run_user_command(self, command: str) -> None:
        """Give the terminal to a command of the user until it ends. Its output is sent with the next message."""
        if self._user_command is not None or self.is_shutting_down:
            return
        self.transcript.say(command, "user", "! ")
        self._unwritten = self._layout.write([*self._unwritten, *self.transcript.take_finished()])
        async with self._layout.suspended():
            self._is_suspended = True
            try:
                self._terminal.write(REPORT_NO_FOCUS)
                self._user_command = UserCommandRun(command, self._terminal)
                ran = await self._user_command.run()
            except OSError as error:
                self.transcript.say(f"!{command}: {error}", "bad")
            else:
                self.actions.add_output(ran)
            finally:
                self._is_suspended, self._user_command = False, None
                self._terminal.write(REPORT_FOCUS)
        self.refresh()

    def complete_line(self) -> None:
        """Complete a command or a file before the cursor; a Tab sends nothing."""
        found = complete(self._layout.before_cursor, deep=True)
        if found is None or not found.found:
            self.notice("Tab completes /commands and @files; Alt+Enter queues a message")
            return
        is_only = len(found.found) == 1 and not found.found[0].endswith(("/", '/"'))
        self._layout.replace_before_cursor(found.start, common_prefix(found.found) + (" " if is_only else ""))

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self, greeting: list[Notice], typed: str = "") -> None:
        """Run until the user quits. *typed* are keys of the early prompt, which come first."""
        loop = self._loop = asyncio.get_running_loop()
        self._host.on_failure = lambda error: self.call(lambda: self._on_failure(str(error)))
        self._show_inbox()
        self.transcript.finished += greeting
        self._layout.feed_keys(typed)
        self._following = self._start(self._follow(self._listener))
        loop.call_soon(self._start_session)  # after the first drawing
        self._terminal.write(REPORT_FOCUS)
        with contextlib.suppress(EOFError):  # the terminal was closed
            await self._app.run_async(handle_sigint=False, set_exception_handler=False)
        self._terminal.write(REPORT_NO_FOCUS)
        if self._shutdown_task is None:
            self._shutdown.begin(_EXIT_HANGUP, "the terminal was closed")
            self._shutdown_task = self._start(self._shut_down("the terminal was closed"))
        await self._shutdown_task  # the terminal may be closed meanwhile
        if self.line.strip():
            self._shutdown.lines.append(f"Not sent: {self.line}")
        for task in self._tasks:
            task.cancel()

    def _start_session(self) -> None:
        """Start to serve the session, once the input line is shown."""
        self.refresh()
        self._host.serve()
        threading.Thread(target=warm_up, name="halter-chat-warm-up", daemon=True).start()
        self.load_model()

    def show_output(self) -> None:
        """Show all of the last call's output."""
        if not self.transcript.show_output():
            self.notice("no further tool output to show")
        self.refresh()

    @property
    def theme(self) -> str:
        """The theme of the colours."""
        return self._layout.theme

    def use_theme(self, theme: str) -> None:
        """Use other colours from now on."""
        self._layout.theme = theme

    def load_model(self) -> None:
        """Start to load a model that runs on this machine, and show that."""
        self._known_figures = None
        try:
            loading = self._host.load_model()
        except ModelError as error:
            self.transcript.say(str(error), "bad")
            self.refresh()
            return
        if loading is not None and not loading.done():
            self._loading = time.monotonic()
            loading.add_done_callback(lambda done: self.call(lambda: self._on_loaded(done.exception())))
            self._start_clock()

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
        if self._user_command is not None:
            self._user_command.resize()
        else:
            self._layout.resize()

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _shut_down(self, why: str) -> None:
        try:
            await self._shutdown.end_session(why, self.actions.late, self.actions.take_outputs())
            self._apply_rest()
            self._unwritten = self._layout.write([*self._unwritten, *self.transcript.take_finished()])
        finally:
            if self._app.is_running:
                self._app.exit()

    # -- events ------------------------------------------------------------------------------------------------------

    async def _follow(self, listener: Subscription) -> None:
        """Apply the events of one session until it is closed."""
        async for event in listener:
            self._apply(event)
            needs_frame = not isinstance(event.data, ToolProgress)
            while (more := listener.get_nowait()) is not None:
                self._apply(more)
                needs_frame = needs_frame or not isinstance(more.data, ToolProgress)
            self.refresh()
            self._start_clock()
            await asyncio.sleep(_FRAME if needs_frame else _SLOW_FRAME)

    def _apply(self, event: Event) -> None:
        if isinstance(event.data, _FIGURE_EVENTS):
            self._known_figures = None
        if isinstance(event.data, TurnFinished):
            self._notice = ("", "dim")  # a notice about the turn is outdated
        for each in with_missed(self._session, event):
            self.transcript.apply(each)
        if not isinstance(event.data, Missed):
            self._attention.notify(event, self.transcript)

    def _apply_rest(self) -> None:
        """Apply the events that the follower has not read yet."""
        while (event := self._listener.get_nowait()) is not None:
            self._apply(event)

    def _start_clock(self) -> None:
        if not self._clock_is_running and self._needs_clock:
            self._clock_is_running = True
            self._start(self._run_clock())

    @property
    def _needs_clock(self) -> bool:
        return self.transcript.display.running is not None or bool(self._loading)

    async def _run_clock(self) -> None:
        """Draw the clock again and again while something runs."""
        while self._needs_clock:
            self._layout.draw()
            await asyncio.sleep(_CLOCK_INTERVAL)
        self._clock_is_running = False

    def _show_inbox(self) -> None:
        for pending in self._host.session.inbox:
            self.transcript.display.expect(pending)

    def show_session(self) -> None:
        """Show the host's session from now on. Events of the previous one never reach the new transcript."""
        if self._following is not None:
            self._following.cancel()
        self._apply_rest()
        self._listener.close()
        self._session = self._host.session
        self._listener = self._session.subscribe()
        self._following = self._start(self._follow(self._listener))
        shown, self.transcript = self.transcript.take_finished(), ChatTranscript()
        self.transcript.finished = [*shown, *self._host.describe()]
        self._known_figures = None
        self._show_inbox()
        self.refresh()
        self._host.serve()

    def _on_failure(self, error: str) -> None:
        self.transcript.say(f"the session failed: {error}. Queued messages are kept; press Enter to try again.", "bad")
        self.refresh()

    def _on_loaded(self, error: BaseException | None) -> None:
        took, self._loading = time.monotonic() - self._loading, 0.0
        text = f"the model could not be loaded: {error}" if error is not None else f"the model is loaded ({took:.1f} s)"
        self.notice(text, "dim" if error is None else "bad")

    def _on_terminal_closed(self) -> None:
        """Quit if the terminal accepts no output."""
        self.call(lambda: self.quit(_EXIT_HANGUP, "the terminal was closed"))
