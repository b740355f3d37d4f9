"""The main program of a worker process: runs one function after another for ``halter.cancel.isolation.api``.

The main thread runs the functions. A second thread reads the parent's requests: it cancels the token of the running
function, and ends the process at once when the parent is gone.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import queue
import runpy
import sys
import threading
import traceback
from typing import Any, NoReturn

from halter.cancel.isolation.pipe_messages import MessageReader, MessageWriter
from halter.cancel.token import CancellationToken, Cancelled


class WorkerCall:
    """One call that the parent has requested."""

    def __init__(self, number: int, payload: bytes, main_path: str | None, timeout: float | None) -> None:
        self.number = number
        self._payload = payload
        self._main_path = main_path
        self.token = CancellationToken(name="isolated", timeout=timeout)

    def run(self) -> tuple[str, bytes]:
        """Run the function. A boundary: whatever it raises is the answer."""
        try:
            with self.token.bind():
                fn, args, kwargs = _Unpickler(self._payload, self._main_path).load()
                value = fn(*args, **kwargs)
            return "value", pickle.dumps(value)
        except BaseException as exc:  # noqa: BLE001
            if isinstance(exc, Cancelled) and exc.belongs_to(self.token):
                return "cancelled", b""
            return "error", _pickle_error(exc)


class _Unpickler(pickle.Unpickler):
    """Finds names of the parent's ``__main__``, which is another module here."""

    def __init__(self, payload: bytes, main_path: str | None) -> None:
        super().__init__(io.BytesIO(payload))
        self._main_path = main_path

    def find_class(self, module: str, name: str) -> Any:
        if module == "__main__":
            _load_main(self._main_path)
        return super().find_class(module, name)


def _load_main(path: str | None) -> None:
    """Run the parent's main program as a module, once; its ``if __name__ == "__main__"`` part is not run."""
    main = sys.modules["__main__"]
    if path is not None and getattr(main, "__file__", None) != path:
        namespace = runpy.run_path(path, run_name="__halter_main__")
        main.__dict__.update(namespace, __name__="__main__", __file__=path)


def _pickle_error(exc: BaseException) -> bytes:
    """Pickle an exception, with its traceback as a note; one that cannot be pickled becomes a RuntimeError."""
    where = "".join(traceback.format_exception(exc))
    exc.add_note(f"In the worker process:\n{where}")
    try:
        packed = pickle.dumps(exc)
        pickle.loads(packed)
    except Exception:  # noqa: BLE001  (user code: __reduce__ and constructors may raise anything)
        return pickle.dumps(RuntimeError(f"{type(exc).__qualname__}: {exc}\n\nIn the worker process:\n{where}"))
    return packed


class Worker:
    """The two threads of a worker process, and their shared state."""

    def __init__(self, requests: MessageReader, answers: MessageWriter) -> None:
        self._requests = requests
        self._answers = answers
        self._calls: queue.SimpleQueue[WorkerCall] = queue.SimpleQueue()

    def serve(self) -> None:
        threading.Thread(target=self._read_requests, name="halter-requests", daemon=True).start()
        while True:
            call = self._calls.get()
            self._answers.write((call.number, "started", b""))
            kind, body = call.run()
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            self._answers.write((call.number, kind, body))

    def _read_requests(self) -> None:
        """Read until the parent is gone, or has closed the pipe to end us.

        A boundary: whatever ends this thread ends the process, which could not read the next call. The parent would
        wait for it for ever.
        """
        code = 0
        try:
            self._take_requests()
        except (EOFError, OSError):
            pass
        except BaseException:  # noqa: BLE001  (a boundary)
            code = 1
            traceback.print_exc()
        os._exit(code)

    def _take_requests(self) -> NoReturn:
        call: WorkerCall | None = None
        while True:
            kind, number, *rest = self._requests.read()
            if kind == "call":
                call = WorkerCall(number, *rest)
                self._calls.put(call)
            elif call is not None and call.number == number:
                reason, detail = rest
                call.token.cancel(reason, detail=detail)


def main(requests: int, answers: int) -> None:
    for descriptor in (requests, answers):
        os.set_inheritable(descriptor, False)  # otherwise a grandchild would keep the pipe open after our end
    with contextlib.suppress(BrokenPipeError):  # the parent is gone
        Worker(MessageReader(requests), MessageWriter(answers)).serve()
