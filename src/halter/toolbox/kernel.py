"""The interpreter of one session, from the side of the parent: started when needed, interrupted, killed, replaced.

One piece of code runs at a time. After a stop the code gets a KeyboardInterrupt; if it ends by that, the interpreter
and its variables stay, and what the code has started beside it is ended. If it does not within its grace, the
interpreter is killed with its family, and the next code finds a fresh one and is told so. Who comes meanwhile waits.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel import families, threads
from halter.cancel.family import Family
from halter.cancel.table import HAS_PROC
from halter.models.model import Image
from halter.toolbox import interpreter
from halter.toolbox.changes import Changes
from halter.toolbox.child import Child, Link
from halter.toolbox.output import Output, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from halter.cancel.token import CancellationToken

_MOST_UNREAD: Final = 64_000_000
_MOST_PICTURES: Final = 16
_CHILDREN_GRACE: Final = 0.2
_CLOSE_PATIENCE: Final = 1.5


class Run:
    """One piece of code, and what has come of it so far."""

    def __init__(self, output: Output, progress: Progress, call: Callable[[Run, dict[str, Any]], object]) -> None:
        self.preface = ""
        self.output = output
        self.progress = progress
        self.pictures: list[Image] = []
        self.left_out = 0
        self.how = ""  # "done", "error" or "interrupted", once it has ended
        self.words = ""  # of the error
        self.inside: set[str] = set()  # the tools that it is waiting for
        self.call = call  # has a tool called for it, in a thread

    def add_picture(self, data: str, media_type: str) -> None:
        if len(self.pictures) >= _MOST_PICTURES:
            self.left_out += 1
            return
        with contextlib.suppress(binascii.Error, ValueError):
            self.pictures.append(Image(base64.b64decode(data), media_type=media_type))


class _Messages:
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


class Kernel:
    """The interpreter of a session. Kept by its tools, closed with it."""

    def __init__(self, directory: Path, environment: Mapping[str, str], names: Sequence[str], limit: int) -> None:
        self._directory = str(directory)
        self._environment = dict(environment)
        self._names = list(names)
        self._limit = limit
        self._changes = Changes()
        self._is_taken = [True]  # popped by whoever has the interpreter, put back when it is settled
        self._child: Child | None = None
        self._is_ready = False
        self._number = 0  # of the last run
        self._run: Run | None = None
        self._messages: _Messages | None = None  # those of the interpreter that there is
        self._output = Output(limit)  # what comes between two runs is shown with the next
        self._is_closed = False
        self._loss = ""  # why the variables of earlier calls are gone, for the next call to tell

    # -- taking turns -------------------------------------------------------------------------------------------------

    def take(self, token: CancellationToken) -> None:
        """Wait until the interpreter is nobody's, and have it. Raises Cancelled."""
        while True:
            self._changes.wait(lambda: self._is_taken or self._is_closed, token)
            token.raise_if_cancelled()
            if self._is_closed:
                msg = "the session was closed: no code can be run in it any more"
                raise RuntimeError(msg)
            with contextlib.suppress(IndexError):  # another was faster
                self._is_taken.pop()
                return

    def free(self) -> None:
        self._is_taken.append(True)
        self._changes.tell()

    # -- running ------------------------------------------------------------------------------------------------------

    def start(self, source: str, run: Run) -> str:
        """Have code run. If that is in a fresh interpreter, though there was one, says why."""
        child = self._child
        loss = ""
        if child is not None and (child.has_exited or child.was_stopped):
            loss, self._loss = self._loss or f"the interpreter has ended ({ending(child)})", ""
            child.stop(0.0)
            child = None
        self._run = run
        if child is None:
            child = self._child = self._make_child()
        self._number += 1
        child.send(json.dumps({"kind": "run", "id": self._number, "source": source}).encode() + b"\n")
        return loss

    def new_run(self, report: Callable[[str], object], call: Callable[[Run, dict[str, Any]], object]) -> Run:
        return Run(self._output, Progress(report), call)

    def wait(self, run: Run, token: CancellationToken, timeout: float | None = None) -> bool:
        """Wait for the end of the code, or of its interpreter; True if it has ended."""
        return self._changes.wait(lambda: run.how or self.has_died, token, timeout, run.progress)

    @property
    def has_died(self) -> bool:
        child = self._child
        return child is None or child.is_over or child.left is not None

    def interrupt(self) -> None:
        """Have the code hear of a stop."""
        child = self._child
        if child is not None:
            child.send(json.dumps({"kind": "cancel", "id": self._number}).encode() + b"\n")
            if self._is_ready:
                child.signal(signal.SIGINT)  # for its children, as a terminal would

    def end(self, run: Run) -> str:
        """The code has ended by itself; or its interpreter has, and then says how."""
        self._run = None
        self._output = Output(self._limit)
        child = self._child
        how = ""
        if not run.how and child is not None:
            how = ending(child)
            child.stop(0.0)  # what it has left behind
        self.free()
        return how

    def end_later(self, run: Run, grace: float) -> None:
        """The code was stopped: let it end within its grace, or kill it, and clean up; then free the interpreter."""
        try:
            threads.submit(lambda: self.settle(run, grace))
        except RuntimeError:  # no thread is to be had: then it is done here, and at once
            self.settle(run, 0.0)

    def settle(self, run: Run, grace: float) -> None:
        """As end_later(), in this thread. A boundary: the interpreter is freed whatever happens."""
        try:
            child = self._child
            if child is not None and self._changes.wait(lambda: run.how or self.has_died, timeout=grace) and run.how:
                self._end_children(child)
            elif child is not None:
                self._loss = "the code of an earlier call did not react to its interrupt, so its interpreter was killed"
                child.stop(0.0)
                child.wait_over(timeout=_CLOSE_PATIENCE)
        finally:
            self._run = None
            self._output = Output(self._limit)
            self.free()

    def close(self) -> None:
        """End the interpreter and all it has started."""
        self._is_closed = True
        self._changes.tell()
        child = self._child
        if child is not None:
            child.stop(0.0)
            child.wait_over(timeout=_CLOSE_PATIENCE)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _make_child(self) -> Child:
        ours, theirs = socket.socketpair()
        self._is_ready = False
        arguments = [str(theirs.fileno()), self._directory, json.dumps(self._names)]
        messages = _Messages()

        def is_ours() -> bool:  # and not one that is dying while another has taken its place
            return self._messages is messages

        def hear(piece: bytes) -> None:
            for message in messages.read(piece):
                if is_ours():
                    self._understand(message)
            if messages.is_too_long:
                child.stop(0.0)

        self._messages = messages
        link = Link(ours.detach(), theirs.detach(), hear, is_two_way=True)
        child = Child(
            [sys.executable, "-u", "-P", "-X", "utf8", str(Path(interpreter.__file__).absolute()), *arguments],
            cwd=self._directory,
            env=self._environment,
            on_output=lambda piece: self._hear_output(piece) if is_ours() else None,
            link=link,
        )
        child.changes.also(self._changes.tell)
        if self._is_closed:
            child.stop(0.0)
        return child

    def _hear_output(self, piece: bytes) -> None:
        self._output.add(piece)
        if self._run is not None:
            self._run.progress.add(piece)

    def _understand(self, message: dict[str, Any]) -> None:
        """Hear a message. The code can send anything, too: what makes no sense is nothing."""
        run, kind = self._run, message.get("kind")
        if kind == "ready":
            self._is_ready = True
        elif kind == "tool" and run is None:
            self.answer(message.get("id", 0), "tools can be called only while a call of execute_code runs")
        elif kind == "tool" and run is not None:
            threads.submit(lambda: run.call(run, message))
        elif kind == "picture" and run is not None:
            run.add_picture(str(message.get("data")), str(message.get("media_type")))
        elif kind == "done" and run is not None:
            run.words = str(message.get("words"))
            run.how = str(message.get("how"))

    def answer(self, number: int, error: str, parts: Sequence[object] = ()) -> None:
        """Answer a call of a tool."""
        child = self._child
        if child is not None:
            answer = {"kind": "answer", "id": number, "error": error, "parts": list(parts)}
            with contextlib.suppress(BufferError):
                child.send(json.dumps(answer).encode() + b"\n")

    def _end_children(self, child: Child) -> None:
        """End what the code has started; the interpreter itself stays."""
        if child.pid is not None and HAS_PROC:
            others = Family([child.pid], session=child.pid, cookie=child.cookie, spare=[child.pid])
            if others.members():
                families.stop(others, _CHILDREN_GRACE)


def ending(child: Child) -> str:
    if child.error is not None:
        return str(child.error)
    code = child.returncode
    if code is None:
        return "it was stopped"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


@contextlib.contextmanager
def freeing(kernel: Kernel) -> Iterator[None]:
    """Free the interpreter if something goes wrong on the way to the code."""
    try:
        yield
    except BaseException:
        kernel.free()
        raise
