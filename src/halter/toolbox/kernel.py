"""The interpreter of one session, on this machine or another: started when needed, interrupted, killed, replaced.

One piece of code runs at a time. After a stop the code gets a KeyboardInterrupt; if it ends by that, the interpreter
and its variables stay, and what the code has started beside it is ended. If it does not within its grace, the
interpreter is killed with its family, and the next code finds a fresh one and is told so. Who comes meanwhile waits.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from halter.cancel import threads
from halter.cancel.context import current_token
from halter.models.model import Image
from halter.toolbox.changes import Changes
from halter.toolbox.output import Output, Progress

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken

__all__ = ["Ears", "Interpreter", "Kernel", "Run", "freeing"]

_MOST_PICTURES: Final = 16
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


class Ears(NamedTuple):
    """Who hears what an interpreter says, from whatever thread."""

    output: Callable[[bytes], object]  # what it printed
    message: Callable[[dict[str, Any]], object]
    tell: Callable[[], object]  # that something has changed


class Interpreter(Protocol):
    """One interpreter, on this machine or on another. Nothing here waits, unless that is said."""

    @property
    def is_usable(self) -> bool:
        """Whether it can be given code."""
        ...

    @property
    def has_died(self) -> bool:
        """Whether it will say nothing more."""
        ...

    def send(self, message: dict[str, Any]) -> None:
        """Have it read a message. Messages are read in their order."""
        ...

    def interrupt(self, number: int) -> None:
        """Have the code of that run, and what it has started, interrupted."""
        ...

    def end_children(self) -> None:
        """End what the code has started; the interpreter itself stays. What is sent after this comes after it."""
        ...

    def stop(self) -> None:
        """Kill it, with its family."""
        ...

    def wait_over(self, timeout: float) -> bool:
        """Wait until nobody of it is left, as far as can be known."""
        ...

    def ending(self) -> str:
        """How it ended. May wait for that to be known, until the current token's stop."""
        ...


class Kernel:
    """The interpreter of a session. Kept by its tools, closed with it."""

    def __init__(self, make: Callable[[Ears], Interpreter], limit: int) -> None:
        self._make = make
        self._limit = limit
        self._changes = Changes()
        self._is_taken = [True]  # popped by whoever has the interpreter, put back when it is settled
        self._interpreter: Interpreter | None = None
        self._generation = 0  # of the interpreter
        self._number = 0  # of the last run
        self._run: Run | None = None
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
        old = self._interpreter
        loss = ""
        if old is not None and not old.is_usable:
            loss, self._loss = self._loss or f"the interpreter has ended ({old.ending()})", ""
            old.stop()
            old = None
        current_token().raise_if_cancelled()  # it may have taken long, and nothing starts after the stop
        self._run = run
        now = self._interpreter = self._fresh() if old is None else old
        self._number += 1
        now.send({"kind": "run", "id": self._number, "source": source})
        return loss

    def new_run(self, report: Callable[[str], object], call: Callable[[Run, dict[str, Any]], object]) -> Run:
        return Run(self._output, Progress(report), call)

    def wait(self, run: Run, token: CancellationToken, timeout: float | None = None) -> bool:
        """Wait for the end of the code, or of its interpreter; True if it has ended."""
        return self._changes.wait(lambda: run.how or self.has_died, token, timeout, run.progress)

    @property
    def has_died(self) -> bool:
        return self._interpreter is None or self._interpreter.has_died

    def interrupt(self) -> None:
        """Have the code hear of a stop."""
        if self._interpreter is not None:
            self._interpreter.interrupt(self._number)

    def end(self, run: Run) -> str:
        """The code has ended by itself; or its interpreter has, and then says how."""
        how = ""
        try:
            if not run.how and self._interpreter is not None:
                how = self._interpreter.ending()
                self._interpreter.stop()  # what it has left behind
        finally:
            self._run = None
            self._output = Output(self._limit)
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
            now = self._interpreter
            if now is not None and self._changes.wait(lambda: run.how or self.has_died, timeout=grace) and run.how:
                now.end_children()
            elif now is not None:
                self._loss = "the code of an earlier call did not react to its interrupt, so its interpreter was killed"
                now.stop()
                now.wait_over(_CLOSE_PATIENCE)
        finally:
            self._run = None
            self._output = Output(self._limit)
            self.free()

    def refuse(self) -> None:
        """Take no more code."""
        self._is_closed = True
        self._changes.tell()

    def close(self) -> None:
        """End the interpreter and all it has started."""
        self.refuse()
        if self._interpreter is not None:
            self._interpreter.stop()
            self._interpreter.wait_over(_CLOSE_PATIENCE)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _fresh(self) -> Interpreter:
        self._generation += 1
        mine = self._generation

        def is_ours() -> bool:  # and not one that is dying while another has taken its place
            return self._generation == mine

        fresh = self._make(
            Ears(
                lambda piece: self._hear_output(piece) if is_ours() else None,
                lambda message: self._understand(message) if is_ours() else None,
                self._changes.tell,
            )
        )
        if self._is_closed:
            fresh.stop()
        return fresh

    def _hear_output(self, piece: bytes) -> None:
        self._output.add(piece)
        if self._run is not None:
            self._run.progress.add(piece)

    def _understand(self, message: dict[str, Any]) -> None:
        """Hear a message. The code can send anything, too: what makes no sense is nothing."""
        run, kind = self._run, message.get("kind")
        if kind == "tool" and run is None:
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
        if self._interpreter is not None:
            with contextlib.suppress(BufferError):
                self._interpreter.send({"kind": "answer", "id": number, "error": error, "parts": list(parts)})


@contextlib.contextmanager
def freeing(kernel: Kernel) -> Iterator[None]:
    """Free the interpreter if something goes wrong on the way to the code."""
    try:
        yield
    except BaseException:
        kernel.free()
        raise
