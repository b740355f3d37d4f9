"""A tool that runs Python: `execute_code`, in an interpreter of its own, whose variables last as long as the session.

The code can call the agent's other tools (`tools.read_file(path="x")`) and show pictures. At a stop it gets a
KeyboardInterrupt and what it has printed so far is given back at once; `kernel.py` tells what becomes of it.
It is a process like any other and can do whatever this user can. `codedanger.py` has the seat belt.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from halter.cancel.seconds import check_seconds
from halter.cancel.token import NEVER, CancellationToken, Cancelled
from halter.models.model import Image, Text
from halter.toolbox.codedanger import danger_in_code
from halter.toolbox.environment import without_secrets
from halter.toolbox.kernel import Kernel, Run, freeing
from halter.toolbox.localinterpreter import LocalInterpreter
from halter.toolbox.output import LIMIT
from halter.tools.content import error_text
from halter.tools.context import ToolContext
from halter.tools.outcome import ToolOutcome
from halter.tools.tool import Tool, tool
from halter.tools.toolset import collect_tools

TIMEOUT: Final = 300.0
CALM: Final = {"MPLBACKEND": "Agg"}  # no windows
# After a stop, how long we wait for the code to end by its interrupt, so that what it says last is there too.
_LOOK: Final = 0.015
# The tool comes back by itself after that. On a busy machine it may need longer; late words are better than none.
_PATIENCE: Final = 0.5
# How long the code may take to end, before its interpreter is killed. Nobody waits for that but the next call.
GRACE: Final = 1.0


def why_code(arguments: Any) -> str:
    """Why a call of `execute_code` needs approval."""
    return danger_in_code(str(arguments.get("code", "")))


class CodeFailed(RuntimeError):
    """The code raised something, or took its interpreter with it."""


class CodeTool:
    """The tool, over whatever interpreter a session has."""

    look: float = _LOOK

    def __init__(self, tools: Iterable[Tool[..., Any] | Callable[..., Any]], timeout: float, grace: float) -> None:
        self.inner = {name: each for name, each in collect_tools(tools).items() if name != "execute_code"}
        self._timeout = check_seconds("timeout", timeout)
        self._grace = check_seconds("grace", grace)

    def kernel(self, ctx: ToolContext) -> Kernel:
        """The interpreter of the session that *ctx* belongs to."""
        raise NotImplementedError

    @tool(approval=why_code, grace=_PATIENCE)
    def execute_code(self, code: str, ctx: ToolContext, timeout: float | None = None) -> Iterator[object]:
        """Run Python code; returns what it prints, the value of its last expression, and its pictures.

        Variables, functions and imports stay for the next call. Figures of matplotlib are shown; show(x) shows another
        picture. The other tools are functions of the object `tools`, with keyword arguments: tools.NAME(name=value).

        Args:
            code: the code.
            timeout: seconds after which it is interrupted; 300 unless said otherwise.

        """
        seconds = self._timeout if timeout is None else check_seconds("timeout", timeout)
        kernel = self.kernel(ctx)
        kernel.take(ctx.token)
        with freeing(kernel):
            token = ctx.token.child("code")
            run = kernel.new_run(ctx.report, _Caller(self.inner, kernel, ctx, token))
            loss = kernel.start(code, run)
        if loss:
            run.preface = f"[{loss}: this is a fresh one, and earlier variables are gone]\n"
        if kernel.wait(run, ctx.token, seconds):
            token.cancel("ended")  # what its threads have asked for is nobody's any more
            how = kernel.end(run)
            yield _content(run, "")
            _raise_if_failed(run, how)
            return
        inside = f" while it waited for {', '.join(sorted(run.inside))}" if run.inside else ""
        token.cancel(ctx.token.reason or "timeout")
        yield self._stop(kernel, run, ctx.token, inside)
        if not ctx.token.is_cancelled:
            msg = f"the code took longer than {seconds:g} s and was interrupted"
            raise TimeoutError(msg)

    def _stop(self, kernel: Kernel, run: Run, token: CancellationToken, inside: str) -> object:
        """Interrupt the code and say how it is; at a stop control is wanted back, and the rest is done elsewhere."""
        kernel.interrupt()
        if token.is_cancelled:
            kernel.wait(run, NEVER, self.look)
        else:
            kernel.wait(run, token, self._grace)
        if run.how:
            note = f"[interrupted{inside}; its variables are kept]"
        else:
            note = f"[interrupted{inside}, and it has not ended yet; the next call tells what became of it]"
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
    ) -> None:
        super().__init__(tools, timeout, grace)
        self._workspace = Path(workspace).expanduser().resolve()
        self._pass_env = frozenset(pass_env)
        self._limit = limit

    @property
    def tools(self) -> list[Tool[..., Any]]:
        return [self.execute_code]

    def kernel(self, ctx: ToolContext) -> Kernel:
        """The interpreter of the session that *ctx* belongs to."""
        return ctx.keep(self._make_kernel)

    def _make_kernel(self) -> Kernel:
        environment = without_secrets(self._pass_env) | CALM
        directory, names = str(self._workspace), sorted(self.inner)
        return Kernel(lambda ears: LocalInterpreter(directory, environment, names, ears), self._limit)


class _Caller:
    """Calls other tools for the code. Runs in a thread for each."""

    def __init__(
        self, tools: dict[str, Tool[..., Any]], kernel: Kernel, ctx: ToolContext, token: CancellationToken
    ) -> None:
        self._tools = tools
        self._kernel = kernel
        self._ctx = ctx
        self._token = token

    def __call__(self, run: Run, message: dict[str, Any]) -> None:
        """Call one and answer. A boundary: whatever goes wrong is the answer."""
        number, name = message.get("id", 0), str(message.get("name"))
        try:
            run.inside.add(name)
            outcome = self._ctx.call(self._tools[name], json.dumps(message["arguments"]), self._token)
            if not self._token.is_cancelled:  # else the code is told that it was in there
                run.inside.discard(name)
            self._kernel.answer(number, *_answer(outcome))
        except Cancelled:
            return  # the code is being interrupted, and hears of it that way
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


def _raise_if_failed(run: Run, how: str) -> None:
    if not run.how:
        msg = f"the interpreter has ended ({how}): all variables are gone, and the next call gets a fresh one"
        raise CodeFailed(msg)
    if run.how != "done":
        raise CodeFailed(run.words or run.how)


def _content(run: Run, note: str) -> object:
    text = run.preface + run.output.text()
    if run.left_out:
        note = f"{note}\n[{run.left_out} more pictures left out]".lstrip()
    if note:
        text = f"{text}\n{note}" if text and not text.endswith("\n") else f"{text}{note}"
    return [text, *run.pictures] if run.pictures else text
