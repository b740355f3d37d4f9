"""What must hold for a session, wherever it was stopped: apart from its scenario, so that the judge is not stopped."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from langchain_core.tools import tool as langchain_tool

from halter import Agent, Receipt, Session, SessionClosed, ToolContext, Turn, current_token, run_process, tool
from halter.bridges import from_langchain
from halter.cancel import abandoned
from halter.cancel.isolation import worker_process
from halter.cancel.processes import registry
from halter.events import Event
from halter.models import (
    Finished,
    ModelEvent,
    ModelRequest,
    TextDelta,
    ToolCall,
    ToolCallDone,
    ToolCallStarted,
    ToolMessage,
    UserMessage,
)
from halter.stores import MemoryStore, Store
from halter.toolbox import Checkpoints
from tests.support.valid_history import judge as check_history
from tests.support.waiting import wait_until

FIRST = "do everything"
NEXT = "and now?"
STEER = "do it otherwise"
WORDS = ["I will ", "do it. "]


class Obedient:
    """A model that does what the last message says, and remembers what it was asked."""

    name = "obedient"

    def __init__(self, calls: Sequence[str] = ()) -> None:
        self.calls = calls
        self.requests = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        self.requests += 1
        check_history(request.messages)
        last = request.messages[-1]
        if isinstance(last, ToolMessage):
            yield TextDelta("All done.")
        elif isinstance(last, UserMessage) and last.text.endswith(FIRST):
            for word in WORDS:
                yield TextDelta(word)
            await asyncio.sleep(0)
            for index, name in enumerate(self.calls):
                yield ToolCallStarted(index, f"call_{name}", name)
                yield ToolCallDone(index, ToolCall(f"call_{name}", name))
            yield Finished("tool_calls")
            return
        else:
            assert isinstance(last, UserMessage)
            yield TextDelta("Answer to ")
            await asyncio.sleep(0)
            yield TextDelta(last.text)
        yield Finished("stop")


@tool
def listens() -> str:
    """Listen for a moment."""
    current_token().wait(0.001)
    return "listened"


@tool
def is_deaf() -> str:
    """Listen to nobody for a moment."""
    threading.Event().wait(0.002)
    return "deaf"


@tool
def plain_child() -> int:
    """Wait for a child."""
    return subprocess.Popen(["sleep", "0.002"]).wait()


@tool
async def process() -> bytes:
    """Run a process of ours."""
    return (await run_process("echo ran")).stdout


@tool(isolate=True)
def isolated() -> str:
    """Run elsewhere."""
    return "isolated"


@tool
def yields() -> Iterator[str]:
    """Yield."""
    yield "one"
    yield "two"


@tool
def fails() -> None:
    """Fail."""
    raise ValueError("on purpose")


@tool(approval=True)
def needs_approval() -> str:
    """Run if allowed."""
    return "allowed"


@tool(on_steer="finish")
async def finishes() -> str:
    """Must not be broken by a steer."""
    await asyncio.sleep(0.001)
    return "finished"


@tool
async def delegates(ctx: ToolContext) -> str:
    """Have a part done by another agent."""
    turn: Turn = await ctx.delegate(Agent(Obedient(), name="child"), "a part")
    return turn.text


def bridged() -> str:
    """Run as a tool of another library. The others would take long at each point: see tests/laws/test_bridges.py."""
    current_token().wait(0.001)
    return "bridged"


[BRIDGED] = from_langchain(langchain_tool(bridged))


@tool
def writes(path: str = "file") -> str:
    """Write a file, of which a checkpoint is made first."""
    (FOLDER / path).write_text("written")
    return "written"


def _folder() -> Path:
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    return Path(made.name)


FOLDER = _folder()
# With its data in the workspace it uses no Git, which would take long at each of a thousand points: see
# tests/laws/test_checkpoints.py.
[WRITES] = Checkpoints(FOLDER, folder=FOLDER / "data").watch([writes], changing=lambda _: True)

TOOLS = {
    each.name: each
    for each in (
        listens,
        is_deaf,
        plain_child,
        process,
        isolated,
        yields,
        fails,
        needs_approval,
        finishes,
        delegates,
        BRIDGED,
        WRITES,
    )
}
WHOLE = {
    "listens": "listened",
    "is_deaf": "deaf",
    "plain_child": "0",
    "process": "ran\n",
    "isolated": "isolated",
    "yields": "one\ntwo",
    "needs_approval": "allowed",
    "finishes": "finished",
    "delegates": "Answer to a part",
    "bridged": "bridged",
    "writes": "written",
}


async def approve_soon(_: object) -> bool:
    await asyncio.sleep(0)
    return True


class Judge:
    """One session in which one turn is stopped somewhere, or not at all."""

    def __init__(self, *reasons: str, store: Store | None = None, without: str = "") -> None:
        self.reasons = reasons
        self.tools = [name for name in TOOLS if name != without]
        self.model = Obedient(self.tools)
        self.agent = Agent(self.model, [TOOLS[name] for name in self.tools], approve=approve_soon)
        self.store = MemoryStore() if store is None else store
        self.session = self.agent.session("tried", self.store)
        self.receipt: object = None

    def open_again(self) -> None:
        """Go on with a new session object for the same session."""
        self.session = self.agent.session(self.session.id, self.store)

    def stopped(self, receipt: object) -> None:
        """Remember what the stop gave."""
        self.receipt = receipt

    def judge(self, turn: Turn | None) -> None:
        """Look at the turn that was stopped, or was not."""
        assert turn is not None
        assert turn.status in ("done", "interrupted"), (turn, turn.error)
        receipt = self.receipt
        # A pause cuts nothing: the step behind which the turn was to end may be its last.
        if isinstance(receipt, Receipt) and receipt.stopped and "pause" not in self.reasons:
            assert turn.status == "interrupted"
            assert turn.reason in self.reasons
        if turn.status == "done":
            assert turn.text == "All done." or turn.text.endswith(STEER), turn.text
        else:
            assert turn.reason in self.reasons, turn.reason
            assert turn.token.is_cancelled or turn.reason == "pause"
        if isinstance(receipt, Receipt) and (receipt.mode, receipt.turn_id) == ("rollback", turn.id):
            self.session.release()  # a command behind the rollback, which could not wait inside the writer's own work
            assert not self.session.history
        self._judge_outcomes(turn)
        self.judge_log()

    def _judge_outcomes(self, turn: Turn) -> None:
        """Law 6: each call has one outcome, in order, and none of them claims more than is so."""
        assert [outcome.name for outcome in turn.outcomes] in ([], self.tools)
        for outcome in turn.outcomes:
            if outcome.status == "completed":
                assert outcome.content == WHOLE[outcome.name], outcome
            elif outcome.status == "failed":
                assert outcome.name == "fails", outcome
            else:
                assert outcome.reason in self.reasons, outcome
            assert (outcome.started_at is None) == (outcome.status in ("not_started", "denied")), outcome
            if outcome.name == "finishes" and "steer" in self.reasons:
                assert outcome.status in ("completed", "not_started"), outcome

    def judge_log(self) -> None:
        """Laws 3, 4 and 5, as the log tells."""
        session = self.session
        check_log(check_messages(session))
        check_history(session.history)

    async def judge_rollback(self, before: Turn, turn: Turn) -> None:
        """Look at a session whose second turn, *turn*, met a rollback(): it took one of the two back, and that only."""
        session, receipt = self.session, self.receipt
        assert not session.is_running
        session.release()  # a command behind the rollback, which could not wait inside the writer's own work
        if isinstance(receipt, Receipt):
            assert await receipt.settled_async()
            # Inside the writer's own work, as in a signal handler, it cannot wait until it knows whether it has.
            assert turn.status == "interrupted" or not receipt.stopped
        taken = [event.turn for event in session.events() if event.kind == "turn.rolled_back"]
        assert len(taken) == isinstance(receipt, Receipt), taken
        if turn.status == "interrupted":
            assert (turn.reason, taken) == ("rollback", [turn.id])
        else:
            assert turn.status == "done", (turn, turn.error)
        kept = [text for text, each in (("hello", before), ("begin", turn)) if each.id not in taken]
        assert [message.text for message in session.history if isinstance(message, UserMessage)] == kept
        self.judge_log()

    async def judge_next(self) -> None:
        """Law 4: the next turn runs as if nothing had been, and what was left in the inbox is in it."""
        session = self.session
        before = self.model.requests
        turn = await session.arun(NEXT)
        assert turn.status == "done", (turn, turn.error)
        assert turn.text.startswith("Answer to ")
        assert turn.text.endswith(NEXT)
        assert not turn.outcomes
        assert self.model.requests == before + 1
        assert not session.inbox.ready()
        assert not turn.token.is_cancelled
        self.judge_log()
        await session.aclose()


def check_messages(session: Session) -> list[Event]:
    """Each message that was accepted was applied exactly once, or waits, or was removed. Returns the log."""
    # A command behind all others: what was said in the writer's own thread could not wait until it is shown. Closing a
    # session is its last command, so behind that there is nothing.
    with contextlib.suppress(SessionClosed):
        session.release("no such message")
    events, waiting = session.events(), {message.id for message in session.inbox}
    kinds: dict[str, Counter[str]] = {}
    for event in events:
        if event.kind.startswith("message."):
            kinds.setdefault(event.data.id, Counter())[event.kind] += 1  # type: ignore[union-attr]
    for message, seen in kinds.items():
        assert seen["message.accepted"] == 1, (message, seen)
        assert seen["message.applied"] + seen["message.removed"] + (message in waiting) == 1, (message, seen)
    return events


def check_log(events: list[Event]) -> None:
    """Numbers without gaps; one turn at a time; no request after its stop, and nothing after its end but late ends."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    running = stopping = ""
    for event in events:
        if event.kind == "turn.stopping":
            stopping = event.turn
        if event.kind == "request.started":
            assert event.turn != stopping, event
        if event.kind == "turn.started":
            assert not running
            running = event.turn
        elif event.kind == "turn.finished":
            assert event.turn == running
            running = ""
        elif event.turn and event.kind not in ("tool.finished_late", "turn.rolled_back"):
            assert event.turn == running, event
    assert not running


def nothing_is_left() -> None:
    """Law 2: no thread, no process."""
    wait_until(lambda: len(abandoned) == 0)
    wait_until(lambda: len(registry.roots()) <= len(worker_process.shared_workers.workers))
