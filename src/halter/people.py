"""Who a turn's tools may turn to: the person, for an approval or an answer; other agents, for a part of the work.

And what they keep in the session from one call to the next.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.token import call_in_loop
from halter.events import ChildFinished, ChildStarted, QuestionAnswered, QuestionAsked
from halter.tools.keep import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.agent import Agent
    from halter.cancel.token import CancellationToken
    from halter.journal import Journal
    from halter.session import Session
    from halter.tools.approval import ApprovalRequest
    from halter.turn import Turn

# A child has to be back, with what it has, before its parent's own patience is over.
_CHILDS_SHARE: Final = 0.5


class People:
    """The open questions of one session, and the way to its children."""

    __slots__ = ("_journal", "_make_child", "_open", "grace", "keeper")

    def __init__(
        self, journal: Journal, grace: float, make_child: Callable[[Agent, CancellationToken, float], Session]
    ) -> None:
        self.grace = grace
        self.keeper = Keeper()
        self._journal = journal
        self._make_child = make_child
        self._open: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}

    def answer(self, request_id: str, value: Any) -> bool:  # noqa: ANN401  (a question may want anything)
        """Answer a question, from any thread; False if it is not open, or not any more."""
        asked = self._open.pop(request_id, None)
        if asked is None:
            return False
        loop, answer = asked
        call_in_loop(loop, lambda: None if answer.done() else answer.set_result(value))
        return True

    async def ask_approval(self, request: ApprovalRequest) -> Any:  # noqa: ANN401
        """Wait for the answer to a request that was announced already."""
        return await self._wait(request.id)

    async def ask(self, question: str, choices: list[str] | None) -> Any:  # noqa: ANN401
        """Put a question to the person and wait for the answer."""
        turn = self._journal.history.turn
        turn_id = turn.id if turn is not None else ""
        question_id = secrets.token_hex(8)
        asked = self._expect(question_id)
        self._journal.append_in(turn_id, QuestionAsked(question_id, question, choices))
        try:
            value = await asked
        except BaseException:
            self._open.pop(question_id, None)
            self._journal.append_in(turn_id, QuestionAnswered(question_id, withdrawn=True))
            raise
        self._journal.append_in(turn_id, QuestionAnswered(question_id, value))
        return value

    def _expect(self, request_id: str) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._open[request_id] = (loop, answer)
        return answer

    async def _wait(self, request_id: str) -> Any:  # noqa: ANN401
        answer = self._expect(request_id)
        try:
            return await answer
        finally:
            self._open.pop(request_id, None)

    async def delegate(self, agent: Agent, text: str, token: CancellationToken) -> Turn:
        """Have another agent do a part, in a session of its own below *token*; its turn, also when that was stopped."""
        parent = self._journal.history.turn
        turn_id = parent.id if parent is not None else ""
        child = self._make_child(agent, token, self.grace * _CHILDS_SHARE)
        self._journal.append_in(turn_id, ChildStarted(child.id, agent.name))
        try:
            turn = await child.arun(text)
        finally:
            ended = child.turn
            if ended is not None:
                self._journal.append_in(turn_id, ChildFinished(child.id, ended.status, ended.reason or ""))
            child.close(timeout=0)
        return turn
