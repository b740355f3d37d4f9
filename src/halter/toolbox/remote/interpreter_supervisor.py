"""Supervises an interpreter on another machine. This program is sent there, and run by the Python there.

It imports nothing but the standard library, and needs Python 3.8. It has no file there: it comes as the first line
of its input, with the program of the interpreter (`interpreter_main.py`), and becomes both by a fork.

Its standard input is the control channel (see `command_script.py`). Lines "h" are heartbeats; "k", the end of the
input, or a long silence end it, and the process that waits for its end kills the rest. Other lines are messages for the
interpreter, except `sweep`, which is for the supervisor: end the processes that the code has started. `cancel` is
passed on, and the code's process group gets a SIGINT.

Its output is a sequence of frames, "KIND LENGTH" on a line and then so many bytes: `o` is output of the code, `m` a
message of the interpreter, `e` how it ended. Output and messages keep their order. Nothing here blocks: not on an
interpreter that does not read, not on a slow connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple  # noqa: UP035  (Python 3.8)

BEGIN = b"\0halter\n"  # what came before is not ours: a shell may greet
_CHUNK = 65536
_MAX_UNSENT = 4_000_000  # bytes of unsent output; then the code has to wait
_MAX_READS = 64
# Seconds.
_SWEEP_GRACE = 0.2
_SWEEP_TIMEOUT = 1.0
_FLUSH_TIMEOUT = 5.0
_SWEEP_INTERVAL = 0.02
_NAME = "<halter interpreter>"
_WITHOUT_PROGRAM = 0x200000 | 0x4  # a kernel thread, or exiting


class Supervisor:
    """One interpreter, whose process is *pid*."""

    def __init__(self, pid: int, wire: socket.socket, output: int, watch: str) -> None:
        silence, self._cookie = watch.split()
        self._silence = float(silence)
        self._pid = pid
        self._wire = wire
        self._output: Optional[int] = output  # noqa: UP045  (Python 3.8)
        self._is_listening = True  # to the wire
        self._last_input = time.monotonic()
        self._line = b""
        self._unsent = bytearray(BEGIN)  # to us
        self._unread = bytearray()  # to the interpreter
        self._selector = selectors.DefaultSelector()
        self._wakeup, waker = socket.socketpair()
        for end in (self._wakeup, waker, wire):
            end.setblocking(False)  # noqa: FBT003  (its own name for it)
        signal.set_wakeup_fd(waker.fileno())
        self._waker = waker  # keeps it open
        for descriptor in (1, output):
            os.set_blocking(descriptor, False)

    def run(self) -> NoReturn:
        """Run until the control channel or the interpreter ends."""
        self._want(0, selectors.EVENT_READ, self._read_control)
        self._want(self._wakeup.fileno(), selectors.EVENT_READ, lambda: self._wakeup.recv(_CHUNK))
        while True:
            self._check_interpreter()
            has_room = len(self._unsent) < _MAX_UNSENT
            reading = selectors.EVENT_READ if has_room else 0
            writing = selectors.EVENT_WRITE if self._unread else 0
            if self._output is not None:
                self._want(self._output, reading, self._pass_output)
            self._want(self._wire.fileno(), (reading if self._is_listening else 0) | writing, self._move_messages)
            self._want(1, selectors.EVENT_WRITE if self._unsent else 0, self._send)
            left = self._last_input + self._silence - time.monotonic()
            if left <= 0:
                os._exit(0)
            for key, _ in self._selector.select(left):
                key.data()

    def _want(self, descriptor: int, events: int, do: Callable[[], object]) -> None:
        known = self._selector.get_map().get(descriptor)
        if known is None:
            if events:
                self._selector.register(descriptor, events, do)
        elif not events:
            self._selector.unregister(descriptor)
        elif known.events != events:
            self._selector.modify(descriptor, events, do)

    # -- from us ------------------------------------------------------------------------------------------------------

    def _read_control(self) -> None:
        try:
            piece = os.read(0, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece:
            os._exit(0)
        self._last_input = time.monotonic()
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"k"):
                os._exit(0)
            if line.startswith(b"{"):
                self._handle(line)

    def _handle(self, line: bytes) -> None:
        kind = json.loads(line).get("kind")
        if kind == "sweep":
            self._sweep()
            return
        self._unread += line + b"\n"
        self._move_messages()
        if kind == "cancel":
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGINT)  # for its children too, as a terminal would

    # -- from the interpreter -----------------------------------------------------------------------------------------

    def _pass_output(self) -> None:
        for _ in range(_MAX_READS):
            if self._output is None:
                return
            try:
                piece = os.read(self._output, _CHUNK)
            except BlockingIOError:
                return
            if not piece:  # no process has it open any more
                self._want(self._output, 0, self._pass_output)
                os.close(self._output)
                self._output = None
                return
            self._frame(b"o", piece)

    def _move_messages(self) -> None:
        if self._unread:
            try:
                del self._unread[: self._wire.send(self._unread[:_CHUNK])]
            except BlockingIOError:
                pass
            except OSError:  # it has ended or closed its end, and will not read this
                self._unread.clear()
        with contextlib.suppress(OSError):
            piece = self._wire.recv(_CHUNK)
            self._is_listening = bool(piece)
            if piece:
                self._pass_output()  # what was printed before the message
                self._frame(b"m", piece)

    def _check_interpreter(self) -> None:
        try:
            found, status = os.waitpid(self._pid, os.WNOHANG)
        except ChildProcessError:
            return
        if found:
            self._pass_output()
            self._move_messages()
            how = f"exit code {os.WEXITSTATUS(status)}"
            if os.WIFSIGNALED(status):
                how = f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
            self._frame(b"e", how.encode())
            self._flush_and_exit()

    # -- to us --------------------------------------------------------------------------------------------------------

    def _frame(self, kind: bytes, data: bytes) -> None:
        self._unsent += b"%s %d\n%s" % (kind, len(data), data)

    def _send(self) -> None:
        try:
            sent = os.write(1, self._unsent[:_CHUNK])
        except BlockingIOError:
            return
        except OSError:
            os._exit(0)
        del self._unsent[:sent]

    def _flush_and_exit(self) -> NoReturn:
        """Send what is left, and exit, after a bounded time even if the connection accepts nothing."""
        end = time.monotonic() + _FLUSH_TIMEOUT
        selector = selectors.DefaultSelector()
        selector.register(1, selectors.EVENT_WRITE)
        while self._unsent and time.monotonic() < end:
            selector.select(max(end - time.monotonic(), 0))
            self._send()
        os._exit(0)

    # -- what the code has started ------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """End these processes. Bounded; nothing else is done meanwhile, so later messages are handled afterwards."""
        start = time.monotonic()
        is_first = True
        while True:
            others, are_all_known = remaining(self._pid, self._cookie)
            if are_all_known and not others:
                return
            waited = time.monotonic() - start
            for pid in others:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM if is_first or waited < _SWEEP_GRACE else signal.SIGKILL)
            # Not after the first look, which may take this long on a busy machine: what got SIGTERM may ignore it.
            if waited > _SWEEP_TIMEOUT and not is_first:
                return
            is_first = False
            time.sleep(_SWEEP_INTERVAL)


def remaining(session: int, cookie: str) -> Tuple[List[int], bool]:  # noqa: UP006  (Python 3.8)
    """Other processes in the *session* of a process, or with the *cookie*; where there is /proc.

    False if there may be more: a process that is just executing another program has no environment for a moment.
    """
    found, are_all_known = [], True
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():  # noqa: PTH112, PTH208
        if not name.isdigit() or int(name) in (os.getpid(), session):
            continue
        with contextlib.suppress(OSError, ValueError):
            # After the name, which may contain blanks: the state, the parent, the group, the session.
            words = _contents(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if words[0] in (b"Z", b"X") or int(words[6]) & _WITHOUT_PROGRAM:
                continue
            environment = _contents(f"/proc/{name}/environ")
            if int(words[3]) == session or cookie.encode() + b"=" in environment:
                found.append(int(name))
            elif not environment and (words[47] != words[48] or words[48] == b"0"):  # its addresses
                are_all_known = False
    return found, are_all_known


def _contents(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


def _become_interpreter(given: Dict[str, Any], wire: socket.socket, output: int) -> NoReturn:  # noqa: UP006
    """Run it, in this process. A boundary: what it raises is printed, as an interpreter would."""
    try:
        os.setsid()
        empty = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((empty, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        for descriptor in (empty, output):
            os.close(descriptor)
        sys.path[:] = [each for each in sys.path if each]
        sys.argv = [_NAME, str(wire.detach()), os.getcwd(), json.dumps(given["names"])]  # noqa: PTH109
        space: Dict[str, Any] = {"__name__": "halter_interpreter", "__file__": _NAME}  # noqa: UP006
        exec(compile(given["interpreter"], _NAME, "exec", dont_inherit=True), space)  # noqa: S102
        space["main"]()
    except BaseException:  # noqa: BLE001  (such as one of a Python that is too old)
        traceback.print_exc()
    finally:
        os._exit(1)


def main(given: Dict[str, Any]) -> NoReturn:  # noqa: UP006
    """Start the interpreter whose program is in *given*, and supervise it."""
    watch = os.environ.pop("HALTER_WATCH")
    with contextlib.suppress(OSError):
        os.close(3)  # the shell's
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until the interpreter has its own way with it
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.close(reading)
        _become_interpreter(given, theirs, writing)
    theirs.close()
    os.close(writing)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the descriptor is written to
    Supervisor(pid, ours, reading, watch).run()
