"""The `process` tool: looks after the background jobs of a session, on this machine or on another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from halter.cancel.seconds import check_seconds
from halter.toolbox.danger import danger_in
from halter.tools.context import ToolContext
from halter.tools.tool import tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halter.toolbox.jobs import Job, Jobs

__all__ = ["GRACE", "JobTools", "on_own_line", "positive"]

# What waits for a process comes back by itself at a stop. On a machine that is overloaded it may need longer than is
# usual, and then a late word is better than none.
GRACE: Final = 0.5
_MOST_SHOWN: Final = 80


def why_process(arguments: Mapping[str, Any]) -> str:
    """Why a call of `process` needs approval: what is written may be read by a shell."""
    is_written = arguments.get("action") == "write"
    why = danger_in(str(arguments.get("text", ""))) if is_written else ""
    return "" if why.startswith("it cannot be read") else why


class JobTools:
    """What has jobs in the background."""

    def __init__(self, grace: float) -> None:
        self.grace = check_seconds("grace", grace)  # seconds between TERM and KILL

    def jobs(self, ctx: ToolContext) -> Jobs[Any]:
        """The jobs of the session that *ctx* belongs to."""
        raise NotImplementedError

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
    ) -> Iterator[str]:
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
            lines = [f"job {each.id} {each.state()}: {_shown(each.command)}" for each in jobs.all()]
            yield "\n".join(lines) or "There are no jobs."
            return
        one: Job[Any] = jobs.get(job)
        process = one.process
        if action == "write":
            if not process.accepts_input:
                msg = f"job {one.id} takes no input: it {one.state()}"
                raise RuntimeError(msg)
            process.send(text.encode(), ends=end_input, token=ctx.token)
            ended = "; that was the end of its input" if end_input else ""
            yield f"[{len(text.encode())} bytes written to job {one.id}{ended}]"
            return
        if action == "wait":
            process.wait(lambda: process.has_exited, ctx.token, positive(timeout))
        elif action == "kill":
            process.stop(self.grace)
            process.wait(lambda: process.is_over, ctx.token)
        yield f"{on_own_line(one.news())}[job {one.id} {one.state()}]"


def positive(seconds: float) -> float:
    """A timeout that leaves some time."""
    if check_seconds("timeout", seconds) == 0:
        msg = "a timeout of 0 leaves no time at all"
        raise ValueError(msg)
    return seconds


def on_own_line(text: str) -> str:
    """A text that something can be put behind, on a line of its own."""
    return text if not text or text.endswith("\n") else f"{text}\n"


def _shown(command: str) -> str:
    """A command on one line, shortened."""
    line = " ".join(command.split()) if "\n" in command else command
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 1]}…"
