"""The program of the interpreter of `execute_code`. It imports nothing but the standard library.

On another machine an older Python may run it: 3.8 is enough.

    python -P interpreter_main.py DESCRIPTOR DIRECTORY TOOLS

One JSON object per line goes each way over the socket DESCRIPTOR. In: `run` with source code, `cancel` with the number
of a run, and answers to calls of tools. Out: pictures and calls of tools while code runs, and `done` at its end. What
the code prints goes to stdout and stderr as always.

SIGINT is a KeyboardInterrupt in the code, once per run; between runs it is ignored. `cancel` is a SIGINT for one run:
the thread that raises it also receives the next run, so it never hits that one; and a run that has not begun does not
begin.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import itertools
import json
import linecache
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from types import CodeType, FrameType, ModuleType
from typing import Any, NoReturn


class ToolError(Exception):
    """A tool that the code has called failed."""


class ToolImage:
    """An image that a tool returned. `show(picture)` shows it."""

    def __init__(self, data: bytes, media_type: str) -> None:
        self.data = data
        self.media_type = media_type

    def __repr__(self) -> str:
        return f"<ToolImage {self.media_type}, {len(self.data)} bytes>"


class Wire:
    """The socket to the parent. A thread reads it, so that an interrupt of the code never breaks a message."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self.runs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.running = 0  # the number of the run that has begun
        self.cancelled = 0  # the number of the last one that was cancelled
        threading.Thread(target=self._listen, name="halter-wire", daemon=True).start()

    def send(self, message: dict[str, Any]) -> None:
        """Send one message, from any thread. A fork of this process exits instead."""
        if os.getpid() != self._pid:
            os._exit(0)
        data = json.dumps(message).encode() + b"\n"
        with uninterrupted, self._lock:
            self._socket.sendall(data)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and wait for its answer; others that come too late are dropped."""
        number = next(self._numbers)
        answers = self._answers[number] = queue.SimpleQueue()
        try:
            self.send({**message, "id": number})
            return answers.get()
        finally:
            self._answers.pop(number, None)

    def _listen(self) -> None:
        with self._socket.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                message = json.loads(line)
                if message["kind"] == "run":
                    self.runs.put(message)
                elif message["kind"] == "cancel":
                    self.cancelled = message["id"]
                    if self.running == self.cancelled:  # set, then checked; see Runner.run() for the other side
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                elif (waiting := self._answers.get(message["id"])) is not None:
                    waiting.put(message)
        os._exit(0)  # the parent has ended, or has closed the socket to end this process


class Interrupts:
    """Whether SIGINT may reach the code. All of this runs in the main thread."""

    def __init__(self) -> None:
        self.is_armed = False
        self._depth = 0
        self._is_pending = False

    def on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if not self.is_armed:
            return
        if self._depth:
            self._is_pending = True
            return
        self.is_armed = False
        raise KeyboardInterrupt

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._depth += 1

    def __exit__(self, *exc: object) -> None:
        if threading.current_thread() is threading.main_thread():
            self._depth -= 1
            if self._is_pending and not self._depth and self.is_armed:
                self._is_pending = self.is_armed = False
                raise KeyboardInterrupt

    def arm(self) -> None:
        self._is_pending = False
        self._depth = 0
        self.is_armed = True
        signal.signal(signal.SIGINT, self.on_signal)  # the code before may have set its own


uninterrupted = Interrupts()


class Tools:
    """The other tools of the agent: `tools.read_file(path="x")`, with the names and arguments that the model knows."""

    def __init__(self, wire: Wire, names: list[str]) -> None:
        self._wire = wire
        self._names = names

    def __dir__(self) -> list[str]:
        return list(self._names)

    def __repr__(self) -> str:
        return f"<tools: {', '.join(self._names) or 'none'}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._names:
            raise AttributeError(f"no tool named {name!r}; available: {', '.join(self._names) or 'none'}")

        def call(**arguments: Any) -> Any:
            answer = self._wire.ask({"kind": "tool", "name": name, "arguments": arguments})
            if answer["error"]:
                raise ToolError(answer["error"])
            parts = [
                part if isinstance(part, str) else ToolImage(base64.b64decode(part["data"]), part["media_type"])
                for part in answer["parts"]
            ]
            return parts[0] if len(parts) == 1 else parts or ""

        call.__name__ = name
        return call


def png_of(thing: Any) -> tuple[bytes, str] | None:
    """A picture of *thing* and its type, if it is one or can make one."""
    if isinstance(thing, ToolImage):
        return thing.data, thing.media_type
    if isinstance(thing, bytes):
        kinds = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}
        return next(((thing, kind) for start, kind in kinds.items() if thing.startswith(start)), None)
    if isinstance(thing, type):
        return None
    if callable(getattr(thing, "_repr_png_", None)):
        data = thing._repr_png_()
        return (data, "image/png") if isinstance(data, bytes) else None
    buffer = io.BytesIO()
    if callable(getattr(thing, "savefig", None)):  # a figure of matplotlib
        thing.savefig(buffer, format="png")
    elif callable(getattr(thing, "save", None)) and hasattr(thing, "getbands"):  # a picture of Pillow
        thing.save(buffer, format="PNG")
    else:
        return None
    return buffer.getvalue(), "image/png"


class Runner:
    """Runs one piece of code after another, in one namespace."""

    def __init__(self, wire: Wire, names: list[str]) -> None:
        self._wire = wire
        self._count = 0
        # A main module of the code's own: pickle and friends find what it defines, and it cannot overwrite us.
        main = sys.modules["__main__"] = ModuleType("__main__")
        self._namespace = main.__dict__
        self._namespace["__builtins__"] = __builtins__
        self._namespace.update(tools=Tools(wire, names), show=self._show, ToolError=ToolError)

    def run(self, source: str) -> dict[str, Any]:
        """Run code; returns how it ended. A boundary: whatever it raises is printed, as an interpreter would."""
        self._count += 1
        name = f"<code {self._count}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        how = "done"
        words = ""
        try:
            uninterrupted.arm()
            try:
                if self._wire.cancelled == self._wire.running:  # armed, then checked: one of the two sides notices
                    raise KeyboardInterrupt  # noqa: TRY301  (as if it had come a moment later)
                self._execute(source, name)
                self._show_figures()
            except KeyboardInterrupt:
                raise
            except SystemExit as end:
                how, words = "error", f"it called exit({end.code!r})"
            except BaseException as error:  # noqa: BLE001
                how, words = "error", _words_of(error)
                _print_error(error)
            uninterrupted.is_armed = False
        except KeyboardInterrupt as interrupt:  # anywhere above; there is only one per run
            uninterrupted.is_armed = False
            how = "interrupted"
            _print_error(interrupt)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        return {"kind": "done", "how": how, "words": words}

    def _execute(self, source: str, name: str) -> None:
        tree = compile(source, name, "exec", ast.PyCF_ONLY_AST)
        assert isinstance(tree, ast.Module)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        code: CodeType = compile(tree, name, "exec")
        exec(code, self._namespace)  # noqa: S102  (that is what it is for)
        if last is None:
            return
        assert isinstance(last, ast.Expr)
        value = eval(compile(ast.Expression(last.value), name, "eval"), self._namespace)  # noqa: S307  (the same)
        if value is not None:
            self._namespace["_"] = value
            if isinstance(value, bytes) or not self._tried_to_show(value):
                print(repr(value))  # noqa: T201  (as an interpreter does)

    def _tried_to_show(self, value: Any) -> bool:
        picture = png_of(value)
        if picture is None:
            return False
        self._send(*picture)
        figures = sys.modules.get("matplotlib.pyplot")
        if figures is not None and hasattr(value, "savefig"):
            figures.close(value)  # it has been shown
        return True

    def _show(self, picture: Any) -> None:
        """Show a picture: a figure, an image of Pillow, a ToolImage, or the bytes of a PNG, JPEG, GIF or WebP file."""
        if not self._tried_to_show(picture):
            raise TypeError(f"show() expects an image, not {type(picture).__name__}")

    def _show_figures(self) -> None:
        figures = sys.modules.get("matplotlib.pyplot")
        if figures is None:
            return
        for number in figures.get_fignums():
            figure = figures.figure(number)
            picture = png_of(figure)
            if picture is not None:
                self._send(*picture)
            figures.close(figure)

    def _send(self, data: bytes, media_type: str) -> None:
        self._wire.send({"kind": "picture", "data": base64.b64encode(data).decode(), "media_type": media_type})


def _print_error(error: BaseException) -> None:
    """Print an error without our own frames."""
    try:
        report = traceback.TracebackException.from_exception(error)
        _hide_our_frames(report)
        lines = list(report.format())
    except Exception:  # noqa: BLE001  (its own words may fail, too)
        lines = [f"{type(error).__name__} (it cannot be shown)\n"]
    with contextlib.suppress(Exception):  # the code may have closed it
        sys.stderr.write("".join(lines))


def _hide_our_frames(report: traceback.TracebackException) -> None:
    todo: list[traceback.TracebackException | None] = [report]
    while todo:
        one = todo.pop()
        if one is not None:
            one.stack[:] = [frame for frame in one.stack if frame.filename != __file__]
            todo += [one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or [])]


def _words_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    except Exception:  # noqa: BLE001  (the same)
        return type(error).__name__


def main() -> NoReturn:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)  # else a grandchild would keep it open after our death
    names: list[str] = json.loads(sys.argv[3])
    signal.signal(signal.SIGINT, uninterrupted.on_signal)
    sys.path.insert(0, sys.argv[2])
    sys.argv = [""]
    wire = Wire(connection)
    runner = Runner(wire, names)
    wire.send({"kind": "ready"})
    while True:
        message = wire.runs.get()
        wire.running = message["id"]
        wire.send(runner.run(message["source"]))


if __name__ == "__main__":
    main()
