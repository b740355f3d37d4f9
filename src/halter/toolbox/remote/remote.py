"""Tools for another machine: `terminal`, `process`, the file tools and `execute_code`, as for this one.

A stop returns at once, with the output so far. The command is ended on its machine with all that it has started, and
the machine is asked to confirm that; the result has the answer. If the connection is lost the machine does this by
itself.

Destructive commands and code need approval, as on this machine (see `terminal/approval`). Background jobs and the
interpreter belong to the session and use its connection: if that is lost, they are ended.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halter.toolbox.files.files import FileTools
from halter.toolbox.python import execute_code
from halter.toolbox.python.kernel import Kernel
from halter.toolbox.remote.file_backend import RemoteBackend, normalized
from halter.toolbox.remote.interpreter import RemoteInterpreter
from halter.toolbox.remote.machine import RemoteCommand
from halter.toolbox.terminal.jobs import Jobs
from halter.toolbox.terminal.output import LIMIT
from halter.toolbox.terminal.terminal import NON_INTERACTIVE, TIMEOUT, TerminalTools
from halter.tools.context import ToolContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from halter.toolbox.python.kernel import Interpreter, InterpreterCallbacks
    from halter.toolbox.remote.machine import Machine, MachineConnection, RemoteProcess
    from halter.tools.tool import Tool

__all__ = ["Remote"]

_MAX_JOBS: Final = 5  # see ssh.py: a server limits the sessions of a connection


class RemoteSession(Jobs):
    """A session's resources on a machine: its connection, jobs and interpreter. Closed with the session."""

    def __init__(
        self, machine: Machine, make: Callable[[MachineConnection, InterpreterCallbacks], Interpreter], limit: int
    ) -> None:
        super().__init__(machine.directory, _MAX_JOBS)
        self.connection = machine.open()
        self.kernel = Kernel(lambda callbacks: make(self.connection, callbacks), limit)

    def close(self) -> None:
        """End everything. Closing the connection ends all that runs."""
        self.kernel.refuse()
        self.connection.close()


class RemoteCode(execute_code.CodeTool):
    """`execute_code` there."""

    stop_wait = 0.1  # seconds that the machine has to answer at a stop

    def __init__(self, remote: Remote, tools: list[Tool[..., Any]]) -> None:
        super().__init__(tools, execute_code.TIMEOUT, execute_code.GRACE)
        self._remote = remote

    def kernel(self, ctx: ToolContext) -> Kernel:
        """The interpreter of the session that *ctx* belongs to."""
        return self._remote.session(ctx).kernel


class RemoteFiles(FileTools):
    """The file tools there."""

    tool_grace = 0.2  # nothing here waits for the machine after a stop

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def backend(self, ctx: ToolContext) -> RemoteBackend:
        """The files, through the connection of the session that *ctx* belongs to."""
        ctx.token.raise_if_cancelled()  # nothing starts after the stop
        return RemoteBackend(self._remote.session(ctx).connection, self._remote.machine.directory)

    def lock_key(self, path: str) -> str:
        """The path, normalized, on that machine."""
        machine = self._remote.machine
        return f"{machine.name}:{normalized(machine.directory, path)}"


class RemoteTerminal(TerminalTools):
    """`terminal` and `process` there. Processes that a foreground command leaves behind are ended with it."""

    def __init__(self, remote: Remote, env: Mapping[str, str], timeout: float, grace: float, limit: int) -> None:
        super().__init__(timeout, grace, limit)
        self._remote = remote
        self._env = env
        self.machine_name = remote.machine.name

    def jobs(self, ctx: ToolContext) -> Jobs:
        """The jobs of the session that *ctx* belongs to."""
        return self._remote.session(ctx)

    def start(
        self,
        command: str,
        jobs: Jobs,
        on_output: Callable[[bytes], object],
        *,
        background: bool,
        network: bool,  # noqa: ARG002  (commands there have it anyway)
    ) -> RemoteProcess:
        """Start a command there."""
        assert isinstance(jobs, RemoteSession)
        remote_command = RemoteCommand(command, jobs.directory, self._env, takes_input=background, grace=self.grace)
        return jobs.connection.start(remote_command, on_output)

    def on_start_failed(self, jobs: Jobs) -> None:
        """Return to the first directory of the session: the current one may have been removed."""
        jobs.directory = self._remote.machine.directory


class Remote:
    """The tools for one machine. One object serves any number of sessions; each has its own connection and jobs."""

    def __init__(
        self,
        machine: Machine,
        *,
        env: Mapping[str, str] | None = None,  # variables for commands and code; none of ours are passed on
        timeout: float = TIMEOUT,  # seconds for a foreground command, unless the call says otherwise
        grace: float = 1.0,  # seconds between TERM and KILL
        limit: int = LIMIT,  # bytes of output to keep
        python: str = "python3",  # for code: 3.8 or later
        prefix: str = "",  # of the tools' names, for an agent with tools for several machines
    ) -> None:
        self.machine = machine
        self._env = NON_INTERACTIVE | dict(env or {})
        self._limit = limit
        self._python = python
        self._prefix = prefix
        self.terminal = RemoteTerminal(self, self._env, timeout, grace, limit)
        self.files = RemoteFiles(self)
        self._others = [*self.terminal.tools, *self.files.tools]
        self.code = RemoteCode(self, self._others)

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """All of them, for `Agent(tools=...)`."""
        tools = [*self._others, self.code.execute_code]
        return [_renamed(each, f"{self._prefix}{each.name}") for each in tools] if self._prefix else tools

    def session(self, ctx: ToolContext) -> RemoteSession:
        """The resources on the machine of the session that *ctx* belongs to."""
        return ctx.keep(self._make_session)

    def _make_session(self) -> RemoteSession:
        return RemoteSession(self.machine, self._make_interpreter, self._limit)

    def _make_interpreter(self, connection: MachineConnection, callbacks: InterpreterCallbacks) -> Interpreter:
        env, names = self._env | execute_code.ENVIRONMENT, sorted(self.code.inner)
        return RemoteInterpreter(connection, self._python, self.machine.directory, env, names, callbacks)


def _renamed(one: Tool[..., Any], name: str) -> Tool[..., Any]:
    copied = copy.copy(one)
    copied.name = name
    copied.spec = msgspec.structs.replace(one.spec, name=name)
    return copied
