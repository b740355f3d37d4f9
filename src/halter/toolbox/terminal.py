"""Tools that run shell commands: `terminal`, in the foreground or the background, and `process` for background jobs.

A stop of a foreground command gives back what it has said so far at once, and ends it with everything it has started,
also what tried to get away. A background job is not touched by that: it belongs to the session and ends with it.
Commands that destroy need approval (see `danger.py`), and variables that look like secrets are not passed on (see
`environment.py`).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.seconds import check_seconds
from halter.toolbox.child import Child, Link
from halter.toolbox.danger import danger_in
from halter.toolbox.environment import without_secrets
from halter.toolbox.jobs import Job, Jobs
from halter.toolbox.jobtools import GRACE, JobTools, on_own_line, positive
from halter.toolbox.output import LIMIT, Progress
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

TIMEOUT: Final = 180.0
# Nothing waits for a person.
CALM: Final = {"GIT_TERMINAL_PROMPT": "0", "PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb"}
# After a stop, how long we wait to be able to say that the command is dead: most are, by then.
_LOOK: Final = 0.01
# And how long we wait for what it had said before; that takes a millisecond, unless the machine is very busy.
_HEAR: Final = 0.025
# Runs the command, and notes where it has gone to. `exec` in the command means that nothing is noted.
_KEEP_DIRECTORY: Final = 'trap "pwd -P >/dev/fd/$HALTER_DIRECTORY" EXIT 2>/dev/null; unset HALTER_DIRECTORY; eval "$1"'


def why_command(arguments: Mapping[str, Any]) -> str:
    """Why a call of `terminal` needs approval."""
    return danger_in(str(arguments.get("command", "")))


class Terminal(JobTools):
    """A shell in *workspace*. One object serves any number of sessions; each has its own directory and jobs."""

    def __init__(
        self,
        workspace: str | os.PathLike[str],
        *,
        pass_env: Iterable[str] = (),  # names of variables that are passed on though they look like secrets
        env: Mapping[str, str] | None = None,  # variables to add
        shell: str | None = None,  # bash if there is one, else sh
        timeout: float = TIMEOUT,  # seconds for a foreground command that names none
        grace: float = 1.0,  # seconds between TERM and KILL
        limit: int = LIMIT,  # bytes of output that are kept
    ) -> None:
        super().__init__(grace)
        self._workspace = Path(workspace).expanduser().resolve()
        self._pass_env = frozenset(pass_env)
        self._extra = dict(env or {})
        self._shell = shell or shutil.which("bash") or "/bin/sh"
        self._timeout = check_seconds("timeout", timeout)
        self._limit = limit

    @property
    def tools(self) -> list[Tool[..., Any]]:
        return [self.terminal, self.process]

    def jobs(self, ctx: ToolContext) -> Jobs[Child]:
        """The jobs of the session that *ctx* belongs to."""
        return ctx.keep(self._make_jobs)

    def _make_jobs(self) -> Jobs[Child]:
        return Jobs(str(self._workspace))

    @tool(approval=why_command, grace=GRACE)
    def terminal(
        self, command: str, ctx: ToolContext, background: bool = False, timeout: float | None = None
    ) -> Iterator[str]:
        """Run a shell command; returns its output (stdout and stderr together) and its exit code.

        A `cd` holds for the next command; variables do not. There is no terminal and no input: use flags such as --yes.
        Servers, watchers and other long work go to the background; look after them with the process tool.

        Args:
            command: what to run, for bash.
            background: return at once with the number of a job.
            timeout: seconds after which a foreground command is ended; 180 unless said otherwise.

        """
        if not command.strip():
            msg = "the command is empty"
            raise ValueError(msg)
        jobs = self.jobs(ctx)
        lost = self._recover(jobs)
        if background:
            yield lost + self._start_job(command, jobs, ctx)
            return
        seconds = self._timeout if timeout is None else positive(timeout)
        run = _Foreground(self, command, jobs, ctx)
        has_ended = run.wait(seconds)
        yield lost + run.text()
        if not has_ended and not ctx.token.is_cancelled:
            msg = f"the command took longer than {seconds:g} s and was ended; run it in the background if it needs more"
            raise TimeoutError(msg)

    # -- inside -------------------------------------------------------------------------------------------------------

    def environment(self) -> dict[str, str]:
        """What commands get: no secrets, and nothing that waits for a person."""
        return without_secrets(self._pass_env) | CALM | self._extra

    def start(self, command: str, jobs: Jobs[Child], link: Link, progress: Progress) -> Job[Child]:
        """Start a foreground command."""
        argv = [self._shell, "-c", _KEEP_DIRECTORY, self._shell, command]
        env = self.environment() | {"HALTER_DIRECTORY": str(link.theirs)}
        return Job(
            command,
            lambda hear: Child(argv, cwd=jobs.directory, env=env, on_output=hear, link=link),
            limit=self._limit,
            progress=progress,
        )

    def _recover(self, jobs: Jobs[Child]) -> str:
        """Go back to the workspace if the directory is gone; says so."""
        if Path(jobs.directory).is_dir():
            return ""
        gone, jobs.directory = jobs.directory, str(self._workspace)
        return f"[{gone} is gone; now in {jobs.directory}]\n"

    def _start_job(self, command: str, jobs: Jobs[Child], ctx: ToolContext) -> str:
        jobs.check_room()
        ctx.token.raise_if_cancelled()  # nothing starts after the stop
        argv, env = [self._shell, "-c", command], self.environment()
        job = Job(
            command,
            lambda hear: Child(argv, cwd=jobs.directory, env=env, on_output=hear, takes_input=True),
            limit=self._limit,
        )
        number = jobs.add(job)
        child = job.process
        child.wait(lambda: child.pid is not None or child.is_over, timeout=10)
        if child.error is not None:
            raise child.error
        return f"[job {number} started, process {child.pid}]"


class _Foreground:
    """One foreground command."""

    def __init__(self, terminal: Terminal, command: str, jobs: Jobs[Child], ctx: ToolContext) -> None:
        self._terminal = terminal
        self._jobs = jobs
        self._token = ctx.token
        self._directory = jobs.directory
        self._noted = bytearray()
        self._progress = Progress(ctx.report)
        self._token.raise_if_cancelled()  # nothing starts after the stop
        ours, theirs = os.pipe()
        self._job = terminal.start(command, jobs, Link(ours, theirs, self._noted.extend), self._progress)
        jobs.enter(self._job)

    def wait(self, seconds: float) -> bool:
        """Wait until the command has exited, the stop or the end of its time; True if it has exited."""
        child = self._job.process
        try:
            has_ended = child.wait(self._is_settled, self._token, seconds, self._progress)
            if not has_ended:
                child.stop(self._terminal.grace)
                if not self._token.is_cancelled:
                    child.wait_over(self._token)
                # At a stop control is wanted back, and the child's thread ends the family alone.
                child.wait(lambda: child.is_drained or child.is_over, timeout=_HEAR)
                child.wait_over(timeout=_LOOK)
        finally:
            self._jobs.leave(self._job)
        if child.error is not None and child.pid is None:
            raise child.error
        return has_ended

    def _is_settled(self) -> bool:
        child = self._job.process
        return child.is_over or child.left is not None

    def text(self) -> str:
        """What it has said, how it ended, and what it has changed."""
        job = self._job
        notes = [self._how_it_ended()]
        if job.process.left and not job.process.is_over and not job.process.was_stopped:
            number = self._jobs.add(job)
            job.news()
            few = job.process.left == 1
            notes.append(f"{job.process.left} process{'' if few else 'es'} go{'es' if few else ''} on as job {number}")
        if moved := self._moved():
            notes.append(f"now in {moved}")
        return f"{on_own_line(job.output.text())}[{'; '.join(notes)}]"

    def _how_it_ended(self) -> str:
        job, child = self._job, self._job.process
        if not child.was_stopped:
            code = child.returncode
            return f"exit code {code}" if code is None or code >= 0 else job.state()
        return job.state() if child.survivors else f"stopped after {job.seconds:.1f} s; {job.who_is_left()}"

    def _moved(self) -> str:
        """Note the directory that the command has gone to, if it has; nobody else's is overwritten."""
        noted = os.fsdecode(bytes(self._noted)).removesuffix("\n")
        if self._job.process.was_stopped or not noted or noted == self._directory or not Path(noted).is_dir():
            return ""
        self._jobs.directory = noted
        return noted
