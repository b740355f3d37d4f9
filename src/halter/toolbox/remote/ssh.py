"""A machine that is reached by SSH, with `asyncssh`.

    remote = Remote(SSHMachine("build.example.org", username="ci"))
    agent = Agent(tools=remote.tools)

Host keys are checked against `known_hosts`, unless that is turned off by name. No agent is forwarded, no terminal is
asked for, and neither keys nor passwords are shown or logged.

Each session has one connection, made when it is first needed and again when it was lost. It lives in an event loop of
its own, so commands in the background go on between turns. What a lost connection means for a command is decided on
the other side (see `command_script.py`); as soon as the machine can be reached again it is asked who is left.

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

    from halter.toolbox.remote.machine import Command, ScriptResult

__all__ = ["SSHConnection", "SSHMachine"]

T = TypeVar("T")

_log = logging.getLogger(__name__)
# A server lets one connection have ten sessions at a time, as a rule. Five are for commands in the background, and one
# is for an interpreter; the rest of what we do takes turns.
_MAX_AT_ONCE: Final = 4
_CLOSE_GRACE: Final = 0.3
_CLOSE_PATIENCE: Final = 1.5
# After a lost connection, when to try to reach the machine again, in seconds after each other.
_TRIES: Final = (0.0, 0.5, 2.0, 5.0)


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
        """A connection of one's own, made when it is first used."""
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
        self._processes: set[SSHProcess] = set()  # those that run; changed in the loop only
        self._slots = asyncio.Semaphore(_MAX_AT_ONCE)
        self.beat = machine.keepalive

    # -- for everybody -----------------------------------------------------------------------------------------------

    def start(self, command: Command, on_output: Callable[[bytes], object]) -> SSHProcess:
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
        said: list[ScriptResult | Exception] = []
        ended = CancellationToken(name="ended")

        async def work() -> None:
            """Run it. A boundary: whatever goes wrong is raised where it is waited for."""
            try:
                async with own.scope(), self._slots:
                    line = _quoted(script, *args)
                    said.append(await self._with_connection(lambda connection: collect(connection, line, data)))
            except Cancelled:
                pass
            except Exception as error:  # noqa: BLE001
                said.append(error)
            finally:
                ended.cancel("ended")

        if not self._loop.spawn(work):
            raise MachineError("the session is closed")
        CancellationToken.any_of(ended, own).wait()
        if not said:
            if own.reason == "timeout" and not token.is_cancelled:
                raise MachineError(f"{self._machine.name} did not answer within {timeout:g} s")
            raise Cancelled(own)
        if isinstance(said[0], Exception):
            raise _told(said[0], self._machine.name)
        return said[0]

    def close(self) -> None:
        """End what runs, wait for that for a moment, and end the connection."""
        running: list[SSHProcess] = []
        listed = CancellationToken(name="listed")

        def stop() -> None:
            running.extend(self._processes)
            for process in running:
                process.stop(_CLOSE_GRACE)
            listed.cancel("listed")

        patience = CancellationToken(timeout=_CLOSE_PATIENCE)
        if self._loop.is_running and self._loop.call(stop):
            CancellationToken.any_of(listed, patience).wait()
            for process in running:
                process.wait_over(patience)
            self._loop.call(self._disconnect)
        self._loop.close(_CLOSE_PATIENCE)

    # -- in the loop -------------------------------------------------------------------------------------------------

    def call(self, fn: Callable[[], object]) -> bool:
        """Have a function called in the loop."""
        return self._loop.call(fn)

    async def connection(self) -> asyncssh.SSHClientConnection:
        """The connection, or a new one if it was lost. Those who ask together share one attempt."""
        while self._connection is None or self._connection.is_closed():
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.ensure_future(self._connect())
                self._connecting.add_done_callback(_look_at)
            await asyncio.shield(self._connecting)
        return self._connection

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
        # Kept also if all who have asked for it were stopped meanwhile: the next ones will find it.
        self._connection = await self._machine.connect()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def _drive(self, process: SSHProcess) -> None:
        """Look after a command from its start to its end. A boundary: what goes wrong is told to those who wait."""
        self._processes.add(process)
        try:
            async with contextlib.nullcontext() if process.is_lasting else self._slots:
                await self._with_connection(process.run)
        except Exception as error:  # noqa: BLE001
            process.fail(_told(error, self._machine.name))
        try:
            if process.is_lost:
                await self._ask_about(process)
        finally:
            self._processes.discard(process)
            process.end(None)

    async def _ask_about(self, process: SSHProcess) -> None:
        """Ask the machine who is left of a command whose connection was lost; ends those. Tries for some seconds.

        A boundary: whatever goes wrong with an attempt, there is the next one, and then the log.
        """
        for pause in _TRIES:
            await asyncio.sleep(pause)
            with contextlib.suppress(Exception):
                if await self._with_connection(process.check):
                    return
        _log.warning("could not ask %s what became of a command after its connection was lost", self._machine)


def _look_at(task: asyncio.Task[None]) -> None:
    """Retrieve its exception, so that asyncio does not warn if no caller is left to do so."""
    if not task.cancelled():
        task.exception()


def _quoted(script: str, *args: str) -> str:
    return shlex.join(["exec", "sh", "-c", script, "halter", *args])


def _told(error: Exception, name: str) -> Exception:
    """An error of a connection in our words."""
    if isinstance(error, (MachineError, ValueError, ImportError)):
        return error
    return MachineError(f"the connection to {name} failed: {error or type(error).__name__}")
