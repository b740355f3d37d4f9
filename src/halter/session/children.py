"""Child sessions: another agent does a part of the work, in a session below the call or below the session."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from halter.cancel.loop_bridge import run_in_thread
from halter.cancel.one_shot_event import OneShotEvent
from halter.events import ChildFinished, ChildProgress, ChildStarted, ToolStarted
from halter.session.background_loop import PROCESS
from halter.tools.run.batch import GRACE

if TYPE_CHECKING:
    from halter.agent import Agent
    from halter.cancel.token import CancellationToken
    from halter.events import Event, EventData
    from halter.session.limits import Spending
    from halter.session.log import Transaction
    from halter.session.questions import Questions
    from halter.session.session import Session
    from halter.session.turn import Turn
    from halter.session.turn_files import TurnFiles

__all__ = ["NO_PARENT", "Child", "Children", "ParentTurn"]

# A child has to return what it has before the grace of the waiting call is over.
_SHARE_OF_GRACE: Final = 0.5
_MAX_ARGUMENTS: Final = 500  # characters, of a child's call


class ParentTurn(NamedTuple):
    """What a child session has from the turn that started it. The defaults are for a session that is no child."""

    token: CancellationToken = PROCESS
    grace: float = GRACE  # seconds for stopped calls to return what they have
    questions: Questions | None = None  # where it asks the user
    files: TurnFiles | None = None
    spending: Spending | None = None


NO_PARENT: Final = ParentTurn()


_closing: set[asyncio.Task[None]] = set()  # asyncio refers to tasks weakly


class Child:
    """A running or ended child session."""

    def __init__(self, session: Session, token: CancellationToken) -> None:
        self.session = session
        self.token = token
        self.ended = OneShotEvent()
        self.error: Exception | None = None  # why it could not start, or its events could not be written
        self.task: asyncio.Task[None] | None = None  # asyncio refers to tasks weakly

    @property
    def text(self) -> str:
        """Its answer, or the text so far."""
        return self.session.text

    @property
    def turn(self) -> Turn | None:
        """Its turn, once that has begun."""
        return self.session.turn

    def stop(self, reason: str = "stop", *, detail: str = "") -> bool:
        """Stop it, from any thread; True if this call did it."""
        return self.token.cancel(reason, detail=detail)


class Children:
    """Starts and runs the children of one turn. What they use counts for its limits, *spending*, as they run."""

    __slots__ = ("_session", "_spending")

    def __init__(self, session: Session, spending: Spending) -> None:
        self._session = session
        self._spending = spending

    async def delegate(self, agent: Agent, text: str, token: CancellationToken) -> Turn:
        """Run another agent on *text* below *token*, and return its turn, also if that was stopped."""
        turn_id = self._turn_id
        child = await self._open(agent, token, _SHARE_OF_GRACE)
        try:
            return await self._run(child, turn_id, text)
        finally:
            await _close(child, token)

    async def begin(
        self,
        agent: Agent,
        text: str,
        token: CancellationToken | None,
        timeout: float | None = None,  # noqa: ASYNC109  (of the child, not of this call)
    ) -> Child:
        """Start another agent on *text* without waiting for it; below *token*, or by default below the session's.

        A child below the session's token is not stopped with the call or the turn that started it. It runs in this
        event loop and ends with it. After *timeout* seconds it is stopped, with the reason "timeout".
        """
        turn_id = self._turn_id
        own = (self._session.token if token is None else token).child(f"child {agent.name}", timeout)
        child = Child(await self._open(agent, own, 1.0 if token is None else _SHARE_OF_GRACE), own)
        child.task = asyncio.ensure_future(self._run_to_end(child, turn_id, text))
        return child

    @property
    def _turn_id(self) -> str:
        turn = self._session._log.view.history.turn
        return turn.id if turn is not None else ""

    async def _open(self, agent: Agent, token: CancellationToken, share_of_grace: float) -> Session:
        from halter.session.session import Session

        parent = self._session
        store = parent._log.store
        name = f"{parent.id}/{secrets.token_hex(4)}"
        grace = parent._parent.grace * share_of_grace
        # What a child changes in files is this turn's.
        above = ParentTurn(token, grace, parent._questions, parent._files.running, self._spending)

        def open_session() -> Session:
            return Session(agent, name, store, deps=parent.deps, parent=above)

        return await run_in_thread(open_session) if store.blocks else open_session()

    async def _run_to_end(self, child: Child, turn_id: str, text: str) -> None:
        """Run a child and close its session. A boundary: errors are kept in `child.error`."""
        try:
            with child.token.bind():  # not the call's token: the call may end first
                await self._run(child.session, turn_id, text)
        except Exception as error:  # noqa: BLE001
            child.error = error
        finally:
            child.ended.set()
            await child.session.aclose()

    async def _run(self, child: Session, turn_id: str, text: str) -> Turn:
        self._write(turn_id, ChildStarted(child.id, child.agent.name, text))

        def record_calls(events: list[Event]) -> None:
            for event in events:
                if isinstance(event.data, ToolStarted):
                    call = event.data
                    self._write(turn_id, ChildProgress(child.id, call.name, call.arguments[:_MAX_ARGUMENTS]))

        try:
            with child.subscribe(only=(ToolStarted,), on_events=record_calls):
                return await child.arun(text)
        finally:
            turn = child.turn
            if turn is not None:
                self._write(turn_id, ChildFinished(child.id, turn.status, turn.reason or "", turn.usage))

    def _write(self, turn_id: str, data: EventData) -> None:
        """Record an event of a child, without waiting. The end of a child is recorded even if the turn has ended."""

        def decide(tx: Transaction) -> None:
            if tx.history.is_open(turn_id) or isinstance(data, ChildFinished):
                tx.write(turn_id, data)

        self._session._log.submit(decide)


async def _close(child: Session, token: CancellationToken) -> None:
    """Close a child. A call that was stopped does not wait for it: it returns the child's answer within its grace."""
    closed = OneShotEvent()
    closing = asyncio.ensure_future(child.aclose())
    _closing.add(closing)
    closing.add_done_callback(_closing.discard)
    closing.add_done_callback(lambda _: closed.set())
    await closed.wait_async(token=token)
