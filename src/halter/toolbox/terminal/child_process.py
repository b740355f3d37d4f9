"""A child process that runs until its owner stops it, and of which nothing is left afterwards.

One worker thread starts it, moves its input and output, and ends it with all of its descendants: processes that left
its group, ignore TERM or lost their parent are found and killed, and that is verified. Processes that it leaves running
when it exits (`server &`) still belong to it, and run until they end or are stopped.

Every change wakes waiting threads; nothing polls.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from halter.cancel.processes import guardian, registry
from halter.cancel.processes.cgroup import ControlGroup
from halter.cancel.processes.io import ExitDescriptor, WakeupPipe
from halter.cancel.processes.proc_table import HAS_PROC
from halter.cancel.processes.tree import ProcessTree, new_cookie
from halter.cancel.threads import pool
from halter.cancel.token import NEVER
from halter.toolbox.terminal.job_process import JobProcess

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halter.cancel.token import CancellationToken
    from halter.toolbox.sandbox.sandbox import Sandbox

_CHUNK: Final = 65536  # bytes
_MAX_READS: Final = 32  # of a chunk; a pipe holds no more than one or two
_REAP_TIMEOUT: Final = 10.0  # seconds
_MAX_UNSENT: Final = 16_000_000  # bytes


class ExtraPipe(NamedTuple):
    """A pipe or socket to the process, in addition to its standard streams. ChildProcess closes both ends."""

    ours: int
    theirs: int  # passed on to the process under the same number
    on_data: Callable[[bytes], object]  # called with what comes, in the child's thread
    is_two_way: bool = False  # then send() goes through here


class ChildProcess(JobProcess):
    """One process and its descendants."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        on_output: Callable[[bytes], object],  # called in the child's thread, with stdout and stderr in their order
        takes_input: bool = False,
        extra: ExtraPipe | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        """Start it, on a thread of its own; `wait()` for the result."""
        super().__init__()
        self._argv = list(argv)
        self.began_in = cwd
        self._env = dict(env)
        self._on_output = on_output
        self._takes_input = takes_input
        self._extra = extra
        self._sandbox = sandbox
        self.survivors = []
        self.is_drained = False  # its output from before the stop was read
        self.cookie = b""
        self._tree: ProcessTree | None = None
        self._cgroup: ControlGroup | None = None
        self._grace = 0.0
        self._lock = threading.Lock()  # held only to read and change fields
        self._unsent = bytearray()
        self._ends_input = False
        self._input: int | None = None  # the descriptor that send() goes to
        self._input_is_closed = not takes_input  # to standard input
        try:
            self._wakeup = WakeupPipe()
            pool.submit(self._run)
        except BaseException:  # no descriptor or no thread is available, so these are closed here
            for descriptor in () if extra is None else (extra.ours, extra.theirs):
                os.close(descriptor)
            raise

    # -- for its owner ------------------------------------------------------------------------------------------------

    @property
    def has_exited(self) -> bool:
        """Whether the process itself has ended; its descendants may still be running."""
        return self.returncode is not None or self.is_over

    def explain(self, output: str) -> str:
        """How the sandbox may have caused the failure of a command."""
        return "" if self._sandbox is None else self._sandbox.explain(output)

    @property
    def is_gone(self) -> bool:
        """Whether it was verified that no descendant is left."""
        return self.is_over and not self.survivors

    @property
    def accepts_input(self) -> bool:
        return not (self._input_is_closed or self._ends_input or self.has_exited)

    def send(self, data: bytes, *, ends: bool = False, token: CancellationToken = NEVER) -> None:  # noqa: ARG002
        """Write to its input, without waiting. With *ends*, the input is closed after that."""
        with self._lock:
            if len(self._unsent) + len(data) > _MAX_UNSENT:
                raise BufferError("the process does not read its input; too much of it is waiting")
            self._unsent += data
            self._ends_input = self._ends_input or ends
        self._wakeup.wake()

    def signal(self, number: signal.Signals) -> None:
        """Signal its process group, if it is still there."""
        with self._lock:  # the number cannot have gone to another before it is reaped, which is done under the lock
            if self.pid is not None and self.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def stop(self, grace: float) -> None:
        """End it and its descendants: TERM, and KILL after *grace* seconds. Returns at once; see `is_over`."""
        with self._lock:
            self._grace = min(grace, self._grace) if self.was_stopped else grace
            self.was_stopped = True
        self._wakeup.wake()

    # -- in its thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        """Watch it, from its start to the end of its last descendant. A boundary: errors are stored in `error`."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            if self._extra is not None:
                stack.callback(os.close, self._extra.ours)
            try:
                process = self._start(stack)
                if process is not None:
                    stack.callback(self._wait, process)
                    self._watch(process)
            except Exception as error:  # noqa: BLE001
                self.error = error
                if self._tree is not None:
                    self.survivors = registry.stop(self._tree, 0.0)

    def _end(self) -> None:
        self._wakeup.close()
        if self._cgroup is not None:
            self._cgroup.remove()
        self.ended_at = self.ended_at or time.monotonic()
        self.is_over = True
        self.changes.notify()

    def _start(self, stack: contextlib.ExitStack) -> subprocess.Popen[bytes] | None:
        cookie = new_cookie()
        try:
            guardian.wait_until_started()
            if self._sandbox is not None:
                self._sandbox.prepare()  # which takes a while; a stop may come meanwhile
            if self.was_stopped:  # nothing starts after the stop
                return None
            self._cgroup = cgroup = ControlGroup.create(cookie.lower())
            popen = subprocess.Popen if self._sandbox is None else self._sandbox.popen
            process = popen(
                self._argv if cgroup is None else cgroup.enter(self._argv),
                cwd=self.began_in,
                env=self._env | {cookie: "1"},
                stdin=subprocess.PIPE if self._takes_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=() if self._extra is None else (self._extra.theirs,),
                bufsize=0,
            )
        finally:
            if self._extra is not None:
                os.close(self._extra.theirs)
        pid = process.pid
        self.cookie = cookie.encode()
        self._tree = ProcessTree(
            [pid], session=pid, cookie=self.cookie, cgroup=cgroup, reap=lambda: self._reap(process)
        )
        registry.add(self._tree)
        assert process.stdout is not None
        stack.callback(process.stdout.close)
        if process.stdin is not None:
            stack.callback(self._close_input, process)
            self._input = process.stdin.fileno()
        elif self._extra is not None and self._extra.is_two_way:
            self._input = self._extra.ours
        self.pid = pid
        self.changes.notify()
        return process

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        assert self._tree is not None
        assert process.stdout is not None
        sinks = {process.stdout.fileno(): self._on_output}
        if self._extra is not None:
            sinks[self._extra.ours] = self._extra.on_data
        with _ProcessWatch(process, self._wakeup, sinks) as watch:
            while not self.was_stopped:
                self._send_some(process, watch)
                watch.wait(wants_to_send=self._input if self._unsent else None)
                if watch.has_ended_processes:
                    self._reap(process)
                    left = self._tree.members() if HAS_PROC else {}
                    self.left = len(left)
                    self.changes.notify()
                    if not left:
                        registry.remove(self._tree)
                        return
                    watch.watch_ends(left)
                elif watch.has_read:
                    self.changes.notify()
            watch.drain()
            self.is_drained = True
            self.changes.notify()
            self.survivors = registry.stop(self._tree, self._grace)
            watch.drain()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Reap it, if it took longer than usual to die."""
        if self.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_TIMEOUT)
            self._reap(process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            code = process.poll()
            if code is not None and self.returncode is None:
                self.ended_at = time.monotonic()
                self.returncode = code

    def _send_some(self, process: subprocess.Popen[bytes], watch: _ProcessWatch) -> None:
        """Write as much as it accepts now."""
        with self._lock:
            data = bytes(self._unsent[:_CHUNK])
        if data and self._input is not None:
            try:
                sent = os.write(self._input, data)
            except BlockingIOError:
                return
            except OSError:  # it does not read the rest
                sent = len(self._unsent)
                self._ends_input = True
            with self._lock:
                del self._unsent[:sent]
        if self._ends_input and not self._unsent and process.stdin is not None and not self._input_is_closed:
            watch.forget(self._input)
            self._close_input(process)

    def _close_input(self, process: subprocess.Popen[bytes]) -> None:
        self._input_is_closed = True
        self._input = None
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()


class _ProcessWatch:
    """What the thread waits for: output, the end of the process, room for input, and the ends of its descendants."""

    def __init__(
        self, process: subprocess.Popen[bytes], wakeup: WakeupPipe, sinks: Mapping[int, Callable[[bytes], object]]
    ) -> None:
        self.has_ended_processes = False
        self.has_read = False
        self._must_check = False
        self._process = process
        self._wakeup = wakeup
        self._sinks = dict(sinks)
        self._first = next(iter(sinks))  # its standard output
        self._stack = contextlib.ExitStack()
        self._ends: list[int] = []
        self._writing: int | None = None

    def __enter__(self) -> Self:
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        self._stack.callback(self._close_ends)
        self._exit_descriptor = self._stack.enter_context(ExitDescriptor(self._process))
        self._selector.register(self._exit_descriptor, selectors.EVENT_READ, self._on_exit)
        self._selector.register(self._wakeup, selectors.EVENT_READ, lambda: os.read(self._wakeup.fileno(), 4096))
        for descriptor in self._sinks:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, lambda at=descriptor: self._read(at))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def wait(self, *, wants_to_send: int | None) -> None:
        """Block until there is something to do, and do it."""
        self.has_ended_processes, self._must_check = self._must_check, False
        self.has_read = False
        self._want_to_send(wants_to_send)
        for key, mask in self._selector.select():
            if mask & selectors.EVENT_READ:
                key.data()
        if self.has_ended_processes:
            self.drain()

    def watch_ends(self, members: Mapping[int, int]) -> None:
        """Watch for the ends of these processes, and of no others."""
        self._close_ends()
        for pid in members:
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:  # it has ended since: check again at once
                self._wakeup.wake()
                self._must_check = True
                continue
            self._ends.append(descriptor)
            self._selector.register(descriptor, selectors.EVENT_READ, self._on_descendant_exit)

    def forget(self, descriptor: int | None) -> None:
        """Stop using a descriptor that is about to be closed."""
        if descriptor is not None and descriptor == self._writing:
            self._want_to_send(None)

    def drain(self) -> None:
        """Read what is there now. Bounded: a descendant may write faster than this reads."""
        for descriptor in list(self._sinks):
            self._drain_one(descriptor)

    def _drain_one(self, descriptor: int) -> None:
        for _ in range(_MAX_READS):
            if not self._read(descriptor):
                return

    def _read(self, descriptor: int) -> bool:
        """Read one piece; False if there is none."""
        if descriptor not in self._sinks:
            return False
        try:
            piece = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # a socket whose other end died with something unread in it
            piece = b""
        if not piece:
            self._sinks.pop(descriptor)
            self._selector.unregister(descriptor)
            if self._writing == descriptor:
                self._writing = None
            return False
        self.has_read = True
        if descriptor != self._first:
            self._drain_one(self._first)  # what was printed before a message is read before it
        self._sinks[descriptor](piece)
        return True

    def _want_to_send(self, descriptor: int | None) -> None:
        if descriptor == self._writing:
            return
        if self._writing is not None:
            if self._writing in self._sinks:
                self._selector.modify(self._writing, selectors.EVENT_READ, self._selector.get_key(self._writing).data)
            else:
                self._selector.unregister(self._writing)
        self._writing = descriptor
        if descriptor is None:
            return
        if descriptor in self._sinks:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(descriptor, both, self._selector.get_key(descriptor).data)
        else:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_WRITE)

    def _on_exit(self) -> None:
        self._selector.unregister(self._exit_descriptor)
        self.has_ended_processes = True

    def _on_descendant_exit(self) -> None:
        self.has_ended_processes = True

    def _close_ends(self) -> None:
        for descriptor in self._ends:
            self._selector.unregister(descriptor)
            os.close(descriptor)
        self._ends = []
