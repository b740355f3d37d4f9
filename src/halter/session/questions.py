"""Questions and approvals: what a session's tools ask the user, and the answers.

A question is open from the moment it is durable until its answer is durable or it is withdrawn. An answer, and a stop
that withdraws the question, are commands like any other: the first one counts. An accepted answer is in the log,
whatever comes next, and the model gets it even if the tool was stopped before it could use it.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

from halter.cancel.registration import call_in_loop
from halter.events import ApprovalAnswered, ApprovalAsked, MessageApplied, QuestionAnswered, QuestionAsked
from halter.models.types import Text
from halter.session.turn_writer import withdrawal
from halter.tools.approval import read_approval

if TYPE_CHECKING:
    from halter.session.inbox import InboxMessage
    from halter.session.log import EventLog, Transaction
    from halter.tools.approval import ApprovalRequest

__all__ = ["Questions"]


class Questions:
    """The open questions of one session. A child session asks through the root session."""

    __slots__ = ("_log", "_parent", "_waiting")

    def __init__(self, log: EventLog, parent: Questions | None = None) -> None:
        self._log = log
        self._parent = parent
        self._waiting: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}

    async def ask(self, question: str, choices: list[str] | None) -> Any:
        """Ask the user and wait for the answer."""
        return await self._ask_in_root(QuestionAsked(secrets.token_hex(8), question, choices))

    async def ask_approval(self, request: ApprovalRequest) -> Any:
        """Ask the user whether a call may run, and wait for the answer. Raises if the question cannot be written."""
        return await self._ask_in_root(ApprovalAsked(request))

    def allowed(self) -> tuple[ApprovalRequest, ...]:
        """The requests that the user has allowed for the whole session. They are kept in the root session."""
        return self._root._log.view.allowed

    @property
    def _root(self) -> Questions:
        root = self
        while root._parent is not None:
            root = root._parent
        return root

    async def _ask_in_root(self, asked: QuestionAsked | ApprovalAsked) -> Any:
        """Ask in the root session, the one that is no child: the user can see it."""
        root = self._root
        return await root._ask(asked, is_from_child=root is not self)

    async def _ask(self, asked: QuestionAsked | ApprovalAsked, *, is_from_child: bool) -> Any:
        question_id = asked.id if isinstance(asked, QuestionAsked) else asked.request.id
        if is_from_child:
            self._log.child_questions |= {question_id}
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting[question_id] = (loop, answer)

        def ask(tx: Transaction) -> None:
            turn = tx.history.turn  # None if a background child asks
            tx.write(turn.id if turn is not None else "", asked)

        def withdraw(tx: Transaction) -> None:
            found = tx.state.questions.get(question_id)
            if found is not None:
                tx.write(_open_turn(tx, found[0]), withdrawal(asked))

        try:
            await self._log.run_async(ask)
            return await answer
        except BaseException:
            self._log.submit(withdraw)  # does nothing if it was answered or the session is closed
            raise
        finally:
            self._waiting.pop(question_id, None)
            self._log.child_questions -= {question_id}

    def answer(self, tx: Transaction, question_id: str, value: Any, by: str = "") -> bool:
        """Answer a question; False if it is not open."""
        found = tx.state.questions.get(question_id)
        if found is None:
            return False
        turn, asked = _open_turn(tx, found[0]), found[1]
        if isinstance(asked, ApprovalAsked):
            approval = value = read_approval(value)
            scope = approval.scope if approval.granted else "once"
            if scope == "always" and not asked.request.prefixes:
                scope = "session"  # there is nothing to keep
            call_id = asked.request.call_id
            tx.write(turn, ApprovalAnswered(question_id, call_id, approval.granted, approval.note, by, scope))
        else:
            tx.write(turn, QuestionAnswered(question_id, value))
        tx.after_commit(lambda: self._deliver(question_id, value))
        return True

    def answer_with(self, tx: Transaction, message: InboxMessage) -> bool:
        """Make a steer the answer to the oldest open question of the running turn; False if there is none."""
        turn = tx.history.turn
        content = message.message
        if turn is None or content is None:
            return False
        asked = next(
            (
                asked
                for of_turn, asked in tx.state.questions.values()
                if of_turn == turn.id and isinstance(asked, QuestionAsked)
            ),
            None,
        )
        if asked is None:
            return False
        applied = MessageApplied(message.id, "steer", f"it answered question {asked.id}", question=asked.id)
        tx.write(turn.id, applied, QuestionAnswered(asked.id, content.text))
        is_text = all(isinstance(part, Text) for part in content.parts)
        value = content.text if is_text else list(content.parts)
        question = asked.id
        tx.after_commit(lambda: self._deliver(question, value))
        return True

    def _deliver(self, question_id: str, value: Any) -> None:
        """Wake the tool that waits for this answer."""
        waiting = self._waiting.get(question_id)
        if waiting is not None:
            loop, answer = waiting
            call_in_loop(loop, lambda: None if answer.done() else answer.set_result(value))


def _open_turn(tx: Transaction, turn: str) -> str:
    """The turn to which an answer belongs: none, if a background child asked and the turn has ended since."""
    return turn if tx.history.is_open(turn) else ""
