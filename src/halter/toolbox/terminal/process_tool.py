"""The `process` tool for the background jobs of a session, on this machine or on another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from halter.cancel.deadlines import check_seconds
from halter.toolbox.sandbox.sandboxed_tools import SandboxedTools
from halter.toolbox.terminal.approval.commands import danger_in
from halter.tools.approval import ApprovalNeed
from halter.tools.context import ToolContext
from halter.tools.tool import tool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from halter.toolbox.terminal.jobs import Job, Jobs
from halter.views.text import shorten

__all__ = ["GRACE", "ProcessTool", "on_own_line", "positive"]

# Seconds. A call that waits for a process returns by itself at a stop; on an overloaded machine that may take longer.
GRACE: Final = 0.5
_MAX_SHOWN: Final = 80  # characters of a command in the list


class ProcessTool(SandboxedTools):
    """The tool `process`."""

    def __init__(self, grace: float) -> None:
        self.grace = check_seconds("grace", grace)  # seconds between TERM and KILL

    def jobs(self, ctx: ToolContext) -> Jobs:
        """The jobs of the session that *ctx* belongs to."""
        raise NotImplementedError

    def writing_needs_approval(self, arguments: Mapping[str, Any]) -> ApprovalNeed | bool:
        """Why a call of `process` needs approval: what is written may be read by a shell."""
        if arguments.get("action") != "write":
            return False
        danger = danger_in(str(arguments.get("text", "")))
        danger = "" if danger.startswith("it cannot be parsed") else danger
        return ApprovalNeed(
            reason=danger or "it writes to the input of a running program",
            automatic=self.in_sandbox,
            unattended=self.in_sandbox and not danger,
            covers="call",
        )

    @tool(approval=writing_needs_approval, grace=GRACE)
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
        """Manage background jobs: list them, read new output, wait for one, write to its input, or end it.

        Args:
            action: list: all jobs; poll: new output; wait: until it ends; write: text to its input; kill: end it.
            job: the number of the job, as reported by terminal and list.
            text: for write: the text; end a line with a newline.
            end_input: for write: close the input after the text.
            timeout: for wait: seconds to wait; the job keeps running after that.

        """
        jobs = self.jobs(ctx)
        if action == "list":
            lines = [f"job {each.id} {each.state()}: {shorten(each.command, _MAX_SHOWN)}" for each in jobs.all()]
            yield "\n".join(lines) or "There are no jobs."
            return
        one: Job = jobs.get(job)
        process = one.process
        if action == "write":
            if not process.accepts_input:
                raise RuntimeError(f"job {one.id} does not accept input: it {one.state()}")
            process.send(text.encode(), ends=end_input, token=ctx.token)
            ended = "; its input is closed" if end_input else ""
            yield f"[{len(text.encode())} bytes sent to job {one.id}{ended}]"
            return
        if action == "wait":
            process.wait(lambda: process.has_exited, ctx.token, positive(timeout))
        elif action == "kill" and one.is_running:
            process.stop(self.grace)
            process.wait(lambda: process.is_over, ctx.token)
        yield f"{on_own_line(one.new_output())}[job {one.id} {one.state()}]"


def positive(seconds: float) -> float:
    """Check that a timeout is greater than 0."""
    if check_seconds("timeout", seconds) == 0:
        raise ValueError("the timeout must be greater than 0")
    return seconds


def on_own_line(text: str) -> str:
    """The text with a newline at its end, unless it is empty."""
    return text if not text or text.endswith("\n") else f"{text}\n"
