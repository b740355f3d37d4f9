"""Processes from which control comes back at once, and of which nothing is left.

A command runs in a session of its own. One worker thread starts it, collects its output and, when it
ends, its exit code; the caller awaits that thread or the token, whichever is first. On a stop the
caller goes on at once with the output so far, and the same thread stays behind to end the family:
TERM, grace, KILL, for the group and for those who left it, until the process table shows none.

Needs POSIX; on other systems than Linux, processes that leave their group are not found.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from halter.cancel import families, threads
from halter.cancel.cgroup import ControlGroup
from halter.cancel.context import current_token
from halter.cancel.family import Family
from halter.cancel.pump import Bell, Pump
from halter.cancel.scope import ending_itself
from halter.cancel.seconds import check_seconds
from halter.cancel.token import CancellationToken, Waker, call_in_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a process ended, or what it had said when it was stopped."""

    returncode: int | None  # None if it was stopped, or not even started
    stdout: bytes
    stderr: bytes
    cancelled: bool = False
    reason: str | None = None


async def run_process(
    command: str | Sequence[str | os.PathLike[str]],
    *,
    token: CancellationToken | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    input: bytes | str | None = None,  # noqa: A002  (the name that subprocess.run taught everybody)
    timeout: float | None = None,  # noqa: ASYNC109  (it becomes the deadline of a token)
    grace: float = 1.0,
    on_output: Callable[[bytes], object] | None = None,
) -> ProcessResult:
    """Run a command (a list, or a string for the shell) and return its exit code and output.

    If the token (default: the current one) is cancelled or *timeout* seconds pass, it returns at once
    with ``cancelled=True`` and the output so far; the process and all its descendants are dead within
    *grace* + 1 seconds. *on_output* is called in the event loop with each piece of output as it comes.
    The command reads *input*, or nothing; it never reads the terminal.
    """
    if not hasattr(os, "killpg"):
        msg = "run_process() needs process groups, which this system does not have; use run_blocking() and subprocess"
        raise OSError(msg)
    own = (token if token is not None else current_token()).child("process", timeout)
    run = _Run(_argv(command), own, cwd, env, _encoded(input), check_seconds("grace", grace))
    if own.is_cancelled:
        await asyncio.sleep(0)  # a loop around us that does not look at the result must not hold up everybody
        return run.partial_result()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    if on_output is not None:
        run.on_output = lambda piece: call_in_loop(loop, lambda: _hand_over(on_output, piece, own))
    run.on_end = lambda: call_in_loop(loop, ended.set)
    try:
        with ending_itself(own), own._register(Waker(own, lambda: call_in_loop(loop, ended.set))):
            threads.submit(run.run)
            await ended.wait()
    except asyncio.CancelledError:
        own.cancel("external", detail="the task that awaited it was cancelled")
        raise
    if run.result is not None:
        return run.result
    if run.error is not None and not own.is_cancelled:
        raise run.error
    return run.partial_result()


class _Run:
    """One command, from the side of the worker thread that looks after it."""

    def __init__(
        self,
        argv: list[str],
        token: CancellationToken,
        cwd: str | os.PathLike[str] | None,
        env: Mapping[str, str] | None,
        data: bytes,
        grace: float,
    ) -> None:
        self.on_output: Callable[[bytes], object] = lambda _piece: None
        self.on_end: Callable[[], object] = lambda: None
        self.result: ProcessResult | None = None
        self.error: BaseException | None = None
        self._argv = argv
        self._token = token
        self._cwd = cwd
        self._env = dict(os.environ if env is None else env)
        self._data = data
        self._grace = grace
        self._stdout: list[bytes] = []
        self._stderr: list[bytes] = []

    def partial_result(self) -> ProcessResult:
        return ProcessResult(None, b"".join(self._stdout), b"".join(self._stderr), True, self._token.reason)  # noqa: FBT003

    def run(self) -> None:
        """Look after the command from its start to the end of the last of its family. A boundary."""
        try:
            if not self._token.is_cancelled:  # nothing starts after the stop
                self._start_and_watch()
        except Exception as exc:  # noqa: BLE001  (the caller raises it)
            self.error = exc
        finally:
            self.on_end()

    def _start_and_watch(self) -> None:
        mark = f"HALTER_FAMILY_{secrets.token_hex(8)}"
        cgroup = ControlGroup.create(mark.lower())
        bell = Bell()
        try:
            process = subprocess.Popen(
                self._argv if cgroup is None else cgroup.enter(self._argv),
                cwd=self._cwd,
                env=self._env | {mark: "1"},
                stdin=subprocess.PIPE if self._data else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
            family = Family([process.pid], session=process.pid, cookie=mark.encode(), cgroup=cgroup, reap=process.poll)
            families.add(family)
            with self._token._register(Waker(self._token, bell.ring)), _closing_pipes(process):
                self._watch(process, family, bell)
        finally:
            bell.close()
            if cgroup is not None:
                cgroup.remove()

    def _watch(self, process: subprocess.Popen[bytes], family: Family, bell: Bell) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        pump = Pump(process, self._data, {process.stdout: self._keep_stdout, process.stderr: self._keep_stderr})
        if pump.run(bell):
            self.result = ProcessResult(process.wait(), b"".join(self._stdout), b"".join(self._stderr))
        if self._token.is_cancelled:
            families.stop(family, self._grace)
        else:
            families.remove(family)

    def _keep_stdout(self, piece: bytes) -> None:
        self._stdout.append(piece)
        self.on_output(piece)

    def _keep_stderr(self, piece: bytes) -> None:
        self._stderr.append(piece)
        self.on_output(piece)


@contextlib.contextmanager
def _closing_pipes(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def _hand_over(on_output: Callable[[bytes], object], piece: bytes, token: CancellationToken) -> None:
    """Give a piece of output to the user's callback, unless control has gone back. A boundary."""
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


def _encoded(data: bytes | str | None) -> bytes:
    return data.encode() if isinstance(data, str) else data or b""
