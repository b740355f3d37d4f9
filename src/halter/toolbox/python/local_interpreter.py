"""An interpreter for code on this machine: a child process with a socket to it. See `interpreter_main.py`."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.processes import registry
from halter.cancel.processes.proc_table import HAS_PROC
from halter.cancel.processes.tree import ProcessTree
from halter.toolbox.python import interpreter_main
from halter.toolbox.terminal.child_process import ChildProcess, ExtraPipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halter.toolbox.python.kernel import InterpreterCallbacks
    from halter.toolbox.sandbox.sandbox import Sandbox

__all__ = ["LocalInterpreter", "Messages"]

_MAX_UNREAD: Final = 64_000_000  # bytes
_CHILDREN_GRACE: Final = 0.2  # seconds


class Messages:
    """Splits a stream into JSON objects, one per line."""

    def __init__(self) -> None:
        self._unread = b""

    @property
    def is_too_long(self) -> bool:
        return len(self._unread) > _MAX_UNREAD

    def read(self, piece: bytes) -> list[dict[str, Any]]:
        *lines, self._unread = (self._unread + piece).split(b"\n")
        found: list[dict[str, Any]] = []
        for line in lines:
            with contextlib.suppress(ValueError, RecursionError):
                message = json.loads(line)
                if isinstance(message, dict):
                    found.append(message)
        return found


class LocalInterpreter:
    """One interpreter, from its start to its end."""

    def __init__(
        self,
        directory: str,
        environment: Mapping[str, str],
        names: Sequence[str],
        callbacks: InterpreterCallbacks,
        sandbox: Sandbox | None = None,
    ) -> None:
        if sandbox is not None:
            environment = {**environment, **sandbox.environment}
        ours, theirs = socket.socketpair()
        self._callbacks = callbacks
        self._messages = Messages()
        self._is_ready = False
        arguments = [str(theirs.fileno()), directory, json.dumps(list(names))]
        self._child = ChildProcess(
            [sys.executable, "-u", "-P", "-X", "utf8", str(Path(interpreter_main.__file__).absolute()), *arguments],
            cwd=directory,
            env=environment,
            on_output=callbacks.output,
            extra=ExtraPipe(ours.detach(), theirs.detach(), self._on_data, is_two_way=True),
            sandbox=sandbox,
        )
        self._child.changes.subscribe(callbacks.changed)

    def _on_data(self, piece: bytes) -> None:
        for message in self._messages.read(piece):
            self._is_ready = self._is_ready or message.get("kind") == "ready"
            self._callbacks.message(message)
        if self._messages.is_too_long:
            self.stop()

    @property
    def is_usable(self) -> bool:
        return not (self._child.has_exited or self._child.was_stopped)

    @property
    def has_died(self) -> bool:
        return self._child.is_over or self._child.left is not None

    def send(self, message: dict[str, Any]) -> None:
        """Send it a message."""
        self._child.send(json.dumps(message).encode() + b"\n")

    def interrupt(self, number: int) -> None:
        """Interrupt the code of that run."""
        self.send({"kind": "cancel", "id": number})
        if self._is_ready:
            self._child.signal(signal.SIGINT)  # for its children, as a terminal would

    def end_children(self) -> None:
        """End the processes that the code has started."""
        child = self._child
        if child.pid is not None and HAS_PROC:
            others = ProcessTree([child.pid], session=child.pid, cookie=child.cookie, spare=[child.pid])
            if others.members():
                registry.stop(others, _CHILDREN_GRACE)

    def stop(self) -> None:
        """Kill it, with all its descendants."""
        self._child.stop(0.0)

    def wait_over(self, timeout: float) -> bool:
        """Wait until no process of it is left."""
        return self._child.wait_over(timeout=timeout)

    def ending(self) -> str:
        """How it ended."""
        if self._child.error is not None:
            return str(self._child.error)
        code = self._child.returncode
        if code is None:
            return "it was stopped"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
