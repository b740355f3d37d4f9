"""The chat without a terminal: each line is a message or a command, and the end of the input ends the chat.

Answers are plain text on standard output, everything else is on standard error. A line that comes while a turn runs is
queued, and the next line waits until that one has started, so each line has a turn of its own; /steer and /stop act on
the running turn. At the end of the input, queued messages are still answered.
One thread reads, one writes, and the main thread runs the lines, so a slow output does not delay the
running turn; the next line may wait for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING, Final

from halter.cancel import ExitGuard
from halter.cancel.loop_bridge import run_in_thread
from halter.cli.agent_factory import start_lines
from halter.cli.chat.actions import Actions
from halter.cli.chat.notices import Notice
from halter.cli.chat.screen.live_area import approval_hint
from halter.cli.chat.screen.transcript import ChatTranscript
from halter.cli.chat.session_host import SessionHost
from halter.cli.chat.shutdown import Shutdown
from halter.cli.chat.slash_commands import SlashCommands
from halter.cli.chat.welcome import welcome
from halter.cli.commands.sessions import NotFound, find_session, wanted_session
from halter.cli.model_choice import NoModel, choose_model
from halter.cli.output import EXIT_PIPE_CLOSED, Output, print_error
from halter.cli.settings import SettingsError
from halter.errors import HalterError
from halter.models.errors import ModelError
from halter.session.subscription import Subscription, with_missed
from halter.stores import SQLiteStore
from halter.views.items import Question, TextItem

if TYPE_CHECKING:
    import argparse
    from collections.abc import Coroutine
    from typing import Any

    from halter.cli.chat.screen.styling import Tone
    from halter.cli.settings import Configuration
    from halter.events import Event
    from halter.session.session import Session
    from halter.stores.base import Store

__all__ = ["run_line_mode"]

_WIDTH: Final = 80
_URGENT: Final = ("/stop", "/steer", "/quit")  # these do not wait for the previous line


def run_line_mode(configuration: Configuration, options: argparse.Namespace) -> int:
    """Run the chat. Returns the exit code. A boundary: errors are printed in one line."""
    output = Output()
    with ExitGuard(configuration.settings.exit_timeout, say=output.announce) as guard:
        try:
            with guard.hold_signals():
                choice = choose_model(configuration)
            with SQLiteStore(configuration.make_store()) as store:
                session_id = _requested_session(options, store)
                can_ask = sys.stdin is not None and sys.stdin.isatty()
                with guard.hold_signals():
                    host = SessionHost(configuration, choice, store, session_id, can_ask=can_ask)
                if can_ask:
                    lines = welcome(configuration, choice, host.agent)
                else:
                    lines = start_lines(configuration, choice, is_script=True)
                for line in lines:
                    output.say(line)
                chat = _LineMode(host, Shutdown(guard, host), output)
                guard.on_signal = chat.on_signal
                code = asyncio.run(chat.run())
        except (HalterError, NoModel, NotFound, OSError, SettingsError) as error:
            code = print_error(error)
        sys.exit(code)
    return 0


def _requested_session(options: argparse.Namespace, store: Store) -> str | None:
    """The session that the options mean; None for a new one. Raises `NotFound`."""
    if options.resume is None:
        return wanted_session(store, options.session, latest=options.latest)
    if not options.resume:
        raise NotFound("without a terminal, --resume needs a session id; `halter sessions` lists them")
    return find_session(store, options.resume)


class _LineMode:
    """The chat in line mode."""

    width = _WIDTH
    theme = "dark"

    def __init__(self, host: SessionHost, shutdown: Shutdown, output: Output) -> None:
        self.line = ""  # for commands that put text back into the input line
        self.transcript = ChatTranscript()
        self._host = host
        self._shutdown = shutdown
        self._output = output
        self._actions = Actions(host, self)
        self._actions.busy = "queue"  # lines of a script are not corrections of a running turn
        self._commands = SlashCommands(host, self, self._actions)
        self._listener: Subscription = host.session.subscribe()
        self._input_ended = False
        self._previous_turn = host.session.turn  # the last turn before this run
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: threading.Thread | None = None

    async def run(self) -> int:
        """Run all lines; returns the exit code."""
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._changed = asyncio.Event()  # an event of the session was written
        self._host.on_failure = lambda error: self._call(lambda: self._on_failure(error))
        self._start_writer()
        threading.Thread(target=self._read, name="halter-chat-read", daemon=True).start()
        self._host.serve()
        self.load_model()
        self._start(self._run_lines())
        await self._finished
        self._listener.close()
        assert self._writer is not None
        await self._shutdown.wait_for("the answer to be read", self._writer.join)
        for line in self._shutdown.lines:
            self._output.say(line)
        return self._shutdown.code

    # -- the screen, for actions and commands ------------------------------------------------------------------------

    @property
    def is_shutting_down(self) -> bool:
        """Whether the program is about to end."""
        return self._shutdown.has_begun

    def notice(self, text: str, tone: Tone = "dim") -> None:
        """Print warnings and errors only."""
        if text and tone != "dim":
            self._output.say(text)

    def refresh(self) -> None:
        """Write the new notices; the answer itself is written as it comes."""
        self._say_finished(self.transcript)

    def _say_finished(self, transcript: ChatTranscript) -> None:
        for each in transcript.take_finished():
            if isinstance(each, Notice) and each.tone != "user":
                self._output.say(f"{each.lead}{each.text}")

    def clear_line(self) -> None:
        """Clear the line."""
        self.line = ""

    def use_theme(self, theme: str) -> None:
        """Nothing to do: there are no colours."""

    def load_model(self) -> None:
        """Start to load a model that runs on this machine, and say so."""
        try:
            loading = self._host.load_model()
        except ModelError as error:
            self._output.say(f"halter: {error}")
            return
        if loading is not None and not loading.done():
            self._output.say("Loading the model…")

    def quit(self, code: int, why: str) -> None:
        """End the program."""
        if not self._shutdown.has_begun:
            self._shutdown.begin(code, why)
            self._start(self._shut_down(why))

    def quit_now(self) -> None:
        """Nothing to do: the exit guard handles a second signal by itself."""

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read lines, in a thread. Not by `sys.stdin`: its lock would block the exit while a read waits."""
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
                self._enqueue(line)
        if rest:
            self._enqueue(rest)
        self._call(lambda: self._lines.put_nowait(None))

    def _enqueue(self, line: bytes) -> None:
        text = line.decode("utf-8", "replace").rstrip("\r")
        self._call(lambda: self._lines.put_nowait(text))

    async def _run_lines(self) -> None:
        while (text := await self._lines.get()) is not None:
            await self._until_next(is_urgent=text.startswith(_URGENT))
            if text.startswith("/"):
                await self._commands.run(text)
            elif text.strip() or self.transcript.pages_left(self.transcript.display.question):
                self._actions.begin_line()
                self._actions.send(text)
        self._input_ended = True
        self._stop_unanswerable()
        await self._until_answered()
        # All is answered, so the reader may take its time; a signal does not wait for this.
        self._listener.close()
        assert self._writer is not None
        await run_in_thread(self._writer.join)
        turn = self._host.session.turn
        has_failed = turn is not None and turn is not self._previous_turn and turn.status == "failed"
        self.quit(int(has_failed), "the end of the input")

    async def _until_next(self, *, is_urgent: bool) -> None:
        """Wait until the previous line has started its turn, or a question is open that this one may answer.

        An urgent line is meant for the running turn, if there is one.
        """
        session = self._host.session
        while session.inbox.ready() and not self.transcript.display.questions and not self.is_shutting_down:
            if is_urgent and session.is_running:
                return
            self._changed.clear()
            await self._changed.wait()

    async def _until_answered(self) -> None:
        session = self._host.session
        while not self._shutdown.has_begun:
            ready = session.inbox.ready()
            turn = session.turn
            if ready:
                await session.receipt(ready[0].id).settled_async()
            elif session.is_running and turn is not None:
                await turn.ended.wait_async()
            elif not ready:
                return

    def _stop_unanswerable(self) -> None:
        """Stop a turn that asks a question after the end of the input."""
        if self._input_ended and self.transcript.display.questions and self._host.session.questions:
            self._host.session.stop(detail="nobody can answer")

    # -- writing -----------------------------------------------------------------------------------------------------

    def _start_writer(self) -> None:
        """Start to write the host's session, behind what is left of the previous one."""
        for pending in self._host.session.inbox:
            self.transcript.display.expect(pending)
        arguments = (self._host.session, self._listener, self.transcript, self._writer)
        self._writer = threading.Thread(target=self._write_all, args=arguments, name="halter-chat-write", daemon=True)
        self._writer.start()

    def _write_all(
        self, session: Session, listener: Subscription, transcript: ChatTranscript, previous: threading.Thread | None
    ) -> None:
        """Write the events of one session, in a thread."""
        if previous is not None:
            previous.join()
        try:
            while (event := listener.get()) is not None:
                for each in with_missed(session, event):
                    self._write(each, transcript)
            self._output.end_line()
        except OSError:
            self._call(lambda: self.quit(EXIT_PIPE_CLOSED, "the output was closed"))

    def _write(self, event: Event, transcript: ChatTranscript) -> None:
        item = transcript.apply(event)
        if isinstance(item, TextItem):
            self._output.write(item.chunks[-1])
            return
        if event.kind in ("request.started", "turn.finished"):
            self._output.end_line()
        self._say_finished(transcript)
        self._call(self._changed.set)
        if isinstance(item, Question) and item.state == "open":
            if item.kind == "approval":
                self._output.say(approval_hint(item, transcript.pages_left(item)))
            else:
                choices = "".join(f"\n  {number}. {each}" for number, each in enumerate(item.choices or (), 1))
                self._output.say(f"? {item.text}{choices}")
            self._call(self._stop_unanswerable)

    # -- the end -----------------------------------------------------------------------------------------------------

    def on_signal(self, number: int) -> bool:
        """Quit, in a signal handler."""
        return self._call(lambda: self.quit(128 + number, "a signal"))

    def show_session(self) -> None:
        """Continue with the host's session."""
        self._listener.close()  # the writer still writes what is queued
        self._listener = self._host.session.subscribe()
        self.transcript = ChatTranscript()
        self._start_writer()
        for notice in self._host.describe():
            self._output.say(notice.text)
        self._host.serve()

    def _on_failure(self, error: HalterError) -> None:
        self._output.say(f"halter: {error}")
        self.quit(1, "the store failed")

    async def _shut_down(self, why: str) -> None:
        await self._shutdown.end_session(why, self._actions.late)
        if not self._finished.done():
            self._finished.set_result(None)

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
