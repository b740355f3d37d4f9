"""A machine that is reached by SSH, with `asyncssh`.

    remote = Remote(SSHMachine("build.example.org", username="ci"))
    agent = Agent(tools=remote.tools)

Host keys are checked against `known_hosts`, unless that is turned off by name. No agent is forwarded, no terminal is
asked for, and neither keys nor passwords are shown or logged.

Each session has one connection, made when it is first needed and again when it was lost. It lives in an event loop of
its own, so commands in the background continue between turns. If the connection is lost, the other side ends the
command (see `command_script.py`); as soon as the machine can be reached again it is asked for remaining processes.

Where a server allows fewer sessions on one connection than are needed (`MaxSessions` of OpenSSH; ten unless it is set),
what it refuses gets a connection of its own, for as long as it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
from typing import TYPE_CHECKING, Any, Final, TypeVar

from halter._extras import need
from halter.cancel.deadlines import check_seconds
from halter.cancel.loop_thread import LoopThread
from halter.cancel.token import CancellationToken, Cancelled
from halter.toolbox.remote.machine import MachineError
from halter.toolbox.remote.ssh_process import SessionRefused, SSHProcess, collect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import asyncssh

    from halter.toolbox.remote.machine import RemoteCommand, ScriptResult

__all__ = ["SSHConnection", "SSHMachine"]

T = TypeVar("T")

_log = logging.getLogger(__name__)
# A server usually allows ten sessions on one connection. Five are for commands in the background, and one is for an
# interpreter; everything else shares the rest.
_MAX_PARALLEL: Final = 4
_CLOSE_GRACE: Final = 0.3  # seconds
_CLOSE_TIMEOUT: Final = 1.5  # seconds
# Seconds before each try to reach the machine again after a lost connection.
_RETRY_PAUSES: Final = (0.0, 0.5, 2.0, 5.0)


class SSHMachine:
    """The address of a machine and how to log in. Holds no connection; any number of sessions may share it."""

    def __init__(  # noqa: PLR0913  (each is the user's to set, and all have a default)
        self,
        host: str,
        *,
        port: int = 22,
        username: str | None = None,
        password: str | None = None,
        client_keys: Sequence[str | os.PathLike[str]] | None = None,  # files; else the agent's and the usual ones
        known_hosts: str | os.PathLike[str] | None = None,  # a file; else the user's own
        check_host_key: bool = True,
        directory: str = "",  # where commands begin; else where one is after logging in
        connect_timeout: float = 15.0,
        keepalive: float = 15.0,  # seconds between heartbeats; when four stay away, commands are ended there
    ) -> None:
        if not host:
            raise ValueError("host is empty: pass a name or an address")
        self.host = host
        self.port = port
        self.name = f"{username}@{host}" if username else host
        self.directory = directory
        self._timeout = check_seconds("connect_timeout", connect_timeout)
        self.keepalive = check_seconds("keepalive", keepalive)
        if not keepalive:
            raise ValueError("keepalive must be greater than 0")
        self._options: dict[str, Any] = {
            "port": port,
            "keepalive_interval": self.keepalive,
            "agent_forwarding": False,
            "x11_forwarding": False,
        }
        if username is not None:
            self._options["username"] = username
        if password is not None:
            self._options["password"] = password
        if client_keys is not None:
            self._options["client_keys"] = [os.fspath(each) for each in client_keys]
        if not check_host_key:
            self._options["known_hosts"] = None
        elif known_hosts is not None:
            self._options["known_hosts"] = os.fspath(known_hosts)

    def __repr__(self) -> str:
        return f"<SSHMachine {self.name}:{self.port}>"

    def open(self) -> SSHConnection:
        """A new connection, made when it is first used."""
        return SSHConnection(self)

    async def connect(self) -> asyncssh.SSHClientConnection:
        """Connect; raises a `MachineError` that says what to do."""
        need("ssh", "asyncssh")
        import asyncssh

        try:
            async with asyncio.timeout(self._timeout):
                return await asyncssh.connect(self.host, **self._options)
        except asyncssh.HostKeyNotVerifiable as error:
            raise MachineError(
                f"cannot verify the host key of {self.name}: it is not in known_hosts, or it has changed. Check it, "
                "for example by logging in once with ssh"
            ) from error
        except asyncssh.PermissionDenied as error:
            raise MachineError(f"{self.name} refused the login: no key or password was accepted") from error
        except TimeoutError as error:
            raise MachineError(f"{self.name} did not answer within {self._timeout:g} s") from error
        except (OSError, asyncssh.Error, ValueError) as error:
            raise MachineError(f"cannot reach {self.name}: {error}") from error


class SSHConnection:
    """One session's connection to one machine."""

    def __init__(self, machine: SSHMachine) -> None:
        self._machine = machine
        self._loop = LoopThread(f"halter-ssh {machine.host}")
        self._connection: asyncssh.SSHClientConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._is_closed = False
        self._processes: set[SSHProcess] = set()  # those that run; changed in the loop only
        self._slots = asyncio.Semaphore(_MAX_PARALLEL)
        self.heartbeat = machine.keepalive

    # -- for everybody -----------------------------------------------------------------------------------------------

    def start(self, command: RemoteCommand, on_output: Callable[[bytes], object]) -> SSHProcess:
        """Run a command."""
        process = SSHProcess(command, on_output, self)
        if not self._loop.spawn(lambda: self._drive(process)):
            process.end(MachineError("the session is closed"))
        return process

    def run(
        self, script: str, *args: str, token: CancellationToken, data: bytes = b"", timeout: float | None = None
    ) -> ScriptResult:
        """Run a script of ours that ends by itself when its input ends, and wait for it. A stop raises `Cancelled`."""
        own = token.child("remote script", timeout)
        own.raise_if_cancelled()
        results: list[ScriptResult | Exception] = []
        ended = CancellationToken(name="ended")

        async def work() -> None:
            """Run it. A boundary: the error is raised where the result is waited for."""
            try:
                async with own.scope(), self._slots:
                    line = _quoted(script, *args)
                    results.append(await self._with_connection(lambda connection: collect(connection, line, data)))
            except Cancelled:
                pass
            except Exception as error:  # noqa: BLE001
                results.append(error)
            finally:
                ended.cancel("ended")

        if not self._loop.spawn(work):
            raise MachineError("the session is closed")
        CancellationToken.any_of(ended, own).wait()
        if not results:
            if own.reason == "timeout" and not token.is_cancelled:
                raise MachineError(f"{self._machine.name} did not answer within {timeout:g} s")
            raise Cancelled(own)
        if isinstance(results[0], Exception):
            raise _translated(results[0], self._machine.name)
        return results[0]

    def close(self) -> None:
        """End what runs, wait for that for a short time, and end the connection."""
        running: list[SSHProcess] = []
        listed = CancellationToken(name="listed")

        def stop() -> None:
            running.extend(self._processes)
            for process in running:
                process.stop(_CLOSE_GRACE)
            listed.cancel("listed")

        deadline = CancellationToken(timeout=_CLOSE_TIMEOUT)
        if self._loop.is_running and self._loop.call(stop):
            CancellationToken.any_of(listed, deadline).wait()
            for process in running:
                process.wait_over(deadline)
            self._loop.call(self._disconnect)
        self._loop.close(_CLOSE_TIMEOUT)

    # -- in the loop -------------------------------------------------------------------------------------------------

    def call(self, fn: Callable[[], object]) -> bool:
        """Call a function in the loop."""
        return self._loop.call(fn)

    async def connection(self) -> asyncssh.SSHClientConnection:
        """The connection, or a new one if it was lost. Concurrent callers share one attempt."""
        while self._connection is None or self._connection.is_closed():
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.ensure_future(self._connect())
                self._connecting.add_done_callback(_retrieve_error)
            await asyncio.shield(self._connecting)
        return self._connection

    async def check(self, process: SSHProcess) -> bool:
        """End what is left of a command; False if the machine did not report what became of it."""
        return await self._with_connection(process.check)

    async def _with_connection(self, work: Callable[[asyncssh.SSHClientConnection], Awaitable[T]]) -> T:
        """Do *work*, which opens one session: on the shared connection or, if the server refuses that, on a new one."""
        try:
            return await work(await self.connection())
        except SessionRefused:
            pass
        own = await self._machine.connect()
        try:
            return await work(own)
        except SessionRefused as error:
            raise MachineError(
                f"{self._machine.name} allows no sessions: raise MaxSessions in its sshd_config, to 10 for example"
            ) from error
        finally:
            own.abort()

    async def _connect(self) -> None:
        # Kept even if all callers were stopped meanwhile: the next call uses it.
        connection = await self._machine.connect()
        if self._is_closed:
            connection.abort()
            raise MachineError("the session is closed")
        self._connection = connection

    def _disconnect(self) -> None:
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def _drive(self, process: SSHProcess) -> None:
        """Run a command from its start to its end. A boundary: waiting calls get the error."""
        self._processes.add(process)
        try:
            async with contextlib.nullcontext() if process.is_lasting else self._slots:
                await self._with_connection(process.run)
        except Exception as error:  # noqa: BLE001
            process.fail(_translated(error, self._machine.name))
        try:
            if process.is_lost:
                await self._end_remaining(process)
        finally:
            self._processes.discard(process)
            process.end(None)

    async def _end_remaining(self, process: SSHProcess) -> None:
        """End what is left of a command whose connection was lost. Tries for some seconds.

        A boundary: after an error comes the next attempt, and after the last one a warning in the log.
        """
        for pause in _RETRY_PAUSES:
            await asyncio.sleep(pause)
            with contextlib.suppress(Exception):
                if await self.check(process):
                    return
        _log.warning("could not ask %s what became of a command after its connection was lost", self._machine)


def _retrieve_error(task: asyncio.Task[None]) -> None:
    """Retrieve its exception, so that asyncio does not warn if no caller is left to do so."""
    if not task.cancelled():
        task.exception()


def _quoted(script: str, *args: str) -> str:
    return shlex.join(["exec", "sh", "-c", script, "halter", *args])


def _translated(error: Exception, name: str) -> Exception:
    """The error to raise for one of a connection."""
    if isinstance(error, (MachineError, ValueError, ImportError)):
        return error
    return MachineError(f"the connection to {name} failed: {str(error) or type(error).__name__}")
