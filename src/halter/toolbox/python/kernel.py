"""The interpreter of one session, on this machine or another: started when needed, interrupted, killed, replaced.

One piece of code runs at a time. After a stop the code gets a KeyboardInterrupt. If that ends it, the interpreter and
its variables are kept, and the processes that the code has started are ended. If not, the interpreter is killed with
all its descendants after a grace, and the next call gets a new one and is told so. Calls wait for each other.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from halter.cancel.context import current_token
from halter.cancel.threads import pool
from halter.models.types import Image
from halter.toolbox.terminal.change_signal import ChangeSignal
from halter.toolbox.terminal.output import CommandOutput, Progress

if TYPE_CHECKING:
    from halter.cancel.token import CancellationToken
    from halter.toolbox.sandbox.sandbox import Sandbox

__all__ = ["CodeRun", "Interpreter", "InterpreterCallbacks", "Kernel", "freeing"]

_MAX_PICTURES: Final = 16
_CLOSE_TIMEOUT: Final = 1.5  # seconds


class CodeRun:
    """One piece of code, and its results so far."""

    def __init__(
        self, output: CommandOutput, progress: Progress, call: Callable[[CodeRun, dict[str, Any]], object]
    ) -> None:
        self.preface = ""
        self.output = output
        self.progress = progress
        self.pictures: list[Image] = []
        self.left_out = 0
        self.how = ""  # "done", "error" or "interrupted", once it has ended
        self.words = ""  # of the error
        self.inside: set[str] = set()  # the tools that it is waiting for
        self.call = call  # calls a tool for it, in a thread

    def add_picture(self, data: str, media_type: str) -> None:
        if len(self.pictures) >= _MAX_PICTURES:
            self.left_out += 1
            return
        with contextlib.suppress(binascii.Error, ValueError):
            self.pictures.append(Image(base64.b64decode(data), media_type=media_type))


class InterpreterCallbacks(NamedTuple):
    """What an interpreter calls, from any thread."""

    output: Callable[[bytes], object]  # with its output
    message: Callable[[dict[str, Any]], object]
    changed: Callable[[], object]


class Interpreter(Protocol):
    """One interpreter, on this machine or on another. Only wait_over() and ending() wait."""

    @property
    def is_usable(self) -> bool:
        """Whether it can be given code."""
        ...

    @property
    def has_died(self) -> bool:
        """Whether it has ended."""
        ...

    def send(self, message: dict[str, Any]) -> None:
        """Send it a message. Messages are read in order."""
        ...

    def interrupt(self, number: int) -> None:
        """Interrupt the code of that run, and the processes that it has started."""
        ...

    def end_children(self) -> None:
        """End the processes that the code has started, before anything that is sent later is read."""
        ...

    def stop(self) -> None:
        """Kill it, with all its descendants."""
        ...

    def wait_over(self, timeout: float) -> bool:
        """Wait until no process of it is left, as far as can be known."""
        ...

    def ending(self) -> str:
        """How it ended. May wait for that, until the current token's stop."""
        ...


class Kernel:
    """The interpreter of a session. Closed with the session."""

    def __init__(self, make: Callable[[InterpreterCallbacks], Interpreter], limit: int) -> None:
        self._make = make
        self.sandbox: Sandbox | None = None  # of the session
        self._limit = limit
        self._changes = ChangeSignal()
        self._free = [True]  # popped by the call that uses the interpreter, and put back afterwards
        self._interpreter: Interpreter | None = None
        self._generation = 0  # of the interpreter
        self._number = 0  # of the last run
        self._run: CodeRun | None = None
        self._output = CommandOutput(limit)  # what comes between two runs is shown with the next
        self._is_closed = False
        self._loss = ""  # why the variables of earlier calls are lost, for the result of the next call

    # -- one at a time -------------------------------------------------------------------------------------------------

    def take(self, token: CancellationToken) -> None:
        """Wait until the interpreter is free, and take it. Raises Cancelled."""
        while True:
            self._changes.wait(lambda: self._free or self._is_closed, token)
            token.raise_if_cancelled()
            if self._is_closed:
                raise RuntimeError("the session is closed")
            with contextlib.suppress(IndexError):  # another was faster
                self._free.pop()
                return

    def free(self) -> None:
        self._free.append(True)
        self._changes.notify()

    # -- running ------------------------------------------------------------------------------------------------------

    def start(self, source: str, run: CodeRun) -> str:
        """Start code. If that needs a new interpreter although there was one, returns why."""
        old = self._interpreter
        loss = ""
        if old is not None and not old.is_usable:
            loss, self._loss = self._loss or f"the interpreter ended ({old.ending()})", ""
            old.stop()
            old = None
        current_token().raise_if_cancelled()  # it may have taken long, and nothing starts after the stop
        self._run = run
        now = self._interpreter = self._new_interpreter() if old is None else old
        self._number += 1
        now.send({"kind": "run", "id": self._number, "source": source})
        return loss

    def new_run(self, report: Callable[[str], object], call: Callable[[CodeRun, dict[str, Any]], object]) -> CodeRun:
        return CodeRun(self._output, Progress(report), call)

    def wait(self, run: CodeRun, token: CancellationToken, timeout: float | None = None) -> bool:
        """Wait until the code or its interpreter has ended; True if so."""
        return self._changes.wait(lambda: run.how or self.has_died, token, timeout, run.progress)

    @property
    def has_died(self) -> bool:
        return self._interpreter is None or self._interpreter.has_died

    def interrupt(self) -> None:
        """Interrupt the code."""
        if self._interpreter is not None:
            self._interpreter.interrupt(self._number)

    def end(self, run: CodeRun) -> str:
        """Clean up after code that has ended. Returns how the interpreter ended, if it did."""
        how = ""
        try:
            if not run.how and self._interpreter is not None:
                how = self._interpreter.ending()
                self._interpreter.stop()  # what it has left behind
        finally:
            self._run = None
            self._output = CommandOutput(self._limit)
            self.free()
        return how

    def end_later(self, run: CodeRun, grace: float) -> None:
        """Wait for stopped code to end within its grace, or kill it, and clean up; then free the interpreter."""
        try:
            pool.submit(lambda: self.settle(run, grace))
        except RuntimeError:  # no thread is available: do it here, without a grace
            self.settle(run, 0.0)

    def settle(self, run: CodeRun, grace: float) -> None:
        """As end_later(), in this thread. A boundary: the interpreter is freed whatever happens."""
        try:
            now = self._interpreter
            if now is not None and self._changes.wait(lambda: run.how or self.has_died, timeout=grace) and run.how:
                now.end_children()
            elif now is not None:
                self._loss = "the code of an earlier call did not react to its interrupt, so its interpreter was killed"
                now.stop()
                now.wait_over(_CLOSE_TIMEOUT)
        finally:
            self._run = None
            self._output = CommandOutput(self._limit)
            self.free()

    def refuse(self) -> None:
        """Take no more code."""
        self._is_closed = True
        self._changes.notify()

    def close(self) -> None:
        """End the interpreter and all it has started."""
        self.refuse()
        if self._interpreter is not None:
            self._interpreter.stop()
            self._interpreter.wait_over(_CLOSE_TIMEOUT)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _new_interpreter(self) -> Interpreter:
        self._generation += 1
        generation = self._generation

        def is_current() -> bool:  # not one that is ending after another has replaced it
            return self._generation == generation

        interpreter = self._make(
            InterpreterCallbacks(
                lambda piece: self._on_output(piece) if is_current() else None,
                lambda message: self._on_message(message) if is_current() else None,
                self._changes.notify,
            )
        )
        if self._is_closed:
            interpreter.stop()
        return interpreter

    def _on_output(self, piece: bytes) -> None:
        self._output.add(piece)
        if self._run is not None:
            self._run.progress.add(piece)

    def _on_message(self, message: dict[str, Any]) -> None:
        """Handle a message. The code can send anything; unknown messages are ignored."""
        run, kind = self._run, message.get("kind")
        if kind == "tool" and run is None:
            self.answer(message.get("id", 0), "tools can be called only while a call of execute_code runs")
        elif kind == "tool" and run is not None:
            pool.submit(lambda: run.call(run, message))
        elif kind == "picture" and run is not None:
            run.add_picture(str(message.get("data")), str(message.get("media_type")))
        elif kind == "done" and run is not None:
            run.words = str(message.get("words"))
            run.how = str(message.get("how"))

    def answer(self, number: int, error: str, parts: Sequence[object] = ()) -> None:
        """Answer a call of a tool."""
        if self._interpreter is not None:
            message: dict[str, Any] = {"kind": "answer", "id": number, "error": error, "parts": list(parts)}
            try:
                self._interpreter.send(message)
            except BufferError:
                with contextlib.suppress(BufferError):  # it reads nothing at all
                    self._interpreter.send(message | {"error": "its result is too large to pass on", "parts": []})


@contextlib.contextmanager
def freeing(kernel: Kernel) -> Iterator[None]:
    """Free the interpreter if something goes wrong on the way to the code."""
    try:
        yield
    except BaseException:
        kernel.free()
        raise
