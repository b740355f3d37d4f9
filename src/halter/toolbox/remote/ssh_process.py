"""One command at the other end of an SSH connection, and its control channel."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import time
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.processes.tree import new_cookie
from halter.cancel.token import NEVER
from halter.toolbox.remote.command_script import BEST, CHECK, FEED, WATCH, packed
from halter.toolbox.remote.machine import MachineError, RemoteProcess, ScriptResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import asyncssh

    from halter.cancel.token import CancellationToken
    from halter.toolbox.remote.machine import RemoteCommand
    from halter.toolbox.remote.ssh import SSHConnection

_MAX_MISSED: Final = 4  # heartbeats
_ENFORCE_AFTER: Final = 0.5  # seconds
_ENFORCE_TIMEOUT: Final = 15.0  # seconds
_MAX_OUTPUT: Final = 12_000_000  # bytes of one of our scripts


class SessionRefused(Exception):
    """The server opened no session: nothing was started there."""


class SSHProcess(RemoteProcess):
    """A command. The methods below "in the loop" run in the connection's loop; the others may be called anywhere."""

    def __init__(self, command: RemoteCommand, on_output: Callable[[bytes], object], connection: SSHConnection) -> None:
        super().__init__()
        self._command = command
        self.is_lasting = command.takes_input or command.supervises_itself
        self._on_output = on_output
        self._connection = connection
        self._cookie = new_cookie()
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._closed = asyncio.Event()
        self._grace = command.grace
        self._is_starting = False
        self._enforcing: asyncio.Task[None] | None = None  # the stop of one that supervises itself
        self._heartbeat = connection.heartbeat
        self._pipe = ""  # of one that takes input
        self._has_ended_input = False
        self._unsent: list[bytes] = []  # lines for one that supervises itself and has not begun
        self._unparsed = b""
        self._directory = ""

    # -- for everybody -----------------------------------------------------------------------------------------------

    def stop(self, grace: float) -> None:
        """End it: TERM, and KILL after *grace* seconds. Returns at once."""
        self._grace = min(grace, self._grace) if self.was_stopped else grace
        self.was_stopped = True
        self._connection.call(self._send_stop)

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def accepts_input(self) -> bool:
        return bool(self._pipe) and not (self.is_over or self.was_stopped or self._has_ended_input)

    def send(self, data: bytes, *, ends: bool = False, token: CancellationToken = NEVER) -> None:
        """Send it *data* as input, and wait until it was passed on."""
        if data:
            result = self._connection.run(FEED, f"{self._pipe}/in", self._cookie, token=token, data=data)
            if result.code:
                raise MachineError(f"it does not accept input: {result.error or 'it has ended'}")
        if ends:
            self._has_ended_input = True
            self._connection.call(lambda: self._write(b"e\n"))

    def send_line(self, line: bytes) -> None:
        """Send a line to a command that supervises itself."""
        self._connection.call(lambda: self._send_line(line + b"\n"))

    def end(self, error: Exception | None) -> None:
        """Mark it as ended."""
        if self.is_over:
            return
        self.error = self.error or error
        self.ended_at = self.ended_at or time.monotonic()
        self.is_over = True
        self.changes.notify()

    # -- in the loop -------------------------------------------------------------------------------------------------

    async def run(self, connection: asyncssh.SSHClientConnection) -> None:
        """Start it, and wait for its end, or for the end of the connection."""
        if self.is_over:  # nothing starts after the stop
            return
        self._is_starting = True
        command, env = self._command, self._command.env
        header = packed(command.text) + b"".join(packed(f"{name}={value}") for name, value in env.items())
        way = "2" if command.supervises_itself else "1" if command.takes_input else "0"
        args = [self._cookie, command.directory, way, f"{self._grace:g}", self._ticks, self._silence]
        line = shlex.join(["exec", "sh", "-c", BEST, WATCH, "halter", *args, str(len(env))])
        session = _session_class()(self)
        try:
            with _refusals(connection):
                self._channel, _ = await connection.create_session(lambda: session, line, encoding=None)
        except SessionRefused:
            self._is_starting = False
            if self.was_stopped:
                self._send_stop()
            raise
        if self.was_stopped:  # while the channel was opened
            self.survivors = []
            self._channel.close()
            return
        self._write(header + b"".join(self._unsent))
        self._unsent.clear()
        while not self._closed.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self._heartbeat)
            self._write(b"h\n")

    @property
    def _silence(self) -> str:
        return str(max(int(self._heartbeat * _MAX_MISSED), 1))

    @property
    def _ticks(self) -> str:
        return str(max(int(self._grace * 20), 0))

    def _write(self, data: bytes) -> None:
        channel = self._channel
        if channel is not None and not channel.is_closing():
            with contextlib.suppress(OSError):  # it is just being closed
                channel.write(data)

    def _send_line(self, data: bytes) -> None:
        if self._channel is None:
            self._unsent.append(data)
        else:
            self._write(data)

    def _send_stop(self) -> None:
        if not self._is_starting:  # nothing was sent yet, so nothing is left to end
            self.survivors = []
            self.end(None)
        self._write(f"k{self._grace:g}\n".encode())
        if self._command.supervises_itself and self._channel is not None and self._enforcing is None:
            self._enforcing = asyncio.ensure_future(self._enforce_stop())

    async def _enforce_stop(self) -> None:
        """End it from outside if it does not read its input: it hangs, or was paused by the code that it runs.

        A boundary: after an error it still ends with the connection, if it can. Ended with the loop, too.
        """
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_ENFORCE_TIMEOUT):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), _ENFORCE_AFTER)
                if not self._closed.is_set():
                    await self._connection.check(self)

    def on_data(self, data: bytes, *, is_output: bool) -> None:
        """Handle data: output of the command, or reports of the script that supervises it."""
        if is_output:
            self._on_output(data)
            self.changes.notify()
            return
        *lines, self._unparsed = (self._unparsed + data).split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="surrogateescape"))
        self.changes.notify()

    def _on_line(self, line: str) -> None:
        words = line.split(" ", 2)
        if words[0] != "halter" or len(words) < 2:  # noqa: PLR2004
            return  # such as a warning of the shell
        rest = words[2] if len(words) > 2 else ""  # noqa: PLR2004
        match words[1]:
            case "pid" if self.pid is None:
                number, _, self._pipe = rest.partition(" ")
                self.pid = int(number)
            case "exit" if self.returncode is None:
                self.returncode = int(rest)
                self.ended_at = time.monotonic()
            case "in":
                self.began_in = rest
            case "cwd":
                self._directory = rest
            case "gone":
                self.survivors = []
            case "left":
                self.survivors = [int(each) for each in rest.split()]
            case "error":
                self.error = MachineError(rest)
                self.survivors = []

    def on_channel_closed(self) -> None:
        """The channel is closed: at the end of the command, or because the connection was lost."""
        if self.survivors is None:
            self.is_lost = True
            self.ended_at = self.ended_at or time.monotonic()
        self._closed.set()
        self.changes.notify()

    def fail(self, error: Exception) -> None:
        """It could not be started, or the connection failed after the request: then only the machine knows."""
        self.error = error
        self.is_lost = self._is_starting and self.survivors is None
        self.changes.notify()

    async def check(self, connection: asyncssh.SSHClientConnection) -> bool:
        """End remaining processes, and read the report; False if there was none."""
        line = shlex.join(["exec", "sh", "-c", CHECK, "halter", self._cookie, str(self.pid or ""), self._ticks])
        result = await collect(connection, line, b"")
        for each in result.error.splitlines():
            self._on_line(each)
        self.changes.notify()
        return self.survivors is not None


async def collect(connection: asyncssh.SSHClientConnection, line: str, data: bytes) -> ScriptResult:
    """Run one of our scripts with its input, and wait for its end. A cancellation closes its input, which ends it."""
    async with contextlib.AsyncExitStack() as stack:
        with _refusals(connection):
            process = await stack.enter_async_context(connection.create_process(line, encoding=None))
        try:
            # A script that has already ended takes no input; its output and exit code are still there.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(data)
                process.stdin.write_eof()
            output, error = await asyncio.gather(_read_all(process.stdout), _read_all(process.stderr))
            await process.wait()
        finally:
            process.close()
        code = process.exit_status
        if code is None:
            raise ConnectionError("it was terminated")
        return ScriptResult(code, output, error.decode(errors="replace").strip())


@contextlib.contextmanager
def _refusals(connection: asyncssh.SSHClientConnection) -> Iterator[None]:
    """Raise `SessionRefused` for a session that the server refuses, as OpenSSH does beyond its MaxSessions."""
    import asyncssh

    try:
        yield
    except asyncssh.ChannelOpenError as error:
        # The same error is raised for a lost connection, and for a command that the server did not run.
        if connection.is_closed() or error.code > asyncssh.OPEN_RESOURCE_SHORTAGE:  # beyond are asyncssh's own codes
            raise
        raise SessionRefused(str(error)) from error


async def _read_all(stream: asyncssh.SSHReader[bytes]) -> bytes:
    """All of the output, up to a limit."""
    pieces: list[bytes] = []
    left = _MAX_OUTPUT
    while left > 0 and (piece := await stream.read(left)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _session_class() -> Any:
    import asyncssh

    class _SSHSession(asyncssh.SSHClientSession[bytes]):
        """Passes data on to its process."""

        def __init__(self, process: SSHProcess) -> None:
            self._process = process

        def data_received(self, data: bytes, datatype: int | None) -> None:
            self._process.on_data(data, is_output=datatype is None)

        def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncssh's word)
            self._process.on_channel_closed()

    return _SSHSession
