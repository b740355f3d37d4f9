"""Tools for another machine: `terminal`, `process`, `read_file`, `write_file` and `execute_code`, as for this one.

At a stop control comes back at once with what there is. The command is ended on its machine with all that it has
started, and the machine is asked whether that is so; the result says what it answered. The machine does this by itself
if the connection is lost.

Commands and code that destroy need approval, as they do here (see `danger.py`).

A file is written whole or not at all. Jobs in the background belong to the session; their connection does too, so if
that is lost they are ended.
"""

from __future__ import annotations

import copy
import shlex
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from halter.cancel.seconds import check_seconds
from halter.cancel.token import NEVER, Cancelled
from halter.toolbox.code import why_code
from halter.toolbox.machine import Command, MachineError
from halter.toolbox.output import LIMIT
from halter.toolbox.remotejobs import RemoteJob, RemoteJobs, on_own_line, shown
from halter.toolbox.sshscript import READ, WRITE
from halter.toolbox.terminal import why_command, why_process
from halter.tools.context import ToolContext
from halter.tools.tool import Tool, tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halter.toolbox.machine import Machine

__all__ = ["Remote"]

TIMEOUT: Final = 180.0
# What is on a thread gets so long to hand back what it has. It waits for less: until the machine has said that all is
# over, or for this long.
GRACE: Final = 0.2
_LOOK: Final = 0.1
_START: Final = 30.0
_MOST_CODE: Final = 100_000  # bytes: it travels as one argument
_MOST_READ: Final = 400_000  # bytes of one call
_MOST_LINE: Final = 2_000  # characters
_MOST_WRITTEN: Final = 10_000_000
_FILE_PATIENCE: Final = 60.0
_FINDING: Final = 12.0  # seconds for asking a machine again whose connection was lost


class Remote:
    """The tools for one machine. One object serves any number of sessions; each has its own connection and jobs."""

    def __init__(
        self,
        machine: Machine,
        *,
        env: Mapping[str, str] | None = None,  # variables for the commands; nothing of ours is passed on
        timeout: float = TIMEOUT,  # seconds for a foreground command that names none
        grace: float = 1.0,  # seconds between TERM and KILL
        limit: int = LIMIT,  # bytes of output that are kept
        python: str = "python3",
        prefix: str = "",  # of the tools' names, for an agent that has those of several machines, or of this one
    ) -> None:
        self._machine = machine
        calm = {"GIT_TERMINAL_PROMPT": "0", "PAGER": "cat", "GIT_PAGER": "cat", "TERM": "dumb"}
        self._env = calm | dict(env or {})
        self._timeout = check_seconds("timeout", timeout)
        self._grace = check_seconds("grace", grace)
        self._limit = limit
        self._python = python
        self._prefix = prefix

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """All of them, for `Agent(tools=...)`."""
        named: list[Tool[..., Any]] = [self.terminal, self.process, self.read_file, self.write_file, self.execute_code]
        return [_renamed(each, f"{self._prefix}{each.name}") for each in named] if self._prefix else named

    def jobs(self, ctx: ToolContext) -> RemoteJobs:
        """The jobs of the session that *ctx* belongs to, and its connection."""
        return ctx.keep(self._make_jobs)

    def _make_jobs(self) -> RemoteJobs:
        return RemoteJobs(self._machine)

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
        yield from self._run(command, command, jobs, ctx, self._timeout if timeout is None else _positive(timeout))

    @tool(approval=why_code, grace=GRACE)
    def execute_code(self, code: str, ctx: ToolContext, timeout: float | None = None) -> Iterator[str]:
        """Run Python code on the remote machine; returns what it prints. Nothing stays for the next call but files.

        Args:
            code: the code.
            timeout: seconds after which it is ended; 180 unless said otherwise.

        """
        if len(code.encode()) > _MOST_CODE:
            msg = f"the code is longer than {_MOST_CODE:,} bytes: write it to a file, and run that with the terminal"
            raise ValueError(msg)
        seconds = self._timeout if timeout is None else _positive(timeout)
        command = f"exec {shlex.quote(self._python)} -u -c {shlex.quote(code)}"
        yield from self._run(command, "the code", self.jobs(ctx), ctx, seconds)

    @tool(approval=why_process, grace=GRACE)
    def process(
        self,
        action: Literal["list", "poll", "wait", "write", "kill"],
        ctx: ToolContext,
        job: int = 0,
        text: str = "",
        *,
        end_input: bool = False,
        timeout: float = 60.0,
    ) -> str:
        """Look after background jobs: list them, see what one has said, wait for it, write to it, end it.

        Args:
            action: list all; poll: new output; wait: until it ends; write: text to its input; kill: end it.
            job: its number, as terminal and list tell it.
            text: for write. A line needs its newline.
            end_input: for write: nothing more will come.
            timeout: for wait, in seconds. The job goes on if it is over.

        """
        jobs = self.jobs(ctx)
        if action == "list":
            lines = [f"job {each.id} {each.state()}: {shown(each.command)}" for each in jobs.all()]
            return "\n".join(lines) or "There are no jobs."
        one = jobs.get(job)
        if action == "wait":
            one.running.wait_over(ctx.token, _positive(timeout))
        elif action == "write":
            data = text.encode()
            one.running.send(data, ends=end_input, token=ctx.token)
            return f"[written to job {one.id}: {len(data)} bytes{', and its input ended' if end_input else ''}]"
        elif action == "kill":
            one.running.stop(self._grace)
            one.running.wait_over(ctx.token)
        return f"{on_own_line(one.news())}[job {one.id} {one.state()}]"

    @tool(grace=GRACE)
    def read_file(
        self,
        path: str,
        ctx: ToolContext,
        start: Annotated[int, Meta(ge=1)] = 1,
        lines: Annotated[int, Meta(ge=1, le=10_000)] = 2000,
    ) -> str:
        """Read a text file of the remote machine with its line numbers.

        Args:
            path: the file, from the directory where the machine is worked in.
            start: the first line to give.
            lines: how many lines to give at most.

        """
        jobs = self.jobs(ctx)
        args = (path, str(start), str(lines), self._machine.directory, str(_MOST_READ))
        said = jobs.link.run(READ, *args, token=ctx.token, timeout=_FILE_PATIENCE)
        if said.code:
            raise MachineError(said.error or f"{path} could not be read")
        if b"\0" in said.output:
            msg = f"{path} is a binary file; it cannot be read as text"
            raise ValueError(msg)
        return _numbered(path, said.output, said.error, start, lines)

    @tool(grace=GRACE)
    def write_file(self, path: str, content: str, ctx: ToolContext) -> str:
        """Write a text file on the remote machine, new or over an old one. Directories that are missing are made.

        Args:
            path: the file, from the directory where the machine is worked in.
            content: the whole new content.

        """
        data = content.encode()
        if len(data) > _MOST_WRITTEN:
            msg = f"the content has {len(data):,} bytes; at most {_MOST_WRITTEN:,} can be written at once"
            raise ValueError(msg)
        args = (path, str(len(data)), self._machine.directory)
        try:
            said = self.jobs(ctx).link.run(WRITE, *args, token=ctx.token, data=data, timeout=_FILE_PATIENCE)
        except Cancelled:
            return f"[stopped: {path} is as it was, or has all of its new content; look before you go on]"
        if said.code:
            raise MachineError(said.error or f"{path} could not be written, and is as it was")
        count = content.count("\n") + (not content.endswith("\n") and bool(content))
        how = "Made" if said.output.strip() == b"made" else "Replaced"
        return f"{how} {path}: {count:,} lines, {len(data):,} bytes."

    # -- inside ------------------------------------------------------------------------------------------------------

    def _start_job(self, command: str, jobs: RemoteJobs, ctx: ToolContext) -> str:
        jobs.check_room()
        ctx.token.raise_if_cancelled()  # nothing starts after the stop
        wanted = Command(command, jobs.directory, self._env, takes_input=True, grace=self._grace)
        job = RemoteJob(command, jobs.link, wanted, limit=self._limit)
        number = jobs.add(job)
        running = job.running
        has_begun = running.wait(lambda: running.pid is not None or running.is_over, ctx.token, _START)
        if running.error is not None and running.pid is None:
            jobs.remove(job)
            raise running.error
        if not has_begun:
            running.stop(self._grace)
            jobs.remove(job)
            ctx.token.raise_if_cancelled()
            msg = f"{self._machine.name} has not begun with it within {_START:g} s"
            raise MachineError(msg)
        return f"[job {number} started, process {running.pid} on {self._machine.name}]"

    def _run(self, command: str, what: str, jobs: RemoteJobs, ctx: ToolContext, seconds: float) -> Iterator[str]:
        """Run a command in the foreground."""
        token = ctx.token
        token.raise_if_cancelled()  # nothing starts after the stop
        wanted = Command(command, jobs.directory, self._env, grace=self._grace)
        job = RemoteJob(what, jobs.link, wanted, limit=self._limit, report=ctx.report)
        running = job.running
        has_ended = running.wait(lambda: running.is_over or running.is_lost, token, seconds)
        if not has_ended:
            running.stop(self._grace)
            if token.is_cancelled:
                running.wait(lambda: running.is_over or running.is_lost, NEVER, _LOOK)
            else:
                running.wait(lambda: running.is_over or running.is_lost, token, self._grace * 2 + _FINDING)
        if running.is_lost and not token.is_cancelled:
            running.wait_over(token, _FINDING)
        if running.error is not None and running.pid is None:
            jobs.directory = self._machine.directory  # should it be that the other one is gone
            raise running.error
        yield job.text(jobs)
        if token.is_cancelled:
            return
        if running.is_lost:
            msg = f"the connection to {self._machine.name} was lost"
            raise MachineError(msg)
        if not has_ended:
            msg = f"it took longer than {seconds:g} s and was ended; run it in the background if it needs more"
            raise TimeoutError(msg)


def _renamed(one: Tool[..., Any], name: str) -> Tool[..., Any]:
    twin = copy.copy(one)
    twin.name = name
    twin.spec = msgspec.structs.replace(one.spec, name=name)
    return twin


def _numbered(path: str, data: bytes, counts: str, start: int, lines: int) -> str:
    """The lines of a file as they are shown, and what was left out."""
    total, size = (int(each) for each in counts.split()[-2:])
    texts = data.decode(errors="replace").splitlines()
    is_cut = len(data) >= _MOST_READ
    if is_cut and len(texts) > 1:
        texts.pop()  # half a line
    if not texts:
        if start > 1:
            msg = f"{path} has only {total:,} lines; line {start:,} is behind its end"
            raise ValueError(msg)
        return "[the file is empty]"
    shown_lines = [
        f"{number:>6}\t{text if len(text) <= _MOST_LINE else f'{text[:_MOST_LINE]} [... this line goes on]'}"
        for number, text in enumerate(texts, start)
    ]
    last = start + len(texts) - 1
    if last < total or is_cut:
        why = f"more than {_MOST_READ:,} bytes; " if is_cut else ""
        note = f"{why}lines {start:,} to {last:,} of {total:,}, {size:,} bytes; go on with start={last + 1}"
        shown_lines.append(f"[{note}]")
    elif start > 1 or len(texts) > lines:
        shown_lines.append(f"[lines {start:,} to {last:,}: the end of the file]")
    return "\n".join(shown_lines)


def _positive(seconds: float) -> float:
    if check_seconds("timeout", seconds) == 0:
        msg = "a timeout of 0 leaves no time at all"
        raise ValueError(msg)
    return seconds
