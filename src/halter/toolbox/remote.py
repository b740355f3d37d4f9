"""Tools for another machine: `terminal`, `process`, the file tools and `execute_code`, as for this one.

At a stop control comes back at once with what there is. The command is ended on its machine with all that it has
started, and the machine is asked whether that is so; the result says what it answered. The machine does this by itself
if the connection is lost.

Commands and code that destroy need approval, as they do here (see `danger.py`). Files are replaced whole or not at all.
Jobs in the background and the interpreter belong to the session; their connection does too, so if that is lost they are
ended.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final

import msgspec

from halter.cancel.seconds import check_seconds
from halter.cancel.token import NEVER
from halter.toolbox import code
from halter.toolbox.jobs import Job, Jobs
from halter.toolbox.jobtools import JobTools, on_own_line, positive
from halter.toolbox.kernel import Kernel
from halter.toolbox.machine import Command, MachineError, Running
from halter.toolbox.output import LIMIT, Progress
from halter.toolbox.remotefiles import GRACE, RemoteFileTools
from halter.toolbox.remoteinterpreter import RemoteInterpreter
from halter.toolbox.remoteshelf import RemoteShelf
from halter.toolbox.terminal import CALM, TIMEOUT, why_command
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from halter.toolbox.kernel import Ears, Interpreter
    from halter.toolbox.machine import Link, Machine

__all__ = ["Remote"]

_MOST_JOBS: Final = 5  # see ssh.py: a server lets a connection have only so many
# At a stop, how long we wait until the machine has said that all is over. What is on a thread gets GRACE seconds to
# hand back what it has; this is less.
_LOOK: Final = 0.1
_START: Final = 30.0
_FINDING: Final = 12.0  # seconds for asking a machine again whose connection was lost


class RemoteJobs(Jobs[Running]):
    """What a session has of a machine: its connection, its jobs, its interpreter. Kept by its tools, closed with it."""

    def __init__(self, machine: Machine, make: Callable[[Link, Ears], Interpreter], limit: int) -> None:
        super().__init__(machine.directory, _MOST_JOBS)
        self.link = machine.open()
        self.kernel = Kernel(lambda ears: make(self.link, ears), limit)

    def close(self) -> None:
        """End everything. The connection knows of all that runs, so this takes no longer than that."""
        self.kernel.refuse()
        self.link.close()


class _RemoteCode(code.CodeTool):
    """`execute_code` there. The code can call the other tools for that machine."""

    look = _LOOK

    def __init__(self, remote: Remote, tools: list[Tool[..., Any]]) -> None:
        super().__init__(tools, code.TIMEOUT, code.GRACE)
        self._remote = remote

    def kernel(self, ctx: ToolContext) -> Kernel:
        """The interpreter of the session that *ctx* belongs to."""
        return self._remote.jobs(ctx).kernel


class Remote(JobTools, RemoteFileTools):
    """The tools for one machine. One object serves any number of sessions; each has its own connection and jobs."""

    def __init__(
        self,
        machine: Machine,
        *,
        env: Mapping[str, str] | None = None,  # variables for commands and code; nothing of ours is passed on
        timeout: float = TIMEOUT,  # seconds for a foreground command that names none
        grace: float = 1.0,  # seconds between TERM and KILL
        limit: int = LIMIT,  # bytes of output that are kept
        python: str = "python3",  # for code: 3.8 or later
        prefix: str = "",  # of the tools' names, for an agent that has those of several machines, or of this one
    ) -> None:
        JobTools.__init__(self, grace)
        RemoteFileTools.__init__(self, machine)
        self._env = CALM | dict(env or {})
        self._timeout = check_seconds("timeout", timeout)
        self._limit = limit
        self._python = python
        self._prefix = prefix
        self._others: list[Tool[..., Any]] = [self.terminal, self.process, self.read_file, self.write_file, self.patch]
        self._others.append(self.search_files)
        self._code = _RemoteCode(self, self._others)

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """All of them, for `Agent(tools=...)`."""
        named = [*self._others, self.execute_code]
        return [_renamed(each, f"{self._prefix}{each.name}") for each in named] if self._prefix else named

    @property
    def execute_code(self) -> Tool[..., Any]:
        """Python there, with variables that last as long as the session."""
        return self._code.execute_code

    def jobs(self, ctx: ToolContext) -> RemoteJobs:
        """The jobs of the session that *ctx* belongs to, and its connection."""
        return ctx.keep(self._make_jobs)

    def _make_jobs(self) -> RemoteJobs:
        return RemoteJobs(self.machine, self._make_interpreter, self._limit)

    def _make_interpreter(self, link: Link, ears: Ears) -> Interpreter:
        names = sorted(self._code.inner)
        return RemoteInterpreter(link, self._python, self.machine.directory, self._env | code.CALM, names, ears)

    def shelf(self, ctx: ToolContext) -> RemoteShelf:
        """The files, through the connection of the session that *ctx* belongs to."""
        ctx.token.raise_if_cancelled()  # nothing starts after the stop
        return RemoteShelf(self.jobs(ctx).link, self.machine.directory)

    @tool(approval=why_command, grace=GRACE)
    def terminal(
        self, command: str, ctx: ToolContext, *, background: bool = False, timeout: float | None = None
    ) -> Iterator[str]:
        """Run a shell command on the remote machine; returns its output (stdout and stderr together) and its exit code.

        A `cd` holds for the next command; variables do not. There is no terminal and no input: use flags such as --yes.
        What a command leaves running is ended with it. Servers, watchers and other long work go to the background; look
        after them with the process tool.

        Args:
            command: what to run, for bash.
            background: return at once with the number of a job.
            timeout: seconds after which a foreground command is ended; 180 unless said otherwise.

        """
        if not command.strip():
            msg = "the command is empty"
            raise ValueError(msg)
        jobs = self.jobs(ctx)
        if background:
            yield self._start_job(command, jobs, ctx)
            return
        yield from self._run(command, jobs, ctx, self._timeout if timeout is None else positive(timeout))

    # -- inside ------------------------------------------------------------------------------------------------------

    def _start_job(self, command: str, jobs: RemoteJobs, ctx: ToolContext) -> str:
        jobs.check_room()
        ctx.token.raise_if_cancelled()  # nothing starts after the stop
        wanted = Command(command, jobs.directory, self._env, takes_input=True, grace=self.grace)
        job = Job(command, lambda hear: jobs.link.start(wanted, hear), limit=self._limit)
        number = jobs.add(job)
        running = job.process
        has_begun = running.wait(lambda: running.pid is not None or running.is_over, ctx.token, _START)
        if running.error is not None and running.pid is None:
            jobs.remove(job)
            raise running.error
        if not has_begun:
            running.stop(self.grace)
            jobs.remove(job)
            ctx.token.raise_if_cancelled()
            msg = f"{self.machine.name} has not begun with it within {_START:g} s"
            raise MachineError(msg)
        return f"[job {number} started, process {running.pid} on {self.machine.name}]"

    def _run(self, command: str, jobs: RemoteJobs, ctx: ToolContext, seconds: float) -> Iterator[str]:
        """Run a command in the foreground."""
        token = ctx.token
        token.raise_if_cancelled()  # nothing starts after the stop
        wanted = Command(command, jobs.directory, self._env, grace=self.grace)
        progress = Progress(ctx.report)
        job = Job(command, lambda hear: jobs.link.start(wanted, hear), limit=self._limit, progress=progress)
        running = job.process
        has_ended = running.wait(lambda: running.is_over or running.is_lost, token, seconds, progress)
        if not has_ended:
            running.stop(self.grace)
            if token.is_cancelled:
                running.wait(lambda: running.is_over or running.is_lost, NEVER, _LOOK)
            else:
                running.wait(lambda: running.is_over or running.is_lost, token, self.grace * 2 + _FINDING)
        if running.is_lost and not token.is_cancelled:
            running.wait_over(token, _FINDING)
        if running.error is not None and running.pid is None:
            jobs.directory = self.machine.directory  # should it be that the other one is gone
            raise running.error
        yield _text(job, jobs)
        if token.is_cancelled:
            return
        if running.is_lost:
            msg = f"the connection to {self.machine.name} was lost"
            raise MachineError(msg)
        if not has_ended:
            msg = f"it took longer than {seconds:g} s and was ended; run it in the background if it needs more"
            raise TimeoutError(msg)


def _text(job: Job[Running], jobs: RemoteJobs) -> str:
    """What a command has said, how it ended, and where it has gone to."""
    running = job.process
    if not (running.was_stopped or running.is_lost or running.survivors):
        note = f"exit code {running.returncode}"
        if running.directory and running.directory != running.began_in:
            jobs.directory = running.directory
            note += f"; now in {running.directory}"
    elif running.is_lost or running.survivors:
        note = f"it {job.state()}"
    elif running.pid is None and running.is_over:
        note = "stopped before it was started"
    else:
        note = f"stopped after {job.seconds:.1f} s; {job.who_is_left()}"
    return f"{on_own_line(job.output.text())}[{note}]"


def _renamed(one: Tool[..., Any], name: str) -> Tool[..., Any]:
    twin = copy.copy(one)
    twin.name = name
    twin.spec = msgspec.structs.replace(one.spec, name=name)
    return twin
