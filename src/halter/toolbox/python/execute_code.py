"""A tool that runs Python: `execute_code`, in an interpreter of its own, whose variables last as long as the session.

The code can call the agent's other tools (`tools.read_file(path="x")`) and show images. At a stop it gets a
KeyboardInterrupt, and its output so far is returned at once; see `kernel.py`. Without a sandbox the code can do
all that this user can. All code needs approval; the policy "auto" grants what runs in a sandbox.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from halter.cancel.deadlines import check_seconds
from halter.cancel.token import NEVER, CancellationToken, Cancelled
from halter.models.types import Image, Text
from halter.toolbox.python.approval import danger_in_code
from halter.toolbox.python.kernel import CodeRun, InterpreterCallbacks, Kernel, freeing
from halter.toolbox.python.local_interpreter import LocalInterpreter
from halter.toolbox.sandbox.sandbox import Sandbox
from halter.toolbox.sandbox.sandboxed_tools import SandboxedTools
from halter.toolbox.terminal.environment import without_secrets
from halter.toolbox.terminal.output import LIMIT
from halter.tools.approval import ApprovalNeed
from halter.tools.content import error_text
from halter.tools.context import ToolContext
from halter.tools.outcome import ToolOutcome
from halter.tools.tool import Tool, tool
from halter.tools.toolset import collect_tools

TIMEOUT: Final = 300.0  # seconds
ENVIRONMENT: Final = {"MPLBACKEND": "Agg"}  # no windows
# Seconds after a stop in which the code may end, so that its last output is returned too.
_STOP_WAIT: Final = 0.015
# Seconds. The tool returns by itself after that wait; on a busy machine it may take longer.
_TOOL_GRACE: Final = 0.5
# Seconds that the code may take to end before its interpreter is killed. Only the next call waits for that.
GRACE: Final = 1.0


class CodeFailed(RuntimeError):
    """The code raised an exception, or ended its interpreter."""


class CodeTool(SandboxedTools):
    """The tool `execute_code`, for any machine."""

    stop_wait: float = _STOP_WAIT

    def __init__(self, tools: Iterable[Tool[..., Any] | Callable[..., Any]], timeout: float, grace: float) -> None:
        self.inner = {name: each for name, each in collect_tools(tools).items() if name != "execute_code"}
        self._timeout = check_seconds("timeout", timeout)
        self._grace = check_seconds("grace", grace)

    def kernel(self, ctx: ToolContext) -> Kernel:
        """The interpreter of the session that *ctx* belongs to."""
        raise NotImplementedError

    def needs_approval(self, arguments: Mapping[str, Any]) -> ApprovalNeed:
        """Why a call of `execute_code` needs approval."""
        danger = danger_in_code(str(arguments.get("code", "")))
        return ApprovalNeed(
            reason=danger or "it runs Python code",
            automatic=self.in_sandbox,
            unattended=self.in_sandbox and not danger,
            covers="call" if danger else "tool",
        )

    @tool(approval=needs_approval, grace=_TOOL_GRACE)
    def execute_code(self, code: str, ctx: ToolContext, timeout: float | None = None) -> Iterator[object]:
        """Run Python code; returns what it prints, the value of its last expression, and its images.

        Variables, functions and imports persist between calls. Matplotlib figures are shown; show(x) shows another
        image. The other tools are methods of the object `tools` and take keyword arguments: tools.NAME(name=value).

        Args:
            code: the code.
            timeout: seconds after which it is interrupted; leave it out for the usual limit.

        """
        seconds = self._timeout if timeout is None else check_seconds("timeout", timeout)
        kernel = self.kernel(ctx)
        kernel.take(ctx.token)
        with freeing(kernel):
            token = ctx.token.child("code")
            run = kernel.new_run(ctx.report, _Caller(self.inner, kernel, ctx, token))
            loss = kernel.start(code, run)
        if loss:
            run.preface = f"[{loss}; this is a new one, and earlier variables are lost]\n"
        if kernel.wait(run, ctx.token, seconds):
            token.cancel("ended")  # stops calls that threads of the code still wait for
            how = kernel.end(run)
            yield _content(run, "")
            _raise_if_failed(run, how, kernel.sandbox)
            return
        inside = f" while it waited for {', '.join(sorted(run.inside))}" if run.inside else ""
        token.cancel(ctx.token.reason or "timeout")
        yield self._stop(kernel, run, ctx.token, inside)
        if not ctx.token.is_cancelled:
            raise TimeoutError(f"the code took longer than {seconds:g} s and was interrupted")

    def _stop(self, kernel: Kernel, run: CodeRun, token: CancellationToken, inside: str) -> object:
        """Interrupt the code and report its state. At a stop the wait is short, and a thread does the rest."""
        kernel.interrupt()
        if token.is_cancelled:
            kernel.wait(run, NEVER, self.stop_wait)
        else:
            kernel.wait(run, token, self._grace)
        if run.how:
            note = f"[interrupted{inside}; variables are kept]"
        else:
            note = f"[interrupted{inside}, but it has not ended yet; the next call reports what happened]"
        content = _content(run, note)
        kernel.end_later(run, self._grace)
        return content


class Code(CodeTool):
    """Python in *workspace*, with *tools* that the code can call. Each session has an interpreter of its own."""

    def __init__(
        self,
        workspace: str | os.PathLike[str],
        tools: Iterable[Tool[..., Any] | Callable[..., Any]] = (),
        *,
        pass_env: Iterable[str] = (),  # names of variables that are passed on though they look like secrets
        timeout: float = TIMEOUT,  # seconds for code that names none
        grace: float = GRACE,  # seconds between the interrupt and the kill
        limit: int = LIMIT,  # bytes of output that are kept
        sandbox: Sandbox | None = None,  # what the code may read, write and reach; each session gets its own
    ) -> None:
        super().__init__(tools, timeout, grace)
        self._sandbox = sandbox
        self._workspace = Path(workspace).expanduser().resolve()
        self._pass_env = frozenset(pass_env)
        self._limit = limit

    @property
    def tools(self) -> list[Tool[..., Any]]:
        return [self.execute_code]

    def kernel(self, ctx: ToolContext) -> Kernel:
        """The interpreter of the session that *ctx* belongs to."""
        sandbox = self.session_sandbox(ctx)
        kernel = ctx.keep(self._make_kernel)  # after the sandbox, and so closed before it
        kernel.sandbox = sandbox
        return kernel

    def _make_kernel(self) -> Kernel:
        environment = without_secrets(self._pass_env) | ENVIRONMENT
        directory, names = str(self._workspace), sorted(self.inner)

        def make(callbacks: InterpreterCallbacks) -> LocalInterpreter:
            return LocalInterpreter(directory, environment, names, callbacks, kernel.sandbox)

        kernel = Kernel(make, self._limit)
        return kernel


class _Caller:
    """Calls other tools for the code, each in a thread."""

    def __init__(
        self, tools: dict[str, Tool[..., Any]], kernel: Kernel, ctx: ToolContext, token: CancellationToken
    ) -> None:
        self._tools = tools
        self._kernel = kernel
        self._ctx = ctx
        self._token = token

    def __call__(self, run: CodeRun, message: dict[str, Any]) -> None:
        """Call a tool and send its result to the code. A boundary: errors are sent as well."""
        number, name = message.get("id", 0), str(message.get("name"))
        try:
            run.inside.add(name)
            outcome = self._ctx.call(self._tools[name], json.dumps(message["arguments"]), self._token)
            if not self._token.is_cancelled:  # else the note of the stop names this tool
                run.inside.discard(name)
            self._kernel.answer(number, *_answer(outcome))
        except Cancelled:
            return  # the code is being interrupted anyway
        except Exception as error:  # noqa: BLE001
            self._kernel.answer(number, error_text(error))


def _answer(outcome: ToolOutcome) -> tuple[str, list[object]]:
    if outcome.status != "completed":
        texts = [part.text for part in outcome.to_message().parts if isinstance(part, Text)]
        return f"{outcome.name}: {' '.join(texts)}", []
    if isinstance(outcome.content, str):
        return "", [outcome.content]
    parts: list[object] = []
    for part in outcome.content:
        if isinstance(part, Text):
            parts.append(part.text)
        elif isinstance(part, Image) and part.data is not None:
            parts.append({"data": base64.b64encode(part.data).decode(), "media_type": part.media_type})
    return "", parts


def _raise_if_failed(run: CodeRun, how: str, sandbox: Sandbox | None) -> None:
    if not run.how:
        raise CodeFailed(f"the interpreter ended ({how}): all variables are lost; the next call starts a new one")
    if run.how != "done":
        words = run.words or run.how
        explanation = "" if sandbox is None else sandbox.explain(words)
        raise CodeFailed(f"{words}\n[{explanation}]" if explanation else words)


def _content(run: CodeRun, note: str) -> object:
    text = run.preface + run.output.text()
    if run.left_out:
        note = f"{note}\n[{run.left_out} more images left out]".lstrip()
    if note:
        text = f"{text}\n{note}" if text and not text.endswith("\n") else f"{text}{note}"
    return [text, *run.pictures] if run.pictures else text
