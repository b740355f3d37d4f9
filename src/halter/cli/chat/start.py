"""`halter` without a command: the chat, from its first line to its exit code.

Three threads. The main one opens everything and then only waits, to handle signals. One draws and handles keys, first
for the early prompt and then for the chat. The session is served on Halter's own loop. No thread waits for another
without a time limit.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

from halter.cancel import ExitGuard
from halter.cancel.exit import announcement
from halter.cancel.one_shot_event import OneShotEvent
from halter.cli.chat.input_line.early_prompt import EarlyPrompt
from halter.cli.output import may_color, print_error
from halter.cli.settings import SettingsError, flags_of, load
from halter.views.text import strip_controls

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from types import FrameType
    from typing import TextIO

    from halter.cli.chat.chat_ui import ChatUI
    from halter.cli.chat.notices import Notice
    from halter.cli.chat.screen.terminal import TerminalDevice
    from halter.cli.chat.session_host import SessionHost
    from halter.cli.model_choice import ModelChoice
    from halter.cli.settings import Configuration
    from halter.stores.base import Store

__all__ = ["open_chat"]

# Imports make many objects and no garbage: a collection for every 700 of them would take a tenth of the start.
_GC_THRESHOLD: Final = 50_000
_MAX_SESSIONS: Final = 100  # to choose from
# Seconds. The thread that draws must not wait long for threads that compute; Python's default is longer.
_SWITCH_INTERVAL: Final = 0.002


def open_chat(options: argparse.Namespace) -> int:
    """Run the chat. Returns the exit code."""
    try:
        configuration = load(flags_of(options))
    except SettingsError as error:
        return print_error(error)
    gc.set_threshold(_GC_THRESHOLD)
    # Windows consoles are not supported.
    is_plain = options.plain or os.environ.get("TERM") == "dumb" or os.name != "posix"
    if is_plain or not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        from halter.cli.chat.line_mode import run_line_mode

        return run_line_mode(configuration, options)
    from halter.cli.chat.screen.terminal import TerminalDevice

    sys.setswitchinterval(_SWITCH_INTERVAL)
    with TerminalDevice() as terminal:
        exit_messages = _ExitMessages(terminal)
        with ExitGuard(configuration.settings.exit_timeout, say=exit_messages.say) as guard:
            code = _Chat(guard, terminal, exit_messages, configuration).run(options)
            gc.freeze()  # skip the last garbage collection
            sys.exit(code)
    return 0


def _is_terminal(file: TextIO | None) -> bool:
    return file is not None and file.isatty()  # None if it was closed before the start


class _ExitMessages:
    """Shows the messages of the exit guard: above the live area if there is one, else on the plain terminal."""

    def __init__(self, terminal: TerminalDevice) -> None:
        self.ui: ChatUI | None = None
        self.early: EarlyPrompt | None = None
        self._terminal = terminal
        self._shown: set[str] = set()  # by the UI

    def say(self, text: str) -> None:
        is_forced = text.startswith("Forced")
        if is_forced:
            self._terminal.reset()
            for late in self.ui.actions.late if self.ui is not None else ():
                self._terminal.write(f"Not saved: {strip_controls(late)}\n".encode(errors="replace"))
        ui = self.ui
        if ui is not None and not is_forced and ui.call(lambda: self.show(ui, text)):
            return
        if text in self._shown:
            return
        if self.early is not None:
            self.early.erase()
        self._terminal.write(f"{text}\r\n".encode(errors="replace"))

    def show(self, ui: ChatUI, text: str) -> None:
        """Show a message above the live area, once. Call it in the UI's loop."""
        if text not in self._shown:
            self._shown.add(text)
            ui.say(text)


class _Chat:
    """One run of the program."""

    def __init__(
        self, guard: ExitGuard, terminal: TerminalDevice, exit_messages: _ExitMessages, configuration: Configuration
    ) -> None:
        self._guard = guard
        self._terminal = terminal
        self._exit_messages = exit_messages
        self._configuration = configuration
        self._failure: BaseException | None = None
        self._ended = OneShotEvent()
        self._early: EarlyPrompt | None = None

    def run(self, options: argparse.Namespace) -> int:
        """Run the chat, from the early prompt on. With a list of sessions to choose from there is no early prompt."""
        if options.resume == "":
            return self._open(options)
        with EarlyPrompt(self._terminal) as self._early:
            self._exit_messages.early = self._early
            return self._open(options)

    def _open(self, options: argparse.Namespace) -> int:
        """Open the store and the session, and run the chat. A boundary: errors are printed in one line."""
        with self._guard.hold_signals():
            from halter.cli.chat.session_host import SessionHost
            from halter.cli.commands.sessions import NotFound, find_session, wanted_session
            from halter.cli.model_choice import NoModel, choose_model
            from halter.errors import HalterError
            from halter.stores import SQLiteStore

        try:
            with self._guard.hold_signals():
                choice = choose_model(self._configuration)
            with SQLiteStore(self._configuration.make_store()) as store:
                if options.resume is None:
                    wanted = wanted_session(store, options.session, latest=options.latest)
                else:
                    wanted = find_session(store, options.resume) if options.resume else self._pick(store)
                    if wanted is None:
                        return 0
                with self._guard.hold_signals():
                    host = SessionHost(self._configuration, choice, store, wanted)
                return self._run_chat(host, choice, wanted)
        except (HalterError, NoModel, NotFound, OSError, SettingsError) as error:
            if self._early is not None:
                self._early.stop()
            self._terminal.restore()
            return print_error(error)

    def _pick(self, store: Store) -> str | None:
        """Let the user choose a session; None if none was chosen."""
        from halter.cli.chat.session_picker import pick_session
        from halter.cli.commands.sessions import NotFound, session_rows

        rows = session_rows(store, _MAX_SESSIONS)
        if not rows:
            raise NotFound("no sessions yet")
        return pick_session(rows, self._terminal)

    def _run_chat(self, host: SessionHost, choice: ModelChoice, wanted: str | None) -> int:
        with self._guard.hold_signals():
            from halter.cli.chat.chat_ui import ChatUI
            from halter.cli.chat.notices import Notice
            from halter.cli.chat.screen.captured_output import capture_output
            from halter.cli.chat.shutdown import Shutdown
            from halter.cli.chat.welcome import welcome

        shutdown = Shutdown(self._guard, host)
        ui = ChatUI(host, self._terminal, shutdown, color=may_color())
        greeting = [Notice(line, "dim") for line in welcome(self._configuration, choice, host.agent)]
        if wanted is not None and host.session.turn is None:
            greeting.append(Notice(f"Session {wanted!r} does not exist yet; starting it.", "dim"))
        elif wanted is not None:
            greeting += host.describe()
        typed = self._take_typed()
        drawing = threading.Thread(target=self._draw, args=(ui, greeting, typed), name="halter-chat", daemon=True)
        self._exit_messages.ui = ui
        self._guard.on_signal = lambda number: self._on_signal(ui, number)
        signal.signal(signal.SIGWINCH, _resize_handler(ui))
        with capture_output(lambda text: ui.call(lambda: ui.say(text, "dim"))):
            drawing.start()
            self._ended.wait()
        self._exit_messages.ui = None
        self._terminal.restore()
        if self._failure is not None:
            raise self._failure
        for line in shutdown.lines:
            self._terminal.write(f"{strip_controls(line)}\n".encode(errors="replace"))
        return shutdown.code

    def _take_typed(self) -> str:
        """End the early prompt; returns the keys that were typed into it."""
        if self._early is None:
            return ""
        self._early.stop()
        return self._early.take()

    def _draw(self, ui: ChatUI, greeting: list[Notice], typed: str) -> None:
        """Run the UI, in its thread. A boundary: an error is raised in the main thread."""
        import asyncio

        try:
            asyncio.run(ui.run(greeting, typed))
        except BaseException as error:  # noqa: BLE001
            self._failure = error
        finally:
            self._ended.set()

    def _on_signal(self, ui: ChatUI, number: int) -> bool:
        """Quit, in a signal handler."""
        name = signal.Signals(number).name

        def announce_and_quit() -> None:
            # The exit guard announces it as well, in a thread that may come when the chat has already ended.
            self._exit_messages.show(ui, announcement(name))
            ui.quit(128 + number, name)

        return ui.call(announce_and_quit)


def _resize_handler(ui: ChatUI) -> Callable[[int, FrameType | None], None]:
    def resize(_number: int, _frame: FrameType | None) -> None:
        ui.call(ui.resize)

    return resize
