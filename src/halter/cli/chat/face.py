"""The chat on a terminal: below what has been said, a picture of what goes on, and the line in which one types.

What is finished is written above the picture once, into the terminal's own scrollback, and never touched again. Events
are heard as they come and drawn together, at most thirty times a second; when nothing happens, nothing runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Final

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.layout import ConditionalContainer, Dimension, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.output.color_depth import ColorDepth

from halter.cli.chat.actions import Actions
from halter.cli.chat.blocks import Block
from halter.cli.chat.commands import Commands
from halter.cli.chat.keys import make_keys
from halter.cli.chat.picture import Picture, elapsed
from halter.cli.chat.terminal import Paper
from halter.cli.chat.view import View
from halter.events import Missed

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
_TICK: Final = 0.5  # between two looks at the clock, while something runs
_ESCAPE: Final = 0.025  # seconds until an Esc is one, and not the beginning of another key; there are two looks
_HANGUP: Final = 129
_LEAST_LINES: Final = 3


class Face:
    """The chat, in the event loop of one thread."""

    def __init__(self, host: Host, terminal: Terminal, leaving: Leaving, *, color: bool) -> None:
        self.view = View()
        self._host = host
        self._terminal = terminal
        self._leaving = leaving
        self._color = color
        self._notice = ("", "dim")
        self._loading = 0.0  # since when a model is
        self._is_ticking = False
        self._height = 0
        self._last_kind = ""  # of what was written last
        self._was_empty = True
        self._listener: Listener = host.session.listen()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.actions = Actions(host, self)
        self._commands = Commands(host, self, self.actions, self._on_switch)
        self._paper = Paper(terminal, self._on_gone)
        self._buffer = Buffer(history=InMemoryHistory(), multiline=True, on_text_changed=self._on_text)
        self._app: Application[None] = Application(
            layout=self._layout(),
            key_bindings=make_keys(self),
            input=create_input(),
            output=self._paper,
            color_depth=ColorDepth.DEPTH_4_BIT if color else ColorDepth.DEPTH_1_BIT,
            erase_when_done=True,
            terminal_size_polling_interval=None,
            before_render=self._before_drawing,
        )
        self._app.ttimeoutlen = self._app.timeoutlen = _ESCAPE
        self._picture = self._make_picture()

    def _layout(self) -> Layout:
        parts: list[Callable[[], list[str]]] = [
            lambda: self._picture.tail(self.view),
            lambda: self._picture.calls(self.view),
            lambda: self._picture.queue(list(self._host.session.inbox), self.view),
            lambda: self._picture.prompt(self.view.prompt, len(self.view.prompts) - 1),
        ]
        typing = Window(
            BufferControl(self._buffer),
            wrap_lines=True,
            dont_extend_height=True,
            height=lambda: Dimension(min=1, max=self._most_lines()),
            get_line_prefix=lambda number, wrapped: "> " if not number and not wrapped else "  ",
        )
        above = [_Part(part) for part in parts]
        below = [_Part(lambda: self._picture.hint(self.line)), _Part(self._draw_notice), _Part(self._draw_status)]
        self._parts = [*above, *below]
        containers = [part.container() for part in self._parts]
        return Layout(HSplit([*containers[: len(above)], typing, *containers[len(above) :]]), focused_element=typing)

    def _most_lines(self) -> int:
        """How many lines of what is typed are shown at once."""
        return max(_LEAST_LINES, self._terminal.size().rows // 3)

    def _make_picture(self) -> Picture:
        size = self._terminal.size()
        return Picture(size.rows, size.columns, color=self._color)

    # -- the screen, for actions and commands ------------------------------------------------------------------------

    @property
    def line(self) -> str:
        """What is being typed."""
        return self._buffer.text

    @line.setter
    def line(self, text: str) -> None:
        self._buffer.set_document(Document(text, len(text)), bypass_readonly=True)

    @property
    def is_leaving(self) -> bool:
        """Whether the program is about to end."""
        return self._leaving.is_begun

    def notice(self, text: str, tone: Tone = "dim") -> None:
        """Say something above the state, until there is something else to say."""
        self._notice = (text, tone)
        self._app.invalidate()

    def remember(self, text: str) -> None:
        """Have a text come back by the arrow keys."""
        self._buffer.history.append_string(text)
        self._empty()

    def refresh(self) -> None:
        """Write above what has come to stay, and draw the picture."""
        self._write(self.view.take_shown())
        self._app.invalidate()

    def leave(self, code: int, why: str) -> None:
        """End the program: say so, wait for what has to end, and go."""
        if not self._leaving.is_begun:
            self._leaving.begin(code, why)
            self.view.say("Shutting down…", "warn")
            self.refresh()
            self._start(self._leave(why))

    def leave_at_once(self) -> None:
        """End the program without waiting for anything. By a signal: it is heard whatever the program is stuck in."""
        os.kill(os.getpid(), signal.SIGINT)

    def enter(self, mode: Mode | None = None) -> None:
        """Send the line, or do what it says."""
        text = self.line
        self._notice = ("", "dim")
        if text.startswith("/") and mode is None:
            self._clear(text)
            self._start(self._commands.run(text))
        elif self.actions.send(text, mode):
            self._clear(text)

    def _clear(self, text: str) -> None:
        if text.strip():
            self._buffer.history.append_string(text)
        self._empty()

    def _empty(self) -> None:
        self._buffer.reset()  # the arrow keys begin again; and nobody is told that the text has changed
        self._was_empty = True

    # -- its life ----------------------------------------------------------------------------------------------------

    async def run(self, greeting: list[Said]) -> None:
        """Run until it is left."""
        self._loop = asyncio.get_running_loop()
        self._host.on_failure = lambda error: self.call(lambda: self._on_failure(str(error)))
        self._know_waiting()
        self.view.shown += greeting
        self._start(self._hear(self._listener))
        with contextlib.suppress(EOFError):
            await self._app.run_async(
                handle_sigint=False, set_exception_handler=False, pre_run=lambda: self._loop_soon(self._begin)
            )
        if not self._leaving.is_begun:  # the terminal was closed
            self._leaving.begin(_HANGUP, "the terminal was closed")
            await self._leave("the terminal was closed")
        for task in self._tasks:
            task.cancel()

    def _loop_soon(self, do: Callable[[], object]) -> None:
        assert self._loop is not None
        self._loop.call_soon(do)

    def _begin(self) -> None:
        """Begin to answer, now that the line is there."""
        self.refresh()
        self._host.serve()
        try:
            loading = self._host.load_model()
        except Exception as error:  # noqa: BLE001  (a boundary: the first answer would fail of it, and says the same)
            self.view.say(str(error), "bad")
            self.refresh()
            return
        if loading is not None and not loading.done():
            self._loading = time.monotonic()
            loading.add_done_callback(lambda done: self.call(lambda: self._on_loaded(done.exception())))
            self._start(self._tick())

    def call(self, do: Callable[[], object]) -> bool:
        """Have something done in the loop, from any thread or a signal's handler; False if there is none any more."""
        try:
            if self._loop is None:
                return False
            self._loop.call_soon_threadsafe(do)
        except RuntimeError:
            return False
        return True

    def say(self, text: str) -> None:
        """Say something that stays."""
        self.view.say(text, "warn")
        self.refresh()

    def resize(self) -> None:
        """Draw for another size."""
        self._picture = self._make_picture()
        self._erase()
        self._app.invalidate()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _leave(self, why: str) -> None:
        await self._leaving.end_session(why, self.actions.late)
        while (event := self._listener.get_nowait()) is not None:
            self._take(event)
        self.refresh()
        if self._app.is_running:
            self._app.exit()

    # -- hearing -----------------------------------------------------------------------------------------------------

    async def _hear(self, listener: Listener) -> None:
        """Hear of one session, as long as it is open."""
        async for event in listener:
            self._take(event)
            while (more := listener.get_nowait()) is not None:
                self._take(more)
            self.refresh()
            if self.view.turn:
                self._keep_time()
            await asyncio.sleep(_FRAME)

    def _take(self, event: Event) -> None:
        if isinstance(event.data, Missed):
            missed = event.data
            for each in self._host.session.events(missed.first - 1):
                if each.seq <= missed.last:
                    self.view.take(each)
        else:
            self.view.take(event)

    def _keep_time(self) -> None:
        if not self._is_ticking:
            self._start(self._tick())

    async def _tick(self) -> None:
        """Show how time passes, as long as somebody waits."""
        if self._is_ticking:
            return
        self._is_ticking = True
        try:
            while self.view.turn or self._loading:
                self._app.invalidate()
                await asyncio.sleep(_TICK)
        finally:
            self._is_ticking = False

    def _know_waiting(self) -> None:
        for letter in self._host.session.inbox:
            self.view.know(letter.id, letter.text, letter.accepted_at)

    def _on_switch(self) -> None:
        self._listener = self._host.session.listen()
        self._start(self._hear(self._listener))
        shown, self.view = self.view.take_shown(), View()
        self.view.shown = shown
        self._know_waiting()
        for said in self._leaving.describe(self._host):
            self.view.shown.append(said)
        self.refresh()
        self._host.serve()

    def _on_text(self, _buffer: Buffer) -> None:
        is_empty = not self.line
        if self._was_empty and not is_empty:
            self.actions.begin_line()
        self._was_empty = is_empty

    def _on_failure(self, error: str) -> None:
        self.view.say(f"the session can not go on: {error}. What waits is kept; the next Enter tries again.", "bad")
        self.refresh()

    def _on_loaded(self, error: BaseException | None) -> None:
        took, self._loading = time.monotonic() - self._loading, 0.0
        text = f"the model could not be loaded: {error}" if error is not None else f"the model is loaded ({took:.1f} s)"
        self.notice(text, "dim" if error is None else "bad")

    def _on_gone(self) -> None:
        """Leave a terminal that does not take what is written."""
        if not self._leaving.is_begun:
            self._loop_soon(lambda: self.leave(_HANGUP, "the terminal was closed"))

    # -- drawing -----------------------------------------------------------------------------------------------------

    def _draw_notice(self) -> list[str]:
        text, tone = self._notice
        return self._picture.pen.say(text, tone, "  ") if text else []

    def _draw_status(self) -> list[str]:
        doing = "shutting down" if self.is_leaving else ""
        if self._loading and not doing:
            doing = f"loading the model, {elapsed(time.monotonic() - self._loading)}"
        return [self._picture.status(self.view, self._host.agent.model.name, doing)]

    def _write(self, shown: list[Shown]) -> None:
        lines: list[str] = []
        pen = self._picture.pen
        for each in shown:
            kind = "block" if isinstance(each, Block) else "user" if each.tone == "user" else "note"
            if self._last_kind and _needs_gap(self._last_kind, kind, each):
                lines.append("")
            self._last_kind = kind
            lines += pen.block(each) if isinstance(each, Block) else pen.say(each.text, each.tone, each.lead)
        if lines:
            self._erase()
            self._paper.write_raw("\r\n".join([*lines, ""]))

    def _erase(self) -> None:
        """Take the picture away; what takes its place is written together with that, by the next drawing."""
        self._paper.is_held = True
        self._app.renderer.erase(leave_alternate_screen=False)
        self._height = 0

    def _before_drawing(self, _app: Application[None]) -> None:
        """Have each part drawn once. A picture that has become lower would keep its height: it is taken away before."""
        typed = self._buffer.document.line_count + len(self.line) // self._picture.pen.width
        height = sum(part.draw() for part in self._parts) + min(typed, self._most_lines())
        if height < self._height:
            self._erase()
        self._height = height
        self._paper.is_held = False


def _needs_gap(last: str, kind: str, shown: Shown) -> bool:
    """Whether there is an empty line in front of something, by what was written last."""
    if isinstance(shown, Block):
        return not shown.continues
    return last != kind and not (last == "user" and shown.lead == "↳ ")


class _Part:
    """Some lines of the picture, which may be none."""

    def __init__(self, lines: Callable[[], list[str]]) -> None:
        self._lines = lines
        self._drawn: list[str] = []

    def draw(self) -> int:
        """Draw it anew; gives the number of its lines."""
        self._drawn = self._lines()
        return len(self._drawn)

    def container(self) -> ConditionalContainer:
        """Its place in the layout."""
        control = FormattedTextControl(lambda: ANSI("\n".join(self._drawn)))
        window = Window(control, height=Dimension(min=0), dont_extend_height=True)
        return ConditionalContainer(window, filter=Condition(lambda: bool(self._drawn)))
