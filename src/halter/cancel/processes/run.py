"""Runs commands. A stop returns control at once, and no process is left behind.

A command runs in a session of its own. One worker thread starts it, and collects its output and its exit code. The
caller waits for that thread or for the token, whichever is first. On a stop the caller returns at once with the output
so far, and the worker thread ends the process tree: TERM, grace, KILL, for the group and for processes that left it,
until the process table shows none.

Memory is bounded. Of each stream the first and the last bytes are kept. A command that writes faster than ``on_output``
takes its output has to wait.

Needs POSIX. On systems other than Linux, processes that leave their group are not found.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import subprocess
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from halter.cancel.context import current_token
from halter.cancel.deadlines import check_seconds
from halter.cancel.processes import guardian, registry
from halter.cancel.processes.cgroup import ControlGroup
from halter.cancel.processes.io import ProcessIO, WakeupPipe
from halter.cancel.processes.output_buffer import OutputBuffer
from halter.cancel.processes.tree import ProcessTree, new_cookie
from halter.cancel.registration import LoopWaker, Waker, call_in_loop
from halter.cancel.scope import ends_on_cancel
from halter.cancel.threads import pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from halter.cancel.token import CancellationToken

_log = logging.getLogger(__name__)
MAX_OUTPUT: Final = 10_000_000  # bytes of each stream
# The number of pieces of output, of up to 32 KB each, that may wait for on_output.
_MAX_UNDELIVERED: Final = 64


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """The exit code and the output of a process, or its output until it was stopped."""

    returncode: int | None  # None if it was stopped, or not started
    stdout: bytes
    stderr: bytes
    cancelled: bool = False
    reason: str | None = None
    truncated: bool = False  # a stream was longer than max_output: only its first and last bytes are here


async def run_process(  # noqa: PLR0913  (the options of subprocess.run)
    command: str | Sequence[str | os.PathLike[str]],
    *,
    token: CancellationToken | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    input: bytes | str | None = None,  # noqa: A002  (the name in subprocess.run)
    timeout: float | None = None,  # noqa: ASYNC109  (it becomes the deadline of a token)
    grace: float = 1.0,
    on_output: Callable[[bytes], object] | None = None,
    max_output: int = MAX_OUTPUT,
) -> ProcessResult:
    """Run a command (a list, or a string for the shell) and return its exit code and output.

    If the token (default: the current one) is cancelled or *timeout* seconds pass, it returns at once with
    ``cancelled=True`` and the output so far; the process and all its descendants are dead within *grace* + 1 seconds.
    *on_output* is called in the event loop with each piece of output as it comes. Of each stream at most *max_output*
    bytes are returned, the first half and the last half. The command reads *input*, or nothing; it never reads the
    terminal.
    """
    own = (token if token is not None else current_token()).child("process", timeout)
    run = _ProcessRun(
        command, own, cwd=cwd, env=env, data=input, grace=grace, on_output=on_output, max_output=max_output
    )
    if own.is_cancelled:
        await asyncio.sleep(0)  # a caller that loops and ignores the result must not block the event loop
        return run.outcome()
    loop = asyncio.get_running_loop()
    is_over = asyncio.Event()

    try:
        with ends_on_cancel(own), own._register(LoopWaker(own, loop, is_over.set)):
            run.start(lambda call: call_in_loop(loop, call), lambda: call_in_loop(loop, is_over.set))
            await is_over.wait()
    except BaseException as exc:
        own.cancel("external", detail=f"{type(exc).__name__} while awaiting it")
        raise
    return run.outcome()


def run_process_blocking(  # noqa: PLR0913  (as above)
    command: str | Sequence[str | os.PathLike[str]],
    *,
    token: CancellationToken | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    input: bytes | str | None = None,  # noqa: A002  (as above)
    timeout: float | None = None,
    grace: float = 1.0,
    on_output: Callable[[bytes], object] | None = None,
    max_output: int = MAX_OUTPUT,
) -> ProcessResult:
    """Do what run_process() does, for code that is not async. *on_output* is called in the calling thread."""
    own = (token if token is not None else current_token()).child("process", timeout)
    run = _ProcessRun(
        command, own, cwd=cwd, env=env, data=input, grace=grace, on_output=on_output, max_output=max_output
    )
    if own.is_cancelled:
        return run.outcome()
    calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()  # None: stop waiting

    def wake() -> None:
        calls.put(None)

    try:
        with own._register(Waker(own, wake)):
            run.start(calls.put, wake)
            while (call := calls.get()) is not None:
                call()
    except BaseException as exc:
        own.cancel("external", detail=f"{type(exc).__name__} while waiting for it")
        raise
    return run.outcome()


class _ProcessRun:
    """One command, and the worker thread that starts it, reads its output and ends it."""

    def __init__(
        self,
        command: str | Sequence[str | os.PathLike[str]],
        token: CancellationToken,
        *,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        data: bytes | str | None,
        grace: float,
        on_output: Callable[[bytes], object] | None,
        max_output: int,
    ) -> None:
        if not hasattr(os, "killpg"):
            raise OSError(
                "processes cannot be stopped here: this system has no process groups; use run_blocking() and subprocess"
            )
        self._argv = _argv(command)
        self._token = token
        self._cwd = cwd
        self._env = dict(os.environ if env is None else env)
        self._data = _encoded(data)
        self._grace = check_seconds("grace", grace)
        self._on_output = on_output
        limit = _check_bytes("max_output", max_output)
        self._stdout = OutputBuffer(limit)
        self._stderr = OutputBuffer(limit)
        self._returncode: int | None = None
        self._error: BaseException | None = None
        # One entry for each piece that may still be queued for the caller: a semaphore that is safe in signal handlers.
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()

    def start(self, call_waiter: Callable[[Callable[[], object]], object], on_end: Callable[[], object]) -> None:
        """Start the worker thread.

        *call_waiter* runs a function where the caller waits; *on_end* is called when outcome() is final.
        """
        self._call_waiter = call_waiter
        self._on_end = on_end
        if self._on_output is not None:
            for _ in range(_MAX_UNDELIVERED):
                self._free.put(None)
        pool.submit(self._run)

    def outcome(self) -> ProcessResult:
        """The result so far. Raises if the command could not be started, unless it was stopped."""
        if self._error is not None and not self._token.is_cancelled:
            raise self._error
        returncode = self._returncode
        stdout, is_stdout_truncated = self._stdout.content()
        stderr, is_stderr_truncated = self._stderr.content()
        truncated = is_stdout_truncated or is_stderr_truncated
        if returncode is not None:
            return ProcessResult(returncode, stdout, stderr, truncated=truncated)
        reason = self._token.reason
        return ProcessResult(None, stdout, stderr, cancelled=True, reason=reason, truncated=truncated)

    def _run(self) -> None:
        """Run the command, until its last process has ended. A boundary: outcome() raises the error."""
        try:
            guardian.wait_until_started()
            if not self._token.is_cancelled:  # nothing starts after the stop
                self._start_and_watch()
        except Exception as exc:  # noqa: BLE001  (the caller raises it)
            self._error = exc
        finally:
            self._on_end()

    def _start_and_watch(self) -> None:
        cookie = new_cookie()
        cgroup = ControlGroup.create(cookie.lower())
        wakeup = WakeupPipe()
        try:
            process = subprocess.Popen(
                self._argv if cgroup is None else cgroup.enter(self._argv),
                cwd=self._cwd,
                env=self._env | guardian.environment() | {cookie: "1"},
                stdin=subprocess.PIPE if self._data else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
            tree = ProcessTree(
                [process.pid], session=process.pid, cookie=cookie.encode(), cgroup=cgroup, reap=process.poll
            )
            registry.add(tree)
            # A signal that came while the waiter was about to wait, in competition with this thread for the interpreter
            # lock, does not end its wait: Python runs the handler when the waiter runs again. So it has to, once.
            self._call_waiter(_do_nothing)
            try:
                with (
                    self._token._register(Waker(self._token, wakeup.wake)),
                    self._token._register(Waker(self._token, lambda: self._free.put(None))),
                    _closing_pipes(process),
                ):
                    self._watch(process, tree, wakeup)
            except BaseException:  # the caller gets the error, and nobody else would end the command
                registry.stop(tree, 0.0)
                raise
        finally:
            wakeup.close()
            if cgroup is not None:
                cgroup.remove()

    def _watch(self, process: subprocess.Popen[bytes], tree: ProcessTree, wakeup: WakeupPipe) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        sinks: dict[IO[bytes], Callable[[bytes], object]] = {
            process.stdout: self._take_stdout,
            process.stderr: self._take_stderr,
        }
        if ProcessIO(process, self._data, sinks).run(wakeup):
            self._returncode = process.wait()
        if self._token.is_cancelled:
            registry.stop(tree, self._grace)
        else:
            registry.remove(tree)

    def _take_stdout(self, piece: bytes) -> None:
        self._stdout.add(piece)
        self._deliver(piece)

    def _take_stderr(self, piece: bytes) -> None:
        self._stderr.add(piece)
        self._deliver(piece)

    def _deliver(self, piece: bytes) -> None:
        """Have the caller call on_output. Blocks while too many pieces wait for that, until the stop at most."""
        on_output = self._on_output
        if on_output is None or self._token.is_cancelled:
            return
        self._free.get()

        def deliver() -> None:
            self._free.put(None)
            _call_on_output(on_output, piece, self._token)

        if not self._token.is_cancelled:
            self._call_waiter(deliver)


@contextlib.contextmanager
def _closing_pipes(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _do_nothing() -> None:
    pass


def _call_on_output(on_output: Callable[[bytes], object], piece: bytes, token: CancellationToken) -> None:
    """Call the user's callback, unless the caller has returned. A boundary: its error is logged."""
    if token.is_cancelled:
        return
    try:
        on_output(piece)
    except Exception:  # noqa: BLE001  (a boundary)
        _log.exception("on_output of a process failed; the process goes on")


def _argv(command: str | Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(command, str):
        return ["/bin/sh", "-c", command]
    argv = [os.fspath(part) for part in command]
    if not argv:
        msg = 'a command is a string for the shell, or a list such as ["ls", "-l"]; this list is empty'
        raise ValueError(msg)
    return argv


def _check_bytes(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a number of bytes, not {value!r}")
    if value < 0:
        raise ValueError(f"{name} must be zero or more bytes, not {value!r}")
    return value


def _encoded(data: bytes | str | None) -> bytes:
    return data.encode() if isinstance(data, str) else data or b""
