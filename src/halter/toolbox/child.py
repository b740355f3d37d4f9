"""A process of a tool's, that lives as long as its owner wants, and of which nothing is left afterwards.

One worker thread starts it, moves what it says and what it is told, and ends it with its whole family: processes that
left its group, ignore TERM or lost their parent are found and killed, and it is made sure that they are. What it leaves
behind when it exits (`server &`) still belongs to it and goes on until it ends or is stopped.

Whoever waits is woken by every change; nothing polls.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from halter.cancel import families, threads
from halter.cancel.cgroup import ControlGroup
from halter.cancel.family import Family
from halter.cancel.pump import Bell, ExitNotice
from halter.cancel.table import HAS_PROC
from halter.cancel.token import NEVER
from halter.toolbox.changes import Changes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from halter.cancel.token import CancellationToken
    from halter.toolbox.output import Progress

_CHUNK: Final = 65536
_MOST_READS: Final = 32  # of a chunk; a pipe holds no more than one or two
_SLOW_DEATH: Final = 10.0
_MOST_UNSENT: Final = 16_000_000


class Link(NamedTuple):
    """A pipe or socket to the process beside its standard streams. The child closes both ends when it is over."""

    ours: int
    theirs: int  # passed on to the process under the same number
    hear: Callable[[bytes], object]  # called with what comes, in the child's thread
    is_two_way: bool = False  # then send() goes through here


class Child:
    """One process and its family."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        on_output: Callable[[bytes], object],  # called in the child's thread, with stdout and stderr in their order
        takes_input: bool = False,
        link: Link | None = None,
    ) -> None:
        """Start it, on a thread of its own: `wait()` tells how that went."""
        self._argv = list(argv)
        self._cwd = cwd
        self._env = dict(env)
        self._on_output = on_output
        self._takes_input = takes_input
        self._link = link
        self.pid: int | None = None
        self.returncode: int | None = None  # of the process itself
        self.error: Exception | None = None  # why it could not be started, or looked after
        self.left: int | None = None  # how many it left behind when it exited; None until that is known
        self.survivors: list[int] = []
        self.is_lost: Final = False  # as something far away may be
        self.is_over = False  # nobody of the family is left
        self.was_stopped = False
        self.is_drained = False  # what it had said before it was stopped has been heard
        self.cookie = b""
        self.started_at = time.monotonic()
        self.ended_at: float | None = None
        self._family: Family | None = None
        self._cgroup: ControlGroup | None = None
        self._grace = 0.0
        self._lock = threading.Lock()  # held to look and to note, never while anything is done
        self.changes = Changes()
        self._unsent = bytearray()
        self._ends_input = False
        self._input: int | None = None  # the descriptor that send() goes to
        self._is_deaf = not takes_input  # to standard input
        try:
            self._bell = Bell()
            threads.submit(self._run)
        except BaseException:  # no descriptor or no thread is to be had, so nobody else will close these
            for descriptor in () if link is None else (link.ours, link.theirs):
                os.close(descriptor)
            raise

    # -- for its owner ------------------------------------------------------------------------------------------------

    @property
    def has_exited(self) -> bool:
        """Whether the process itself has ended; those that it started may go on."""
        return self.returncode is not None or self.is_over

    @property
    def is_gone(self) -> bool:
        """Whether it was made sure that nobody of the family is left."""
        return self.is_over and not self.survivors

    @property
    def accepts_input(self) -> bool:
        return not (self._is_deaf or self._ends_input or self.has_exited)

    def wait(
        self,
        condition: Callable[[], object],
        token: CancellationToken = NEVER,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> bool:
        """Block until *condition* holds, the token is cancelled or the time is over; True if it holds."""
        return self.changes.wait(condition, token, timeout, progress)

    def wait_over(self, token: CancellationToken = NEVER, timeout: float | None = None) -> bool:
        """Block until nobody of the family is left."""
        return self.wait(lambda: self.is_over, token, timeout)

    def send(self, data: bytes, *, ends: bool = False, token: CancellationToken = NEVER) -> None:  # noqa: ARG002
        """Have it read *data*; does not wait until it does, so no token is needed. With *ends*, that was all."""
        with self._lock:
            if len(self._unsent) + len(data) > _MOST_UNSENT:
                msg = "it does not read what it is told: the input has piled up"
                raise BufferError(msg)
            self._unsent += data
            self._ends_input = self._ends_input or ends
        self._bell.ring()

    def signal(self, number: signal.Signals) -> None:
        """Signal its process group, if it is still there."""
        with self._lock:  # the number cannot have gone to another before it is reaped, which is done under the lock
            if self.pid is not None and self.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, number)

    def stop(self, grace: float) -> None:
        """Have the family ended: TERM, and KILL after *grace* seconds. Returns at once; `is_over` tells when."""
        with self._lock:
            self._grace = min(grace, self._grace) if self.was_stopped else grace
            self.was_stopped = True
        self._bell.ring()

    # -- the thread that looks after it -------------------------------------------------------------------------------

    def _run(self) -> None:
        """Look after it, from its start to the end of the last of its family. A boundary: `error` is told."""
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            if self._link is not None:
                stack.callback(os.close, self._link.ours)
            try:
                process = self._start(stack)
                if process is not None:
                    stack.callback(self._wait, process)
                    self._watch(process)
            except Exception as error:  # noqa: BLE001
                self.error = error
                if self._family is not None:
                    self.survivors = families.stop(self._family, 0.0)

    def _end(self) -> None:
        self._bell.close()
        if self._cgroup is not None:
            self._cgroup.remove()
        self.ended_at = self.ended_at or time.monotonic()
        self.is_over = True
        self.changes.tell()

    def _start(self, stack: contextlib.ExitStack) -> subprocess.Popen[bytes] | None:
        mark = f"HALTER_FAMILY_{secrets.token_hex(8)}"
        try:
            if self.was_stopped:  # nothing starts after the stop
                return None
            self._cgroup = cgroup = ControlGroup.create(mark.lower())
            process = subprocess.Popen(
                self._argv if cgroup is None else cgroup.enter(self._argv),
                cwd=self._cwd,
                env=self._env | {mark: "1"},
                stdin=subprocess.PIPE if self._takes_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=() if self._link is None else (self._link.theirs,),
                bufsize=0,
            )
        finally:
            if self._link is not None:
                os.close(self._link.theirs)
        pid = process.pid
        self.cookie = mark.encode()
        self._family = Family([pid], session=pid, cookie=self.cookie, cgroup=cgroup, reap=lambda: self._reap(process))
        families.add(self._family)
        assert process.stdout is not None
        stack.callback(process.stdout.close)
        if process.stdin is not None:
            stack.callback(self._close_input, process)
            self._input = process.stdin.fileno()
        elif self._link is not None and self._link.is_two_way:
            self._input = self._link.ours
        self.pid = pid
        self.changes.tell()
        return process

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        assert self._family is not None
        assert process.stdout is not None
        sinks = {process.stdout.fileno(): self._on_output}
        if self._link is not None:
            sinks[self._link.ours] = self._link.hear
        with _Watch(process, self._bell, sinks) as watch:
            while not self.was_stopped:
                self._send_some(process, watch)
                watch.wait(wants_to_send=self._input if self._unsent else None)
                if watch.has_news_of_ends:
                    self._reap(process)
                    left = self._family.members() if HAS_PROC else {}
                    self.left = len(left)
                    self.changes.tell()
                    if not left:
                        families.remove(self._family)
                        return
                    watch.watch_ends(left)
                elif watch.has_heard:
                    self.changes.tell()
            watch.drain()
            self.is_drained = True
            self.changes.tell()
            self.survivors = families.stop(self._family, self._grace)
            watch.drain()

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """Reap it, should it take longer to die than a machine usually takes; else this finds it reaped."""
        if self.returncode is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_SLOW_DEATH)
            self._reap(process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            code = process.poll()
            if code is not None and self.returncode is None:
                self.ended_at = time.monotonic()
                self.returncode = code

    def _send_some(self, process: subprocess.Popen[bytes], watch: _Watch) -> None:
        """Send as much as it takes now."""
        with self._lock:
            data = bytes(self._unsent[:_CHUNK])
        if data and self._input is not None:
            try:
                sent = os.write(self._input, data)
            except BlockingIOError:
                return
            except OSError:  # it does not want the rest
                sent = len(self._unsent)
                self._ends_input = True
            with self._lock:
                del self._unsent[:sent]
        if self._ends_input and not self._unsent and process.stdin is not None and not self._is_deaf:
            watch.forget(self._input)
            self._close_input(process)

    def _close_input(self, process: subprocess.Popen[bytes]) -> None:
        self._is_deaf = True
        self._input = None
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()


class _Watch:
    """What the thread of one child waits for: what it says, its end, room for more input, the ends of those it left."""

    def __init__(
        self, process: subprocess.Popen[bytes], bell: Bell, sinks: Mapping[int, Callable[[bytes], object]]
    ) -> None:
        self.has_news_of_ends = False
        self.has_heard = False
        self._must_look = False
        self._process = process
        self._bell = bell
        self._sinks = dict(sinks)
        self._first = next(iter(sinks))  # its standard output
        self._stack = contextlib.ExitStack()
        self._ends: list[int] = []
        self._writing: int | None = None

    def __enter__(self) -> Self:
        self._selector = self._stack.enter_context(selectors.DefaultSelector())
        self._stack.callback(self._close_ends)
        self._notice = self._stack.enter_context(ExitNotice(self._process))
        self._selector.register(self._notice, selectors.EVENT_READ, self._note_exit)
        self._selector.register(self._bell, selectors.EVENT_READ, lambda: os.read(self._bell.fileno(), 4096))
        for descriptor in self._sinks:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ, lambda at=descriptor: self._read(at))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def wait(self, *, wants_to_send: int | None) -> None:
        """Block until something is to be done, and do it."""
        self.has_news_of_ends, self._must_look = self._must_look, False
        self.has_heard = False
        self._want_to_send(wants_to_send)
        for key, mask in self._selector.select():
            if mask & selectors.EVENT_READ:
                key.data()
        if self.has_news_of_ends:
            self.drain()

    def watch_ends(self, members: Mapping[int, int]) -> None:
        """Have news of the ends of these processes, and of no others."""
        self._close_ends()
        for pid in members:
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:  # it has ended since: look again at once
                self._bell.ring()
                self._must_look = True
                continue
            self._ends.append(descriptor)
            self._selector.register(descriptor, selectors.EVENT_READ, self._note_end)

    def forget(self, descriptor: int | None) -> None:
        """It is going to be closed."""
        if descriptor is not None and descriptor == self._writing:
            self._want_to_send(None)

    def drain(self) -> None:
        """Read what is there now. Bounded: somebody who was left behind may go on to write, and faster than we read."""
        for descriptor in list(self._sinks):
            self._drain_one(descriptor)

    def _drain_one(self, descriptor: int) -> None:
        for _ in range(_MOST_READS):
            if not self._read(descriptor):
                return

    def _read(self, descriptor: int) -> bool:
        """Read one piece; False if there is none, also because its end was found a moment ago."""
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
        self.has_heard = True
        if descriptor != self._first:
            self._drain_one(self._first)  # what was printed before a message was sent is heard before it
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

    def _note_exit(self) -> None:
        self._selector.unregister(self._notice)
        self.has_news_of_ends = True

    def _note_end(self) -> None:
        self.has_news_of_ends = True

    def _close_ends(self) -> None:
        for descriptor in self._ends:
            self._selector.unregister(descriptor)
            os.close(descriptor)
        self._ends = []
