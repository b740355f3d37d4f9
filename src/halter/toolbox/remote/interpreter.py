"""An interpreter for code on another machine, started by `interpreter_supervisor.py`. Nothing is stored there.

It is a command like any other on that machine: when the connection is lost it is ended there with all that it has
started, and as soon as the machine can be reached again it is asked for remaining processes.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.context import current_token
from halter.toolbox.python import interpreter_main
from halter.toolbox.python.local_interpreter import Messages
from halter.toolbox.remote import interpreter_supervisor
from halter.toolbox.remote.machine import RemoteCommand

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from halter.toolbox.python.kernel import InterpreterCallbacks
    from halter.toolbox.remote.machine import MachineConnection

__all__ = ["RemoteInterpreter"]

# Reads one line, byte by byte: what follows is for the supervisor.
_BOOT: Final = """
import json
given = json.loads(open(0, "rb", 0, closefd=False).readline())
space = {"__name__": "halter_supervisor"}
exec(compile(given["supervisor"], "<halter supervisor>", "exec", dont_inherit=True), space)
space["main"](given)
"""
_MAX_GREETING: Final = 4_000  # bytes
_RECONNECT_WAIT: Final = 12.0  # seconds for asking a machine again whose connection was lost


class _MessageParser:
    """Splits what the supervisor sends into messages: a kind and some bytes."""

    def __init__(self) -> None:
        self.greeting: bytes | None = b""  # what came before it began; None when it has
        self._unread = b""

    def read(self, piece: bytes) -> Iterator[tuple[str, bytes]]:
        self._unread += piece
        if self.greeting is not None:
            before, begin, after = self._unread.partition(interpreter_supervisor.BEGIN)
            if not begin:
                self.greeting = before[-_MAX_GREETING:]
                return
            self.greeting, self._unread = None, after
        while (end := self._unread.find(b"\n")) >= 0:
            kind, _, length = self._unread[:end].partition(b" ")
            if kind not in (b"o", b"m", b"e") or not length.isdigit():
                # Not a message, such as the message of a Python that cannot continue: it is shown as it is.
                data, self._unread = self._unread, b""
                yield "o", data
                return
            stop = end + 1 + int(length)
            if len(self._unread) < stop:
                return
            data, self._unread = self._unread[end + 1 : stop], self._unread[stop:]
            yield kind.decode(), data


class RemoteInterpreter:
    """One interpreter, from its start to its end."""

    def __init__(
        self,
        connection: MachineConnection,
        python: str,
        directory: str,
        env: Mapping[str, str],
        names: Sequence[str],
        callbacks: InterpreterCallbacks,
    ) -> None:
        self._callbacks = callbacks
        self._parser = _MessageParser()
        self._messages = Messages()
        self._how = ""
        text = f"exec {shlex.quote(python)} -u -X utf8 -c {shlex.quote(_BOOT)}"
        command = RemoteCommand(text, directory, env, supervises_itself=True, grace=0.0)
        self._running = connection.start(command, self._on_data)
        self._running.changes.subscribe(callbacks.changed)
        programs = {
            "supervisor": _program(interpreter_supervisor.__file__),
            "interpreter": _program(interpreter_main.__file__),
        }
        self.send({**programs, "names": list(names)})

    def _on_data(self, piece: bytes) -> None:
        for kind, data in self._parser.read(piece):
            if kind == "o":
                self._callbacks.output(data)
            elif kind == "e":
                self._how = data.decode(errors="replace")
            else:
                for message in self._messages.read(data):
                    self._callbacks.message(message)
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
        """Send it a message."""
        self._running.send_line(json.dumps(message).encode())

    def interrupt(self, number: int) -> None:
        """Interrupt the code of that run."""
        self.send({"kind": "cancel", "id": number})

    def end_children(self) -> None:
        """End the processes that the code has started."""
        self.send({"kind": "sweep"})

    def stop(self) -> None:
        """Kill it, with all its descendants."""
        if not self._running.is_over:
            self._running.stop(0.0)

    def wait_over(self, timeout: float) -> bool:
        """Wait until the machine has reported that no process of it is left."""
        return self._running.wait_over(timeout=timeout)

    def ending(self) -> str:
        """How it ended, and which processes are left."""
        running = self._running
        running.wait_over(current_token(), _RECONNECT_WAIT)
        if running.error is not None and running.pid is None:
            return str(running.error)
        if running.survivors:
            return f"its processes {running.survivors} are still running"
        if running.is_lost:
            known = (
                "all its processes have ended"
                if running.is_gone
                else "the machine cannot be reached to confirm that its processes have ended"
            )
            return f"its connection was lost; {known}"
        greeting = (self._parser.greeting or b"").decode(errors="replace").strip()
        how = self._how or ("it was stopped" if running.was_stopped else f"exit code {running.returncode}")
        return f"{how}: {greeting}" if greeting and not self._how else how


def _program(file: str) -> str:
    return Path(file).read_text(encoding="utf-8")
