"""`halter` without a command: the chat, from its first line to its exit code.

Three threads. The main one opens everything and then only waits: signals are heard there. One draws and hears keys. The
session is served on Halter's own loop. None of them waits for another without a bound.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final

from halter.cancel import CancellationToken, ExitGuard
from halter.cli.output import complain, harmless, may_color
from halter.cli.settings import SettingsError, load

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from types import FrameType
    from typing import TextIO

    from halter.cli.chat.face import Face
    from halter.cli.chat.host import Host
    from halter.cli.chat.terminal import Terminal
    from halter.cli.chat.words import Said
    from halter.cli.choose import Choice
    from halter.cli.settings import Configuration

__all__ = ["open_chat"]

# Imports make many objects and no garbage: to look through them every 700 takes a tenth of the start.
_OBJECTS: Final = 50_000
# A thread that draws must not wait long for those that work; Python's own turn is longer.
_TURN: Final = 0.002


def open_chat(options: argparse.Namespace) -> int:
    """Run the chat. Returns the exit code."""
    try:
        configuration = load({"model": options.model, "store": options.store})
    except SettingsError as error:
        return complain(error)
    gc.set_threshold(_OBJECTS)
    is_plain = os.environ.get("TERM") == "dumb" or os.name != "posix"  # elsewhere a terminal is another thing
    if is_plain or not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        from halter.cli.chat.lines import talk_in_lines  # noqa: PLC0415  (the other way)

        return talk_in_lines(configuration, options.session)
    from halter.cli.chat.terminal import Terminal  # noqa: PLC0415  (it brings prompt_toolkit)

    with Terminal() as terminal:
        voice = _Voice(terminal)
        with ExitGuard(configuration.settings.exit_timeout, say=voice.say) as guard:
            code = _Chat(guard, terminal, voice, configuration).run(options.session)
            gc.freeze()  # or Python looks through all that was imported once more before it ends
            sys.exit(code)
    return 0


def _is_terminal(file: TextIO | None) -> bool:
    return file is not None and file.isatty()  # None where it was closed before we began


class _Voice:
    """What the guard says: above the picture as long as there is one, else on the terminal as it is."""

    def __init__(self, terminal: Terminal) -> None:
        self.face: Face | None = None
        self._terminal = terminal

    def say(self, text: str) -> None:
        is_forced = text.startswith("Forced")
        if is_forced:
            self._terminal.calm()
            for late in self.face.actions.late if self.face is not None else ():
                self._terminal.say(f"Not kept: {harmless(late)}\n".encode())
        face = self.face
        if face is not None and not is_forced and face.call(lambda: face.say(text)):
            return
        self._terminal.say(f"{text}\r\n".encode())


class _Chat:
    """One run of the program."""

    def __init__(self, guard: ExitGuard, terminal: Terminal, voice: _Voice, configuration: Configuration) -> None:
        self._guard = guard
        self._terminal = terminal
        self._voice = voice
        self._configuration = configuration
        self._failure: BaseException | None = None
        self._over = CancellationToken(name="chat over")  # as a bell that rings once

    def run(self, session_id: str | None) -> int:
        """Open what is needed, and talk. A boundary: what can go wrong is told, in a line."""
        from halter.cli.chat.host import Host  # noqa: PLC0415  (all that follows takes a while to import)
        from halter.cli.choose import NoModel, choose  # noqa: PLC0415
        from halter.errors import HalterError  # noqa: PLC0415
        from halter.stores import SQLiteStore  # noqa: PLC0415

        try:
            choice = choose(self._configuration)
            with SQLiteStore(self._configuration.make_store()) as store:
                host = Host(self._configuration, choice, store, session_id)
                return self._talk(host, choice, session_id)
        except (HalterError, NoModel, OSError, SettingsError) as error:
            self._terminal.restore()
            return complain(error)

    def _talk(self, host: Host, choice: Choice, wanted: str | None) -> int:
        from halter.cli.chat.face import Face  # noqa: PLC0415  (as above)
        from halter.cli.chat.leaving import Leaving  # noqa: PLC0415
        from halter.cli.chat.stray import caught  # noqa: PLC0415
        from halter.cli.chat.words import Said  # noqa: PLC0415

        sys.setswitchinterval(_TURN)
        leaving = Leaving(self._guard, host)
        face = Face(host, self._terminal, leaving, color=may_color())
        greeting = [Said(line, "dim") for line in choice.lines]
        if wanted is None:
            greeting.append(Said(_HELLO, "dim"))
        elif host.session.turn is None:
            greeting.append(Said(f"There was no session {wanted!r}; it begins now.", "dim"))
        else:
            greeting += host.describe()
        drawing = threading.Thread(target=self._draw, args=(face, greeting), name="halter-chat", daemon=True)
        self._voice.face = face
        self._guard.on_signal = lambda number: self._on_signal(face, number)
        signal.signal(signal.SIGWINCH, _telling(face))
        with caught(lambda text: face.call(lambda: face.say(text, "dim"))):
            drawing.start()
            self._over.wait()
        self._voice.face = None
        self._terminal.restore()
        if self._failure is not None:
            raise self._failure
        for line in leaving.lines:
            self._terminal.say(f"{harmless(line)}\n".encode())
        return leaving.code

    def _draw(self, face: Face, greeting: list[Said]) -> None:
        """Be the thread that draws. A boundary: what fails here is raised where the program waits."""
        try:
            asyncio.run(face.run(greeting))
        except BaseException as error:  # noqa: BLE001
            self._failure = error
        finally:
            self._over.cancel("over")

    @staticmethod
    def _on_signal(face: Face, number: int) -> bool:
        """Leave, in a signal's handler."""
        return face.call(lambda: face.leave(128 + number, signal.Signals(number).name))


def _telling(face: Face) -> Callable[[int, FrameType | None], None]:
    def tell(_number: int, _frame: FrameType | None) -> None:
        face.call(face.resize)

    return tell


_HELLO: Final = "Type and press Enter, also while it works. Esc stops, /help lists the rest."
