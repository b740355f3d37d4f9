"""An interpreter for code on this machine: a child of ours, and a socket between us. See `interpreter.py`."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel import families
from halter.cancel.family import Family
from halter.cancel.table import HAS_PROC
from halter.toolbox import interpreter
from halter.toolbox.child import Child, Link

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halter.toolbox.kernel import Ears

__all__ = ["LocalInterpreter", "Messages"]

_MOST_UNREAD: Final = 64_000_000
_CHILDREN_GRACE: Final = 0.2


class Messages:
    """JSON objects, one per line, out of pieces."""

    def __init__(self) -> None:
        self._unread = b""

    @property
    def is_too_long(self) -> bool:
        return len(self._unread) > _MOST_UNREAD

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
    """One, from its start to its death."""

    def __init__(self, directory: str, environment: Mapping[str, str], names: Sequence[str], ears: Ears) -> None:
        ours, theirs = socket.socketpair()
        self._ears = ears
        self._messages = Messages()
        self._is_ready = False
        arguments = [str(theirs.fileno()), directory, json.dumps(list(names))]
        self._child = Child(
            [sys.executable, "-u", "-P", "-X", "utf8", str(Path(interpreter.__file__).absolute()), *arguments],
            cwd=directory,
            env=environment,
            on_output=ears.output,
            link=Link(ours.detach(), theirs.detach(), self._hear, is_two_way=True),
        )
        self._child.changes.also(ears.tell)

    def _hear(self, piece: bytes) -> None:
        for message in self._messages.read(piece):
            self._is_ready = self._is_ready or message.get("kind") == "ready"
            self._ears.message(message)
        if self._messages.is_too_long:
            self.stop()

    @property
    def is_usable(self) -> bool:
        return not (self._child.has_exited or self._child.was_stopped)

    @property
    def has_died(self) -> bool:
        return self._child.is_over or self._child.left is not None

    def send(self, message: dict[str, Any]) -> None:
        """Have it read a message."""
        self._child.send(json.dumps(message).encode() + b"\n")

    def interrupt(self, number: int) -> None:
        """Have the code of that run interrupted."""
        self.send({"kind": "cancel", "id": number})
        if self._is_ready:
            self._child.signal(signal.SIGINT)  # for its children, as a terminal would

    def end_children(self) -> None:
        """End what the code has started; the interpreter itself stays."""
        child = self._child
        if child.pid is not None and HAS_PROC:
            others = Family([child.pid], session=child.pid, cookie=child.cookie, spare=[child.pid])
            if others.members():
                families.stop(others, _CHILDREN_GRACE)

    def stop(self) -> None:
        """Kill it, with its family."""
        self._child.stop(0.0)

    def wait_over(self, timeout: float) -> bool:
        """Wait until nobody of it is left."""
        return self._child.wait_over(timeout=timeout)

    def ending(self) -> str:
        """How it ended."""
        if self._child.error is not None:
            return str(self._child.error)
        code = self._child.returncode
        if code is None:
            return "it was stopped"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
