"""An interpreter for code on another machine. The programs are sent there, and leave no file there: see `warden.py`.

It is a command like any other on that machine: when the connection is lost it is ended there with all that it has
started, and as soon as the machine can be reached it is asked who is left.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.context import current_token
from halter.toolbox import interpreter, warden
from halter.toolbox.localinterpreter import Messages
from halter.toolbox.machine import Command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halter.toolbox.kernel import Ears
    from halter.toolbox.machine import Link

__all__ = ["RemoteInterpreter"]

# Reads one line, byte by byte: what comes behind it is not ours to read.
_BOOT: Final = """
import json
given = json.loads(open(0, "rb", 0, closefd=False).readline())
space = {"__name__": "halter_warden"}
exec(compile(given["warden"], "<halter warden>", "exec", dont_inherit=True), space)
space["main"](given)
"""
_MOST_GREETING: Final = 4_000
_FINDING: Final = 12.0  # seconds for asking a machine again whose connection was lost


class _Frames:
    """What a warden says, out of pieces: pairs of a kind and some bytes."""

    def __init__(self) -> None:
        self.greeting: bytes | None = b""  # what came before it began; None when it has
        self._unread = b""

    def read(self, piece: bytes) -> Iterator[tuple[str, bytes]]:
        self._unread += piece
        if self.greeting is not None:
            before, begin, after = self._unread.partition(warden.BEGIN)
            if not begin:
                self.greeting = before[-_MOST_GREETING:]
                return
            self.greeting, self._unread = None, after
        while (end := self._unread.find(b"\n")) >= 0:
            kind, _, length = self._unread[:end].partition(b" ")
            if kind not in (b"o", b"m", b"e") or not length.isdigit():
                # Somebody has written between, such as a Python that cannot go on: it is shown as it is.
                data, self._unread = self._unread, b""
                yield "o", data
                return
            stop = end + 1 + int(length)
            if len(self._unread) < stop:
                return
            data, self._unread = self._unread[end + 1 : stop], self._unread[stop:]
            yield kind.decode(), data


class RemoteInterpreter:
    """One, from its start to its death."""

    def __init__(
        self, link: Link, python: str, directory: str, env: Mapping[str, str], names: Sequence[str], ears: Ears
    ) -> None:
        self._ears = ears
        self._frames = _Frames()
        self._messages = Messages()
        self._how = ""
        text = f"exec {shlex.quote(python)} -u -X utf8 -c {shlex.quote(_BOOT)}"
        command = Command(text, directory, env, keeps_watch=True, grace=0.0)
        self._running = link.start(command, self._hear)
        self._running.changes.also(ears.tell)
        programs = {"warden": _program(warden.__file__), "interpreter": _program(interpreter.__file__)}
        self.send({**programs, "names": list(names)})

    def _hear(self, piece: bytes) -> None:
        for kind, data in self._frames.read(piece):
            if kind == "o":
                self._ears.output(data)
            elif kind == "e":
                self._how = data.decode(errors="replace")
            else:
                for message in self._messages.read(data):
                    self._ears.message(message)
        if self._messages.is_too_long:
            self.stop()

    @property
    def is_usable(self) -> bool:
        running = self._running
        return not (self._how or running.is_over or running.is_lost or running.was_stopped)

    @property
    def has_died(self) -> bool:
        return self._running.is_over or self._running.is_lost

    def send(self, message: dict[str, Any]) -> None:
        """Have it read a message."""
        self._running.say(json.dumps(message).encode())

    def interrupt(self, number: int) -> None:
        """Have the code of that run interrupted."""
        self.send({"kind": "cancel", "id": number})

    def end_children(self) -> None:
        """End what the code has started; the interpreter itself stays."""
        self.send({"kind": "sweep"})

    def stop(self) -> None:
        """Kill it, with its family."""
        if not self._running.is_over:
            self._running.stop(0.0)

    def wait_over(self, timeout: float) -> bool:
        """Wait until the machine has said that nobody of it is left."""
        return self._running.wait_over(timeout=timeout)

    def ending(self) -> str:
        """How it ended, and what the machine has said of who is left."""
        running = self._running
        running.wait_over(current_token(), _FINDING)
        if running.error is not None and running.pid is None:
            return str(running.error)
        if running.survivors:
            return f"processes {running.survivors} of it are still there"
        if running.is_lost:
            known = "all its processes have ended" if running.is_gone else "the machine cannot be asked who is left"
            return f"its connection was lost; {known}"
        greeting = (self._frames.greeting or b"").decode(errors="replace").strip()
        how = self._how or ("it was stopped" if running.was_stopped else f"exit code {running.returncode}")
        return f"{how}: {greeting}" if greeting and not self._how else how


def _program(file: str) -> str:
    return Path(file).read_text(encoding="utf-8")
