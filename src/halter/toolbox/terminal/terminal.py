"""Tools that run shell commands: `terminal`, in the foreground or the background, and `process` for background jobs.

A stop of a foreground command returns its output so far at once, and ends it with every process that it has started,
including those that left its process group. It does not touch background jobs: they belong to the session and end with
it. What needs approval is in `approval/policy.py`: commands that only read, and those that begin with a prefix that was
allowed, run without asking; the policy "auto" also grants what runs in a sandbox.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.deadlines import check_seconds
from halter.toolbox.terminal.approval.policy import approval_for
from halter.toolbox.terminal.approval.prefixes import read_prefixes
from halter.toolbox.terminal.environment import without_secrets
from halter.toolbox.terminal.jobs import Job, Jobs
from halter.toolbox.terminal.local_command import LocalCommand
from halter.toolbox.terminal.output import LIMIT, Progress
from halter.toolbox.terminal.process_tool import GRACE, ProcessTool, on_own_line, positive
from halter.tools.approval import ApprovalNeed
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool
from halter.views.text import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from halter.toolbox.sandbox.sandbox import Sandbox
    from halter.toolbox.terminal.job_process import JobProcess

    Start = Callable[[Callable[[bytes], object]], JobProcess]  # starts a command; is given what takes its output

__all__ = ["NON_INTERACTIVE", "TIMEOUT", "Terminal", "TerminalTools"]

TIMEOUT: Final = 180.0  # seconds
# Variables that keep programs from waiting for a person.
NON_INTERACTIVE: Final = {"GIT_TERMINAL_PROMPT": "0", "PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb"}
_START_TIMEOUT: Final = 30.0  # seconds
_MAX_PURPOSE: Final = 200  # characters, in the reason for an approval; the arguments show all


class TerminalTools(ProcessTool):
    """The tools, for any machine."""

    machine_name = ""  # of another machine
    has_network = True  # whether commands have the network without asking for it

    def __init__(
        self, timeout: float, grace: float, limit: int, approve_prefixes: Iterable[str | Sequence[str]] = ()
    ) -> None:
        super().__init__(grace)
        self._prefixes = read_prefixes(approve_prefixes)
        self._timeout = check_seconds("timeout", timeout)
        self._limit = limit

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """Both of them, for `Agent(tools=...)`."""
        return [self.terminal, self.process]

    def start(
        self, command: str, jobs: Jobs, on_output: Callable[[bytes], object], *, background: bool, network: bool
    ) -> JobProcess:
        """Start a command in the directory of *jobs*. In the background it can be given input.

        *network*: the user has allowed this command to use the network.
        """
        raise NotImplementedError

    def recover(self, jobs: Jobs) -> str:  # noqa: ARG002
        """Find another directory if that of *jobs* is gone; returns a note about it."""
        return ""

    def on_start_failed(self, jobs: Jobs) -> None:
        """Called when a foreground command could not be started."""

    def needs_approval(self, arguments: Mapping[str, Any]) -> ApprovalNeed | bool:
        """Why a call of `terminal` needs approval."""
        command = str(arguments.get("command", ""))
        need = approval_for(command, in_sandbox=self.in_sandbox, prefixes=self._prefixes)
        purpose = "" if self.has_network else str(arguments.get("network", "")).strip()
        if not purpose:
            return need or False
        reason = f"it asks for the network: {shorten(purpose, _MAX_PURPOSE)!r}"
        # Nothing that was allowed for the command alone covers it.
        return ApprovalNeed(reason=f"{need.reason}; {reason}" if need else reason, automatic=False, covers="call")

    @tool(approval=needs_approval, grace=GRACE)
    def terminal(
        self, command: str, ctx: ToolContext, background: bool = False, timeout: float | None = None, network: str = ""
    ) -> Iterator[str]:
        """Run a shell command; returns its output (stdout and stderr together) and its exit code.

        A `cd` holds for the next command; variables do not. There is no terminal and no input: use flags such as --yes.
        Run servers, watchers and other long tasks in the background, and use the process tool for them.

        Args:
            command: the command, for bash.
            background: return at once with the number of a job.
            timeout: seconds after which a foreground command is ended; leave it out for the usual limit.
            network: what the command needs the network for, as in "install the dependencies". The user is asked. Give
                it only if the command fails without.

        """
        if not command.strip():
            raise ValueError("the command is empty")
        jobs = self.jobs(ctx)
        note = self.recover(jobs)

        def start(on_output: Callable[[bytes], object]) -> JobProcess:
            return self.start(command, jobs, on_output, background=background, network=bool(network.strip()))

        if background:
            yield note + self._start_job(command, jobs, ctx, start)
        else:
            seconds = self._timeout if timeout is None else positive(timeout)
            yield from self._run(command, jobs, ctx, seconds, start, note)

    def _start_job(self, command: str, jobs: Jobs, ctx: ToolContext, start: Start) -> str:
        jobs.check_room()
        ctx.token.raise_if_cancelled()  # nothing starts after the stop
        job = Job(command, start, limit=self._limit)
        number = jobs.add(job)
        process = job.process
        has_begun = process.wait(lambda: process.pid is not None or process.is_over, ctx.token, _START_TIMEOUT)
        if process.error is not None and process.pid is None:
            jobs.remove(job)
            raise process.error
        if not has_begun:
            process.stop(self.grace)
            jobs.remove(job)
            ctx.token.raise_if_cancelled()
            raise TimeoutError(f"the command did not start within {_START_TIMEOUT:g} s")
        where = f" on {self.machine_name}" if self.machine_name else ""
        return f"[job {number} started, process {process.pid}{where}]"

    def _run(
        self, command: str, jobs: Jobs, ctx: ToolContext, seconds: float, start: Start, note: str
    ) -> Iterator[str]:
        """Run a command in the foreground."""
        token = ctx.token
        token.raise_if_cancelled()  # nothing starts after the stop
        progress = Progress(ctx.report)
        job = Job(command, start, limit=self._limit, progress=progress)
        process = job.process
        jobs.enter(job)
        try:
            has_ended = process.wait(lambda: process.is_settled, token, seconds, progress)
            if not has_ended:
                process.stop(self.grace)
            process.settle(token, self.grace)
        finally:
            jobs.leave(job)
        if process.error is not None and process.pid is None:
            if process.survivors is not None:  # the machine itself says why; else it could not be asked
                self.on_start_failed(jobs)
            raise process.error
        yield note + self._text(job, jobs)
        if token.is_cancelled:
            return
        if process.is_lost:
            raise ConnectionError(f"the connection to {self.machine_name} was lost")
        if not has_ended:
            raise TimeoutError(
                f"the command took longer than {seconds:g} s and was ended; run it in the background if it needs more"
            )

    def _text(self, job: Job, jobs: Jobs) -> str:
        """The output of a foreground command, how it ended, and what it has changed."""
        process = job.process
        notes = [_ending(job)]
        if not (process.was_stopped or process.is_lost or process.survivors):
            if process.left and not process.is_over:
                number = jobs.add(job)
                job.new_output()
                are = "process is" if process.left == 1 else "processes are"
                notes.append(f"{process.left} {are} still running as job {number}")
            if process.directory and process.directory != process.began_in:
                jobs.directory = process.directory
                notes.append(f"now in {process.directory}")
        output = job.output.text()
        if process.returncode and (explanation := process.explain(output)):
            notes.append(explanation)
        return f"{on_own_line(output)}[{'; '.join(notes)}]"


def _ending(job: Job) -> str:
    process = job.process
    if process.is_lost or process.survivors:
        return f"it {job.state()}"
    if process.was_stopped:
        if process.pid is None and process.is_over:
            return "stopped before it was started"
        return f"stopped after {job.seconds:.1f} s; {job.remaining_text()}"
    code = process.returncode
    return f"exit code {code}" if code is None or code >= 0 else job.state()


class Terminal(TerminalTools):
    """A shell in *workspace*. One object serves any number of sessions; each has its own directory and jobs.

    Variables that look like secrets are not passed on to commands; see `environment.py`.
    """

    def __init__(  # noqa: PLR0913  (all but the first have a default)
        self,
        workspace: str | os.PathLike[str],
        *,
        pass_env: Iterable[str] = (),  # names of variables to pass on although they look like secrets
        env: Mapping[str, str] | None = None,  # variables to add
        shell: str | None = None,  # bash if there is one, else sh
        timeout: float = TIMEOUT,  # seconds for a foreground command, unless the call says otherwise
        grace: float = 1.0,  # seconds between TERM and KILL
        limit: int = LIMIT,  # bytes of output to keep
        sandbox: Sandbox | None = None,  # what commands may read, write and reach; each session gets its own
        approve_prefixes: Iterable[str | Sequence[str]] = (),  # commands that run without asking, such as "git push"
    ) -> None:
        super().__init__(timeout, grace, limit, approve_prefixes)
        self._sandbox = sandbox
        self.has_network = sandbox is None or sandbox.network
        self._workspace = str(Path(workspace).expanduser().resolve())
        self._pass_env = frozenset(pass_env)
        self._extra = dict(env or {})
        self._shell = shell or shutil.which("bash") or "/bin/sh"

    def jobs(self, ctx: ToolContext) -> Jobs:
        """The jobs of the session that *ctx* belongs to."""
        sandbox = self.session_sandbox(ctx)
        jobs = ctx.keep(self._make_jobs)  # after the sandbox, and so closed before it
        jobs.sandbox = sandbox
        return jobs

    def _make_jobs(self) -> Jobs:
        return Jobs(self._workspace)

    def start(
        self, command: str, jobs: Jobs, on_output: Callable[[bytes], object], *, background: bool, network: bool
    ) -> LocalCommand:
        """Start a command as a child process."""
        sandbox = jobs.sandbox
        if network and sandbox is not None:
            sandbox = sandbox.with_network()
        of_sandbox = {} if sandbox is None else sandbox.environment
        env = without_secrets(self._pass_env) | NON_INTERACTIVE | of_sandbox | self._extra
        return LocalCommand(
            self._shell, command, jobs.directory, env, on_output, background=background, sandbox=sandbox
        )

    def recover(self, jobs: Jobs) -> str:
        """Return to the workspace if the directory is gone."""
        if Path(jobs.directory).is_dir():
            return ""
        gone, jobs.directory = jobs.directory, self._workspace
        return f"[{gone} no longer exists; now in {jobs.directory}]\n"
