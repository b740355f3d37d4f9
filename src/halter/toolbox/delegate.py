"""Tools that delegate work to other agents: `delegate`, and `subagents` for those in the background.

In the foreground a stop of the call stops the children, and returns what each has: the answers of those that were done,
and the partial answers of the others, marked as such. Those in the background belong to the session: a stop of the turn
does not stop them, `session.stop(scope="all")` and the end of the session do. A child that takes longer than its time
limit is stopped, wherever it runs.

The depth of delegation and the number of agents are limited for the whole tree of agents together.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Struct

from halter.cancel.deadlines import check_seconds
from halter.cancel.token import CancellationToken, Cancelled
from halter.tools.content import bound
from halter.tools.context import ToolContext
from halter.tools.outcome import because
from halter.tools.tool import Tool, tool
from halter.views.text import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from halter.agent import Agent
    from halter.session.children import Child

__all__ = ["TIMEOUT", "Delegate", "Task"]

TIMEOUT: Final = 1800.0

# Seconds after a stop in which the children may return what they have. Most need a millisecond or two.
_STOP_WAIT: Final = 0.03
_CLOSE_TIMEOUT: Final = 0.5  # seconds
_MAX_SHOWN: Final = 30_000  # characters of one child's answer
_MAX_LABEL: Final = 60  # characters of a task in its label
_MAX_PURPOSE: Final = 150  # characters of an agent's instructions in the tool's description
_MAX_REMEMBERED: Final = 50  # children in the background that have ended


class Task(Struct):
    """One part of the work."""

    agent: str
    task: str


class Delegate:
    """Delegation to *agents*. One object serves any number of sessions, and agents at any depth."""

    def __init__(
        self,
        agents: Mapping[str, Agent] | Iterable[Agent],
        *,
        max_parallel: int = 8,  # children that run at one time, in the whole tree
        max_total: int = 100,  # children that one session may begin, in the whole tree
        max_depth: int = 2,  # 1: children cannot delegate
        timeout: float | None = TIMEOUT,  # seconds for each child; then it is stopped, and has a partial answer
    ) -> None:
        named = dict(agents) if isinstance(agents, Mapping) else _by_name(agents)
        if not named:
            raise ValueError("pass at least one agent to delegate to")
        self._agents = named
        self._timeout = None if timeout is None else check_seconds("timeout", timeout)
        self._limits = _Limits(max_parallel, max_total, max_depth)

    @property
    def tools(self) -> list[Tool[..., Any]]:
        """All of them, for `Agent(tools=...)`. The model is told which agents there are."""
        delegate = self.delegate  # a copy
        agents = "\n".join(f"- {name}{_purpose(agent)}" for name, agent in self._agents.items())
        description = f"{delegate.description}\n\nThe agents:\n{agents}"
        delegate.spec = msgspec.structs.replace(delegate.spec, description=description)
        return [delegate, self.subagents]

    @tool
    async def delegate(self, tasks: list[Task], ctx: ToolContext, *, background: bool = False) -> str:
        """Have other agents work on tasks in parallel, and return their answers.

        They do not see this conversation: each task must contain everything needed to do it.

        Args:
            tasks: a list of {"agent": name, "task": text}.
            background: return at once with numbers for the subagents tool.

        """
        if not tasks:
            raise ValueError(f"tasks is empty; available agents: {', '.join(self._agents)}")
        agents = [self._agent(each.agent) for each in tasks]
        if any(not each.task.strip() for each in tasks):
            raise ValueError("a task is empty")
        started = await self._begin(list(zip(agents, tasks, strict=True)), ctx, in_background=background)
        if background:
            return "\n".join(f"[{each.label()} started]" for each in started)
        return await self._results(started, ctx)

    @tool
    async def subagents(
        self,
        action: Literal["list", "collect", "stop"],
        ctx: ToolContext,
        numbers: list[int] | None = None,
        timeout: float = 0.0,  # noqa: ASYNC109  (the model's word)
    ) -> str:
        """Manage background agents: list them, collect their answers, or stop them.

        Args:
            action: list: the state of each; collect: their answers so far; stop: end them.
            numbers: which ones, as reported by delegate and list; all by default.
            timeout: for collect: seconds to wait for those that are not done.

        """
        group = _Group.of(ctx)
        which = group.find(numbers)
        if action == "list":
            return "\n".join(f"[{each.label()} {each.state()}]" for each in which) or "There are no background agents."
        if not which:
            return "There are no background agents."
        if action == "stop":
            for each in which:
                each.child.stop("stop", detail="stopped by the agent that started it")
            await _wait_for_end(which, CancellationToken(timeout=_CLOSE_TIMEOUT))
        elif check_seconds("timeout", timeout) > 0:
            try:
                await _wait_for_end(which, ctx.token.child("collect", timeout))
            except asyncio.CancelledError:
                if not ctx.token.is_cancelled:
                    raise
        return "\n\n".join(each.result() for each in which)

    def _agent(self, name: str) -> Agent:
        agent = self._agents.get(name)
        if agent is None:
            raise LookupError(f"no agent named {name!r}; available: {', '.join(self._agents)}. Nothing was started.")
        return agent

    async def _begin(
        self, tasks: list[tuple[Agent, Task]], ctx: ToolContext, *, in_background: bool
    ) -> list[_DelegatedTask]:
        """Start all of them, or none."""
        group = _Group.of(ctx)
        position = group.enter(self._limits, len(tasks))
        started: list[_DelegatedTask] = []
        try:
            with _at(position):
                for agent, each in tasks:
                    child = await ctx.begin(agent, each.task, lasts=in_background, timeout=self._timeout)
                    started.append(group.add(child, each, position, in_background=in_background))
        except BaseException:
            for part in started:
                part.child.stop("stop", detail="not all of them could be started")
            raise
        finally:
            position.tree.leave(len(tasks) - len(started))
        return started

    async def _results(self, started: list[_DelegatedTask], ctx: ToolContext) -> str:
        """Wait for all, and report each; at a stop, return what there is."""
        open_parts = {asyncio.ensure_future(each.child.ended.wait_async()): each for each in started}
        waiting = set(open_parts)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    ctx.report(f"{open_parts[each].label()} {open_parts[each].state()}")
        except asyncio.CancelledError:
            if not ctx.token.is_cancelled:
                raise
            await asyncio.wait(waiting, timeout=_STOP_WAIT)
        finally:
            for each in waiting:
                each.cancel()
        return "\n\n".join(each.result() for each in started)


def _purpose(agent: Agent) -> str:
    """The first line of an agent's instructions, for the model that chooses one."""
    instructions = agent.instructions  # or a function: `toolbox.Instructions` has what its user wrote as `text`
    text = instructions if isinstance(instructions, str) else str(getattr(instructions, "text", ""))
    line = next(iter(text.strip().splitlines()), "")
    return f": {shorten(line, _MAX_PURPOSE)}" if line else ""


def _by_name(agents: Iterable[Agent]) -> dict[str, Agent]:
    named: dict[str, Agent] = {}
    for agent in agents:
        if named.setdefault(agent.name, agent) is not agent:
            raise ValueError(f"two agents have the name {agent.name!r}; give them different names, or pass a dict")
    return named


async def _wait_for_end(parts: Sequence[_DelegatedTask], token: CancellationToken) -> None:
    """Wait until all have ended, or the token is cancelled."""
    with contextlib.suppress(Cancelled):
        async with token.scope():
            for each in parts:
                await each.child.ended.wait_async()


@dataclass(frozen=True, slots=True)
class _Limits:
    max_parallel: int
    max_total: int
    max_depth: int


class _DelegatedTask:
    """One task, and the child that does it."""

    def __init__(self, child: Child, task: Task, number: int) -> None:
        self.child = child
        self.number = number  # of one in the background
        self._task = task
        self._began = time.monotonic()
        self._took: float | None = None
        child.ended.on_set(self._on_end)

    def _on_end(self) -> None:
        self._took = time.monotonic() - self._began

    @property
    def is_running(self) -> bool:
        return not self.child.ended.is_set

    @property
    def _seconds(self) -> float:
        """How long it has taken. A waiter may see its end before `_on_end()` is called."""
        return time.monotonic() - self._began if self._took is None else self._took

    def label(self) -> str:
        return f"{f'{self.number}: ' if self.number else ''}{self._task.agent} ({shorten(self._task.task, _MAX_LABEL)})"

    def state(self) -> str:
        """Its state, in words that fit after its label."""
        turn, child = self.child.turn, self.child
        if self.is_running:
            how = "is being stopped after" if child.token.is_cancelled else "has been running for"
            return f"{how} {self._seconds:.1f} s"
        took = f"after {self._seconds:.1f} s"
        if turn is None or turn.status == "running":
            return f"could not be started: {child.error or 'it was stopped first'}"
        if turn.status == "done":
            return f"is done {took}"
        if turn.status == "interrupted":
            return f"was stopped {took}, {because(turn.reason)}".rstrip(", ")
        return f"failed {took}: {turn.detail or turn.error or turn.reason}"

    def result(self) -> str:
        """Its answer, or the part that there is, marked as such."""
        text = bound(self.child.text.strip(), _MAX_SHOWN)
        is_done = not self.is_running and self.child.turn is not None and self.child.turn.status == "done"
        if not text:
            return f"[{self.label()} {self.state()}; no answer]"
        how = "" if is_done else "; partial answer"
        return f"[{self.label()} {self.state()}{how}]\n{text}"


class _Tree:
    """All children below one top-level session: how many are running, and how many there were."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._total = 0
        self._running = 0

    def enter(self, count: int, limits: _Limits) -> None:
        """Count *count* more children, or refuse them all."""
        with self._lock:
            if self._total + count > limits.max_total:
                left = max(limits.max_total - self._total, 0)
                raise RuntimeError(
                    f"a session may start {limits.max_total} agents, and {left} are left; do the rest yourself"
                )
            if self._running + count > limits.max_parallel:
                raise RuntimeError(
                    f"{self._running} of at most {limits.max_parallel} agents are running: {count} more are too many. "
                    "Nothing was started; pass fewer tasks, or wait for others to end"
                )
            self._total += count
            self._running += count

    def leave(self, count: int = 1) -> None:
        with self._lock:
            self._running -= count


@dataclass(frozen=True, slots=True)
class _TreePosition:
    """A position in the tree."""

    tree: _Tree
    depth: int


# Set in the tasks of children: delegation there is one level deeper.
_position: Final[contextvars.ContextVar[_TreePosition | None]] = contextvars.ContextVar("position", default=None)


@contextlib.contextmanager
def _at(position: _TreePosition) -> Iterator[None]:
    reset = _position.set(position)
    try:
        yield
    finally:
        _position.reset(reset)


class _Group:
    """The children of one session, kept in it."""

    def __init__(self) -> None:
        self.tree = _Tree()  # for a top-level session
        self._lock = threading.Lock()
        self._running: set[_DelegatedTask] = set()
        self._background: dict[int, _DelegatedTask] = {}
        self._last = 0

    @classmethod
    def of(cls, ctx: ToolContext) -> _Group:
        return ctx.keep(cls)

    def enter(self, limits: _Limits, count: int) -> _TreePosition:
        """Reserve *count* children; returns their position in the tree."""
        here = _position.get() or _TreePosition(self.tree, 0)
        if here.depth >= limits.max_depth:
            raise RuntimeError(f"the maximum depth of delegation is {limits.max_depth}: do it yourself")
        here.tree.enter(count, limits)
        return _TreePosition(here.tree, here.depth + 1)

    def add(self, child: Child, task: Task, position: _TreePosition, *, in_background: bool) -> _DelegatedTask:
        """Track a child: it is counted until it ends, and ended with the session."""
        with self._lock:
            self._last += in_background
            part = _DelegatedTask(child, task, self._last if in_background else 0)
            self._running.add(part)
            if in_background:
                self._background[part.number] = part
                ended = [each for each in self._background.values() if not each.is_running]
                for each in ended[:-_MAX_REMEMBERED]:
                    del self._background[each.number]
        child.ended.on_set(lambda: self._remove(part, position.tree))
        return part

    def _remove(self, part: _DelegatedTask, tree: _Tree) -> None:
        tree.leave()
        with self._lock:
            self._running.discard(part)

    def find(self, numbers: list[int] | None) -> list[_DelegatedTask]:
        """Those in the background with these numbers, or all."""
        with self._lock:
            known = dict(self._background)
        if not numbers:
            return list(known.values())
        missing = [number for number in numbers if number not in known]
        if missing:
            raise LookupError(f"no background agent {missing[0]}; existing: {', '.join(map(str, known)) or 'none'}")
        return [known[number] for number in numbers]

    def stop_all(self) -> None:
        """Stop those in the background."""
        for each in self.find(None):
            each.child.stop("stop", detail="everything was stopped")

    def close(self) -> None:
        """End them all, as the session is being closed, and wait for them for a short time."""
        with self._lock:
            running = list(self._running)
        for each in running:
            each.child.stop("shutdown", detail="the session was closed")
        end = time.monotonic() + _CLOSE_TIMEOUT
        for each in running:
            each.child.ended.wait(max(end - time.monotonic(), 0.0))
