"""Who a turn's tools may turn to: the person, for an approval or an answer; other agents, for a part of the work.

And what they keep in the session from one call to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any, Final

from halter.cancel.token import CancellationToken, call_in_loop
from halter.errors import StoreError
from halter.events import ChildFinished, ChildStarted, MessageApplied, QuestionAnswered, QuestionAsked
from halter.models.model import Text
from halter.tools.events import ApprovalAnswered, ApprovalAsked
from halter.tools.keep import Keeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from halter.agent import Agent
    from halter.events import EventData, Mode
    from halter.inbox import Letter
    from halter.journal import Journal
    from halter.session import Session
    from halter.tools.approval import ApprovalRequest
    from halter.turn import Turn

# A child has to be back, with what it has, before its parent's own patience is over.
_CHILDS_SHARE: Final = 0.5


class People:
    """The open questions of one session, and the way to its children."""

    __slots__ = ("_above", "_journal", "_make_child", "_open", "_questions", "_token", "grace", "keeper")

    def __init__(
        self,
        journal: Journal,
        token: CancellationToken,
        grace: float,
        make_child: Callable[[Agent, CancellationToken, float], Session],
        above: People | None = None,
    ) -> None:
        """*token* is the session's own: children that outlast a call hang below it.

        A child's session has those of its parent *above* it: nobody listens to a child, so it is there that it asks.
        """
        self.grace = grace
        self.keeper = Keeper()
        self._journal = journal
        self._token = token
        self._make_child = make_child
        self._above = above
        self._open: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Future[Any]]] = {}
        self._questions: list[str] = []  # those of the open that a message may answer, the oldest first

    def answer(self, request_id: str, value: Any) -> bool:  # noqa: ANN401  (a question may want anything)
        """Answer a question, from any thread; False if it is not open, or not any more."""
        asked = self._open.pop(request_id, None)
        if asked is None:
            return False
        loop, answer = asked
        call_in_loop(loop, lambda: None if answer.done() else answer.set_result(value))
        return True

    async def ask_approval(self, request: ApprovalRequest) -> Any:  # noqa: ANN401
        """Wait for the answer to a request that was announced already; a child's is announced again, above."""
        return await (self._wait(request.id) if self._above is None else self._above.ask_for_child(request))

    async def ask_for_child(self, request: ApprovalRequest) -> Any:  # noqa: ANN401
        """Ask here for the approval of a call that runs in a child, and wait for the answer."""
        if self._above is not None:
            return await self._above.ask_for_child(request)
        turn_id = self._turn_id
        answered = ApprovalAnswered(request.id, request.call_id, granted=False, note="the question was withdrawn")
        asked = self._expect(request.id)
        try:
            self._tell(turn_id, ApprovalAsked(request))
            value = await asked
            answered = ApprovalAnswered(request.id, request.call_id, granted=value is True, note="answered for a child")
            return value
        finally:
            self._open.pop(request.id, None)
            self._tell(turn_id, answered)

    async def ask(self, question: str, choices: list[str] | None) -> Any:  # noqa: ANN401
        """Put a question to the person and wait for the answer."""
        if self._above is not None:
            return await self._above.ask(question, choices)
        turn_id = self._turn_id
        question_id = secrets.token_hex(8)
        asked = self._expect(question_id)
        self._questions.append(question_id)
        try:
            self._tell(turn_id, QuestionAsked(question_id, question, choices))
            value = await asked
        except BaseException:
            # Under the lock: a message that is just being made the answer either finds the question gone, and goes its
            # ordinary way, or has answered it.
            with self._journal.lock:
                self._open.pop(question_id, None)
                if self._withdraw(question_id):
                    self._tell(turn_id, QuestionAnswered(question_id, withdrawn=True))
            raise
        if self._withdraw(question_id):  # else the message that has answered it has written so
            self._tell(turn_id, QuestionAnswered(question_id, value))
        return value

    def _tell(self, turn_id: str, data: EventData) -> None:
        """Write of a question, in its turn; what is asked while none runs, by a child in the background, in none."""
        if turn_id:
            self._journal.append_in(turn_id, data)
        else:
            self._journal.append("", data)

    def _withdraw(self, question_id: str) -> bool:
        """Let no message answer this question any more; False if one has."""
        try:
            self._questions.remove(question_id)
        except ValueError:
            return False
        return True

    def hear(self, letter: Letter, turn_id: str) -> bool:
        """Make a message that was accepted the answer to the oldest open question; False if there is none.

        With the journal's lock held.
        """
        message = letter.message
        found = next((each for each in self._questions if each in self._open), None)
        if found is None or message is None:
            return False
        asked = self._open.pop(found, None)
        if asked is None:
            return False  # answered in this very moment
        mode: Mode = "steer" if letter.mode == "steer" else "queue"
        applied = MessageApplied(letter.id, mode, f"it answered question {found}", question=found)
        is_written = False
        try:
            is_written = self._journal.append_in(turn_id, applied, QuestionAnswered(found, message.text))
        finally:
            if not is_written:
                self._open[found] = asked
        if not is_written:
            return False
        self._withdraw(found)
        loop, answer = asked
        is_text = all(isinstance(part, Text) for part in message.parts)
        value = message.text if is_text else list(message.parts)
        call_in_loop(loop, lambda: None if answer.done() else answer.set_result(value))
        return True

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
        child = self._make_child(agent, token, self.grace * _CHILDS_SHARE)
        try:
            return await self._run_child(child, self._turn_id, text)
        finally:
            child.close(timeout=0)

    async def begin(self, agent: Agent, text: str, token: CancellationToken | None) -> Child:
        """Have another agent begin with a part, and go on here; below *token*, or without one below the session's.

        One that is below the session's token is not stopped with the call or the turn that began it. It runs in this
        event loop, and ends with it.
        """
        own = (self._token if token is None else token).child(f"child {agent.name}")
        session = self._make_child(agent, own, self.grace if token is None else self.grace * _CHILDS_SHARE)
        child = Child(session, own)
        child.task = asyncio.ensure_future(self._look_after(child, self._turn_id, text, lasts=token is None))
        return child

    @property
    def _turn_id(self) -> str:
        turn = self._journal.history.turn
        return turn.id if turn is not None else ""

    async def _look_after(self, child: Child, turn_id: str, text: str, *, lasts: bool) -> None:
        """Run a child to its end, and then let go of its session. A boundary: how it ended is asked of the child."""
        try:
            with child.token.bind():  # and not the call's, which may end before
                await self._run_child(child.session, turn_id, text, lasts=lasts)
        except Exception as error:  # noqa: BLE001
            child.error = error
        finally:
            child.ended.cancel("ended")
            await child.session.aclose()

    async def _run_child(self, child: Session, turn_id: str, text: str, *, lasts: bool = False) -> Turn:
        self._journal.append_in(turn_id, ChildStarted(child.id, child.agent.name))
        try:
            return await child.arun(text)
        finally:
            ended = child.turn
            if ended is not None:
                end = ChildFinished(child.id, ended.status, ended.reason or "")
                if not self._journal.append_in(turn_id, end) and lasts:
                    self._write_late(turn_id, end)

    def _write_late(self, turn_id: str, data: ChildFinished) -> None:
        """Write of the end of a child that has outlasted its turn. A boundary: the session may be closed by then."""
        with contextlib.suppress(StoreError):
            self._journal.append(turn_id, data)


class Child:
    """Another agent at work on a part, in a session of its own; how it stands can be asked at any time."""

    def __init__(self, session: Session, token: CancellationToken) -> None:
        self.session = session
        self.token = token
        self.ended = CancellationToken(name="child ended")  # as a bell that rings once
        self.error: Exception | None = None  # why it could not even begin, or not be written down
        self.task: asyncio.Task[None] | None = None  # asyncio refers to tasks weakly

    @property
    def text(self) -> str:
        """Its answer, or as much of that as there is."""
        return self.session.text

    @property
    def turn(self) -> Turn | None:
        """Its turn, once it has begun."""
        return self.session.turn

    def stop(self, reason: str = "stop", *, detail: str = "") -> bool:
        """Stop it, from any thread; True if this did it."""
        return self.token.cancel(reason, detail=detail)
